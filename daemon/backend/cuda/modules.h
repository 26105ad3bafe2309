/* Loads the modules of device code. */
#pragma once

#include "daemon/backend/cuda/device.h"

int fa_cuda_kernels_load(struct fa_device *device, struct fa_error *error);
/* A build may lack them. */
int fa_cuda_paged_kernels_load(struct fa_device *device, struct fa_error *error);
void fa_cuda_kernels_unload(struct fa_device *device);

int fa_cuda_rewrite(struct fa_device *device, struct fa_attention_params *params,
                    uint32_t **ret_lengths, struct fa_error *error);
int fa_cuda_check(struct fa_device *device, const struct fa_attention_params *params,
                  struct fa_error *error);
