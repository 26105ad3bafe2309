/* GPU memory of streams. To grow, it is replaced; works in flight may still use the old memory, so
 * that is freed at close. The engine thread calls these functions. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* @stream zeroes the first @zero_bytes. */
CUresult fa_cuda_scratch_alloc(struct fa_device *device, CUstream stream, size_t bytes,
                               size_t zero_bytes, CUdeviceptr *ret_at);
/* Grows the stream's scratch, which begins with kernels' counters, to at least @bytes. */
CUresult fa_cuda_scratch_grow(struct fa_device *device, struct fa_cuda_stream *stream,
                              size_t bytes);
void fa_cuda_scratch_free_all(struct fa_device *device);
