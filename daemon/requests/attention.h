/* The message for attention without a KV cache. Loop thread. */
#pragma once

#include "daemon/session/request.h"

extern const struct fa_request_kind fa_attention_kind;
