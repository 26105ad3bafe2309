/* Compiled kernels. Opened by the loop thread, used by the device's. */
#pragma once

#include "daemon/backend/vulkan/device.h"

int fa_vk_pipelines_open(struct fa_device *device, struct fa_error *error);
void fa_vk_pipelines_close(struct fa_device *device);

/* Returns the kernel of a dispatch, which is compiled if it is new. */
int fa_vk_pipeline_find(struct fa_device *device, const struct fa_vulkan_dispatch *dispatch,
                        struct fa_error *error, VkPipeline *ret_pipeline);
