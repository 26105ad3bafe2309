/* GPU memory of streams. It grows by replacement; the old memory, which works in flight may use, is
 * freed at close. Engine thread. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* @stream zeroes the first @zero_bytes. */
CUresult fa_cuda_scratch_alloc(struct fa_device *device, CUstream stream, size_t bytes,
                               size_t zero_bytes, CUdeviceptr *ret_at);
/* Grows the scratch to @bytes. It begins with kernels' counters. */
CUresult fa_cuda_scratch_grow(struct fa_device *device, struct fa_cuda_stream *stream,
                              size_t bytes);
void fa_cuda_scratch_free_all(struct fa_device *device);
