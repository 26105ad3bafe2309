/* Opens a Vulkan device: instance, physical device, what it must have, queue. Loop thread. */
#pragma once

#include "daemon/backend/vulkan/device.h"

/* Opens the device that config.device names. -ENXIO: there is none. On an error, the caller calls
 * fa_vk_context_close(). */
int fa_vk_context_open(struct fa_device *device, struct fa_error *error);
void fa_vk_context_close(struct fa_device *device);
