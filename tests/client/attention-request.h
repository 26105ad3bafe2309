/* Turns cases of tests/lib/attention.h into requests of libfaclient. */
#pragma once

#include "client/faclient.h"
#include "tests/lib/attention.h"

/* Places all tensors in @buffer from byte 0. The request points into @attention. */
struct fa_attention fa_case_attention(const struct fa_case *attention, struct fa_buffer *buffer);
