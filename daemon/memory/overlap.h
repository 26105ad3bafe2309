/* Refuses requests that write memory which they also read, or write elsewhere. Pure functions, any
 * thread. */
#pragma once

#include "common/error.h"
#include "daemon/backend/device.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>

/* If view->rank is 0, there is no tensor. */
struct fa_tensor_use {
	const char *name;
	const struct fa_wire_view *view;
	const struct fa_device_memory *memory;
	bool written;
};

/* @uses are checked views. -EINVAL: one that is written shares memory with another, also through
 * another buffer of the same file or device memory. */
int fa_tensor_uses_check(const struct fa_tensor_use *uses, size_t n, struct fa_error *error);

#define FA_TENSOR_OUTPUTS_MAX 512

/* Returns true if two of the tensors, all written, share memory, and which. @uses: at most
 * FA_TENSOR_OUTPUTS_MAX checked views with elements. Tensors interleaved in so many ways that an
 * answer would take long count as sharing. */
bool fa_tensor_outputs_overlap(const struct fa_tensor_use *uses, size_t n, size_t *ret_a,
                               size_t *ret_b);
