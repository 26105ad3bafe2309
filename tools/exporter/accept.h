/* Which of the two formats an HTTP client wants. Pure functions. */
#pragma once

#include <stdbool.h>

/* Returns true if @accept, the value of an Accept header, wants OpenMetrics at least as much as plain
 * text and names it. NULL: there is no such header. */
bool fa_accept_open_metrics(const char *accept);
