/* Plans works, and writes what their kernels read. The loop thread calls these functions. */
#pragma once

#include "daemon/backend/vulkan/device.h"

int fa_vk_attention_prepare(struct fa_device *device, struct fa_device_work *work,
                            struct fa_error *error);
/* Also checks the requests. */
int fa_vk_paged_prepare(struct fa_device *device, struct fa_device_work *work,
                        struct fa_error *error);
void fa_vk_release(struct fa_device *device, struct fa_device_work *work);

/* -ENOTSUP: a row sees more keys than this device can attend to. */
int fa_vk_check_keys(const struct fa_device *device, int64_t n_k, int32_t head_dim,
                     int32_t head_dim_v, struct fa_error *error);
