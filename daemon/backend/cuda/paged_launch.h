/* Launches paged works. Engine thread. */
#pragma once

#include "daemon/backend/cuda/paged_work.h"

int fa_cuda_paged_enqueue(struct fa_device *device, struct fa_cuda_stream *stream,
                          struct fa_device_work *work);
bool fa_cuda_paged_can_wait(const struct fa_device_work *work);
