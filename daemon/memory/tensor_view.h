/*
 * Makes kernel parameters of attention requests, checked so that they address only the request's
 * buffers. Pure functions; any thread.
 */
#pragma once

#include "common/error.h"
#include "daemon/backend/device.h"
#include "kernels/attention.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* Bounds the time of a tile, which cannot be preempted. */
#define FA_VIEW_TOKENS_MAX (1 << 24)
#define FA_VIEW_BATCH_MAX FA_WIRE_SEQUENCES_MAX

enum fa_tensor_view_index {
	FA_VIEW_Q,
	FA_VIEW_K,
	FA_VIEW_V,
	FA_VIEW_OUT,
	FA_VIEW_LSE, /* this and what follows are optional */
	FA_VIEW_BLOCK_OFFSETS,
	FA_VIEW_BLOCK_COLUMNS,
	FA_VIEW_MASK,
	FA_VIEW_Q_SCALES,
	FA_VIEW_K_SCALES,
	FA_VIEW_V_SCALES,
	_FA_VIEW_N,
};

const char *fa_tensor_view_name(enum fa_tensor_view_index index);
const struct fa_wire_view *fa_tensor_view_of(const struct fa_wire_attention *attention,
                                             enum fa_tensor_view_index index);

/* @dtype: enum fa_wire_dtype. 0: unknown. */
unsigned int fa_tensor_view_dtype_bytes(unsigned int dtype);

/*
 * Checks bounds, alignment, strides (the inner one is 1, none negative) and dtype (fp32, fp16 or
 * bf16); for an @output that memory is writable and elements do not overlap. -EINVAL, -ENOTSUP.
 */
int fa_tensor_view_check(const struct fa_wire_view *view, const char *name, bool output,
                         const struct fa_device_memory *memory, struct fa_error *error);

/* The same for any @dtype. */
int fa_tensor_view_check_dtype(const struct fa_wire_view *view, const char *name,
                               enum fa_wire_dtype dtype, bool output,
                               const struct fa_device_memory *memory, struct fa_error *error);

/* 0 if no element uses it: the view may have any number. */
int64_t fa_tensor_view_stride(const struct fa_wire_view *view, unsigned int i);

/* Slopes are finite, sinks finite or -infinity. Arrays may be NULL. -EINVAL. */
int fa_tensor_view_check_heads(const float *alibi_slopes, const float *sinks, size_t heads,
                               struct fa_error *error);
/* @n: given, @expected: sequences. -EINVAL. */
int fa_tensor_view_check_prefixes(size_t n, size_t expected, bool causal, struct fa_error *error);
/* Kernels take a signed number. */
int64_t fa_tensor_view_chunk(uint64_t chunk_tokens);
/* Stores a message's pattern for kernels, which check it: numbers above INT32_MAX become negative. */
#define fa_tensor_view_pattern(message)                                                            \
	((struct fa_attention_pattern){                                                            \
		.block_tokens = (int32_t)(message)->pattern_block_tokens,                          \
		.local_blocks = (int32_t)(message)->pattern_local_blocks,                          \
		.vert_stride = (int32_t)(message)->pattern_vert_stride,                            \
		.head_step = (message)->pattern_head_step,                                         \
		.first_head = (int32_t)(message)->pattern_first_head,                              \
	})

/*
 * Checks a whole request, except that a kernel supports it. Arrays of @ret_params point into
 * @attention. The memories of optional tensors that are absent may be NULL. -EINVAL, -ENOTSUP, with field, value and bound.
 */
int fa_attention_bind(const struct fa_wire_attention *attention,
                      const struct fa_device_memory *const memories[_FA_VIEW_N],
                      struct fa_attention_params *ret_params, struct fa_error *error);
