/*
 * Checks tensor views against the memory of their buffers, and attention requests
 * against themselves, and turns them into kernel parameters. Pure functions of
 * bytes that nobody else can write: whatever a message says, parameters that come
 * out address memory inside its buffers only. Any thread.
 */
#pragma once

#include "common/error.h"
#include "daemon/backend/device.h"
#include "kernels/attention.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* Tokens of one sequence: bounds the time of one tile, which nothing interrupts. */
#define FA_VIEW_TOKENS_MAX (1 << 24)
/* Sequences of a batch, ragged or not. */
#define FA_VIEW_BATCH_MAX FA_WIRE_SEQUENCES_MAX

enum fa_tensor_view_index {
	FA_VIEW_Q,
	FA_VIEW_K,
	FA_VIEW_V,
	FA_VIEW_OUT,
	FA_VIEW_LSE,
	_FA_VIEW_N,
};

const char *fa_tensor_view_name(enum fa_tensor_view_index index);
const struct fa_wire_view *fa_tensor_view_of(const struct fa_wire_attention *attention,
                                             enum fa_tensor_view_index index);

/* Bytes of an element; 0 for a dtype that does not exist. */
unsigned int fa_tensor_view_dtype_bytes(unsigned int dtype);

/*
 * Checks that every element of @view lies in @memory, is aligned, and that the
 * inner stride is 1 and none is negative. If @output: that the memory is writable
 * and no two elements are the same. @name is for the sentence. -EINVAL, -ENOTSUP.
 */
int fa_tensor_view_check(const struct fa_wire_view *view, const char *name, bool output,
                         const struct fa_device_memory *memory, struct fa_error *error);

/*
 * The stride of dimension @i of a checked view, for kernels: one that no element is reached
 * by may be any number; as 0 it cannot make their arithmetic overflow.
 */
int64_t fa_tensor_view_stride(const struct fa_wire_view *view, unsigned int i);

/*
 * Checks the whole request. @memories are those of the views' buffers; LSE's is
 * not looked at if there is no LSE. cu_seqlens, slopes and sinks of @ret_params
 * point into @attention. Whether a kernel covers it is not this function's affair.
 * -EINVAL, -ENOTSUP, with a sentence that names field, value and bound.
 */
int fa_attention_bind(const struct fa_wire_attention *attention,
                      const struct fa_device_memory *const memories[_FA_VIEW_N],
                      struct fa_attention_params *ret_params, struct fa_error *error);
