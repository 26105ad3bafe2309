/*
 * GPU memory of streams that grows: works in flight may still use what a larger one replaces, so
 * nothing is freed before the device is closed. The engine thread's.
 */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Allocates @bytes, of which @stream zeroes the first @zero_bytes. */
CUresult fa_cuda_scratch_alloc(struct fa_device *device, CUstream stream, size_t bytes,
                               size_t zero_bytes, CUdeviceptr *ret_at);
void fa_cuda_scratch_free_all(struct fa_device *device);
