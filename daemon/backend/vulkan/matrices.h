/* The device's matrices, if the build's headers know them. The loop thread calls these functions. */
#pragma once

#include "daemon/backend/vulkan/device.h"

/* Finds whether kernels may use matrices, and how: sets device->matrices. */
void fa_vk_matrices_find(struct fa_device *device);

/* Makes the device, also with what matrices need. */
VkResult fa_vk_matrices_create_device(struct fa_device *device, const VkDeviceCreateInfo *info);
