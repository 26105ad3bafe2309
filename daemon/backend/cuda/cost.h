/* Estimates of works' times. They err on the high side: a long work that passes for a short one
 * holds up all others. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* @plan: the plan of an attention. */
double fa_cuda_cost_paged_ns(const struct fa_device *device, const struct fa_paged_request *request,
                             const struct fa_cuda_paged_plan *plan);
/* 0: the work is not long. */
uint64_t fa_cuda_cost_long_ns(const struct fa_device *device, const struct fa_device_work *work);
