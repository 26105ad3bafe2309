/* StreamCreate, StreamFree, Cancel and Marker. Loop thread. */
#pragma once

#include "daemon/session/call.h"

fa_call_handler fa_handle_stream_create;
fa_call_handler fa_handle_stream_free;
fa_call_handler fa_handle_cancel;
fa_call_handler fa_handle_marker;
