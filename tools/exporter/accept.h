/* Decides which format an HTTP client wants. Pure functions. */
#pragma once

#include <stdbool.h>

/* @accept, an Accept header (NULL: none), names OpenMetrics and wants it at least as much as plain
 * text. */
bool fa_accept_open_metrics(const char *accept);
