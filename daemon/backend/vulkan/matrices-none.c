/* Stands in for matrices.c in a build without kernels that use matrices. */
#include "daemon/backend/vulkan/matrices.h"

void fa_vk_matrices_find(struct fa_device *device)
{
}

VkResult fa_vk_matrices_create_device(struct fa_device *device, const VkDeviceCreateInfo *info)
{
	return device->driver.CreateDevice(device->physical, info, NULL, &device->device);
}
