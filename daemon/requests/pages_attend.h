/* The message for attention over pages that a client manages. Loop thread. */
#pragma once

#include "daemon/session/request.h"

extern const struct fa_request_kind fa_pages_attend_kind;
