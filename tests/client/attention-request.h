/*
 * Cases of tests/lib/attention.h as requests of libfaclient.
 */
#pragma once

#include "client/faclient.h"
#include "tests/lib/attention.h"

/* All tensors lie in @buffer from byte 0; the request points into @attention. */
struct fa_attention fa_case_attention(const struct fa_case *attention, struct fa_buffer *buffer);
