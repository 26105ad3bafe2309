/* Loads the built kernels, and says what they cover. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Kernels over tensors that the chip can run. */
int fa_cuda_kernels_load(struct fa_device *device, struct fa_error *error);
/* Kernels over pages, unless loaded; a build may lack them. */
int fa_cuda_paged_kernels_load(struct fa_device *device, struct fa_error *error);
void fa_cuda_kernels_unload(struct fa_device *device);

/* Function of the backend table. */
int fa_cuda_check(struct fa_device *device, const struct fa_attention_params *params,
                  struct fa_error *error);
