/* Hello and Ping. Loop thread. */
#pragma once

#include "daemon/session/call.h"

fa_call_handler fa_handle_hello;
fa_call_handler fa_handle_ping;
