/* Plans paged works. Loop thread. */
#pragma once

#include "daemon/backend/cuda/paged_work.h"

int fa_cuda_paged_cache_check(struct fa_device *device, const struct fa_paged_cache *cache,
                              struct fa_error *error);
int fa_cuda_paged_prepare(struct fa_device *device, struct fa_device_work *work,
                          struct fa_error *error);
void fa_cuda_paged_release(struct fa_device *device, struct fa_device_work *work);
