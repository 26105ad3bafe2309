/*
 * The device's CUDA context: entering it, failed calls, and the loss of the device. A sticky error,
 * after which the driver answers every call with it, loses the device for good.
 */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Makes the context this thread's; cheap if it is. Every thread calls it before the driver. */
CUresult fa_cuda_enter(struct fa_device *device);

/* Marks the device lost for good because of @why, and notifies. Any thread. */
void fa_cuda_lose(struct fa_device *device, const char *why);
bool fa_cuda_is_lost(struct fa_device *device);

/*
 * Turns the failure of a driver call on @stream, or on a stream unrelated to the call, into an
 * errno and a sentence. Asks the driver whether the device is lost: -ENODEV if and only if it is.
 */
int fa_cuda_fail(struct fa_device *device, CUstream stream, struct fa_error *error, CUresult result,
                 const char *doing);
