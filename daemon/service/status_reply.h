/*
 * Answers Status. A worker writes a long one, for which all clients would wait; the session is
 * paused. Loop thread.
 */
#pragma once

#include "daemon/session/call.h"

int fa_status_reply(struct fa_call *call, struct fa_error *error);
