/* Refuses requests that write memory which they use otherwise. Pure functions, any thread. */
#pragma once

#include "common/error.h"
#include "daemon/backend/device.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>

/* A tensor of a request; view->rank 0: there is none. */
struct fa_tensor_use {
	const char *name;
	const struct fa_wire_view *view;
	const struct fa_device_memory *memory;
	bool written;
};

/* @uses are checked views. Returns -EINVAL if one that is written shares memory with another, also
 * through another buffer of the same file or device memory. */
int fa_tensor_uses_check(const struct fa_tensor_use *uses, size_t n, struct fa_error *error);
