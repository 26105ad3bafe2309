/* Time estimates of works. They err on the high side, because a long work that passes for a short
 * one holds up all others (quiesce.h). */
#pragma once

#include "daemon/backend/cuda/device.h"

/* @plan: the request's plan, if it is an attention. */
double fa_cuda_cost_paged_ns(const struct fa_device *device, const struct fa_paged_request *request,
                             const struct fa_cuda_paged_plan *plan);
/* Returns how long a prepared work takes, or 0 if it is not long. */
uint64_t fa_cuda_cost_long_ns(const struct fa_device *device, const struct fa_device_work *work);
