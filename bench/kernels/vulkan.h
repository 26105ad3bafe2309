/*
 * What the programs that time Vulkan kernels share: a device of the Vulkan backend, without the daemon, and a
 * command buffer for its queue. Failures print a sentence and end the process.
 */
#pragma once

#include "daemon/backend/vulkan/device.h"

struct vulkan {
	struct fa_device *device;
	VkCommandPool pool;
	VkCommandBuffer command;
};

void __attribute__((noreturn)) vulkan_die(const char *what, const char *why);
void vulkan_must(VkResult result, const char *what);

/* Opens the device and prints its name. Returns false, having said why, if there is none. */
bool vulkan_open(struct vulkan *ret_vulkan);

/* Empties the command buffer and begins to record. */
void vulkan_begin(const struct vulkan *vulkan);
