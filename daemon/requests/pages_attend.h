/* Handles attention over a client's own pages. Loop thread. */
#pragma once

#include "daemon/session/request.h"

extern const struct fa_request_kind fa_pages_attend_kind;
