/* Copies between the pool and clients' memory. Engine thread. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Takes works of FA_DEVICE_COPY. Returns 0 or the work's status. */
int fa_cuda_copy_enqueue(struct fa_device *device, struct fa_cuda_stream *stream,
                         struct fa_device_work *work);
