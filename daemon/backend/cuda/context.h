/* The CUDA context, failed calls, and device loss: after a sticky error only a new process can use
 * the GPU. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Each thread calls it before the driver. */
CUresult fa_cuda_enter(struct fa_device *device);

/* Also notifies the engine. Any thread. */
void fa_cuda_lose(struct fa_device *device, const char *why);
bool fa_cuda_is_lost(struct fa_device *device);

/* Turns a failed call on @stream, or on none, into an errno and a sentence. Returns -ENODEV if, and
 * only if, the driver says that the device is lost. */
int fa_cuda_fail(struct fa_device *device, CUstream stream, struct fa_error *error, CUresult result,
                 const char *doing);
