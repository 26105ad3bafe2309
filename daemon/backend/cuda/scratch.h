/* GPU memory of streams, replaced by a larger one. Works in flight may still use the old one, so it
 * is freed at close. The engine thread's. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* @stream zeroes the first @zero_bytes. */
CUresult fa_cuda_scratch_alloc(struct fa_device *device, CUstream stream, size_t bytes,
                               size_t zero_bytes, CUdeviceptr *ret_at);
void fa_cuda_scratch_free_all(struct fa_device *device);
