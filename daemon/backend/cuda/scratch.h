/* GPU memory of streams. To grow, it is replaced by larger memory; works in flight may still use
 * the old memory, so that is freed at close. The engine thread calls these functions. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Allocates memory, of which @stream zeroes the first @zero_bytes. */
CUresult fa_cuda_scratch_alloc(struct fa_device *device, CUstream stream, size_t bytes,
                               size_t zero_bytes, CUdeviceptr *ret_at);
void fa_cuda_scratch_free_all(struct fa_device *device);
