#include "bench/kernels/vulkan.h"

#include "daemon/backend/vulkan/blob.h"

#include <stdio.h>
#include <stdlib.h>

void vulkan_die(const char *what, const char *why)
{
	printf("%s: %s\n", what, why);
	(void)fflush(stdout);
	_Exit(2);
}

void vulkan_must(VkResult result, const char *what)
{
	if (result != VK_SUCCESS)
		vulkan_die(what, fa_vk_error_name(result));
}

static void on_notify(void *userdata)
{
}

bool vulkan_open(struct vulkan *ret_vulkan)
{
	const struct fa_device_config config = { .notify = on_notify };
	VkCommandPoolCreateInfo pool = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO };
	VkCommandBufferAllocateInfo commands = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
		.commandBufferCount = 1,
	};
	struct fa_error error = { "" };
	struct fa_device_info info;
	struct fa_device *device;

	if (fa_device_vulkan.open(&config, &error, &device) < 0) {
		printf("skipped: %s\n", error.text);
		return false;
	}
	fa_device_vulkan.describe(device, &info);
	printf("%s: %s\n", info.name, info.details);
	ret_vulkan->device = device;
	pool.queueFamilyIndex = device->family;
	vulkan_must(
		device->driver.CreateCommandPool(device->device, &pool, NULL, &ret_vulkan->pool),
		"pool");
	commands.commandPool = ret_vulkan->pool;
	vulkan_must(device->driver.AllocateCommandBuffers(device->device, &commands,
	                                                  &ret_vulkan->command),
	            "commands");
	return true;
}

void vulkan_begin(const struct vulkan *vulkan)
{
	const struct fa_device *d = vulkan->device;
	const VkCommandBufferBeginInfo info = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
	};

	vulkan_must(d->driver.ResetCommandPool(d->device, vulkan->pool, 0), "reset");
	vulkan_must(d->driver.BeginCommandBuffer(vulkan->command, &info), "begin");
}
