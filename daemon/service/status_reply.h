/*
 * Answers Status. A worker writes a long one, as all clients would wait for it, while the session is
 * paused. Loop thread.
 */
#pragma once

#include "daemon/session/call.h"

int fa_status_reply(struct fa_call *call, struct fa_error *error);
