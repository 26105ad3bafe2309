/* Stands for the Vulkan backend in a build that has none. */
#include "daemon/backend/device.h"

#include <errno.h>

static int none_open(const struct fa_device_config *config, struct fa_error *error,
                     struct fa_device **ret_device)
{
	return fa_fail(
		error, -ENOTSUP,
		"this fad was built without the Vulkan backend (-Dvulkan=enabled, which needs "
		"glslangValidator and libvulkan-dev)");
}

const struct fa_device_ops fa_device_vulkan = {
	.name = "vulkan",
	.open = none_open,
};
