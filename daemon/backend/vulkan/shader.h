/* Loads kernels with the numbers that they want: subnormals, NaN and rounding as IEEE 754 has them, where the
 * device can. */
#pragma once

#include "daemon/backend/vulkan/device.h"

/* Learns what the device can do; before any shader is loaded. */
void fa_vk_float_modes_find(struct fa_device *device);
VkResult fa_vk_shader_new(struct fa_device *device, const struct fa_vulkan_code *code,
                          VkShaderModule *ret_module);
