/*
 * A device may flush subnormals, assume that there is no NaN, and round as it likes, unless a kernel asks for
 * more by execution modes. Devices differ in which of these they know, so the modes are added to the SPIR-V
 * when it is loaded.
 */
#include "daemon/backend/vulkan/shader.h"

#include <stdlib.h>
#include <string.h>

/* Of the SPIR-V specification. */
enum {
	HEADER_WORDS = 5,
	OP_ENTRY_POINT = 15,
	OP_EXECUTION_MODE = 16,
	OP_CAPABILITY = 17,
	BITS = 32, /* of the numbers that modes are for */
};

static const struct mode {
	enum fa_vk_float_mode bit;
	uint32_t capability, mode;
} modes[] = {
	{ FA_VK_FLOAT_DENORM_PRESERVE, 4464, 4459 },
	{ FA_VK_FLOAT_NAN_PRESERVE, 4466, 4461 },
	{ FA_VK_FLOAT_ROUND_TO_EVEN, 4467, 4462 },
};
#define N_MODES (sizeof(modes) / sizeof(modes[0]))

void fa_vk_float_modes_find(struct fa_device *device)
{
	VkPhysicalDeviceVulkan12Properties twelve = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES,
	};
	VkPhysicalDeviceProperties2 properties = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
		.pNext = &twelve,
	};

	device->driver.GetPhysicalDeviceProperties2(device->physical, &properties);
	device->float_modes =
		(twelve.shaderDenormPreserveFloat32 ? FA_VK_FLOAT_DENORM_PRESERVE : 0) |
		(twelve.shaderSignedZeroInfNanPreserveFloat32 ? FA_VK_FLOAT_NAN_PRESERVE : 0) |
		(twelve.shaderRoundingModeRTEFloat32 ? FA_VK_FLOAT_ROUND_TO_EVEN : 0);
}

/* Adds modes to a module of one entry point, as capabilities at its beginning and as execution modes before its
 * own. Returns the number of words. */
static size_t add_modes(const struct fa_device *device, const struct fa_vulkan_code *code,
                        uint32_t *words)
{
	const size_t n_words = code->bytes / sizeof(uint32_t);
	uint32_t entry_point = 0;
	size_t n = HEADER_WORDS;
	bool added = false;

	memcpy(words, code->words, HEADER_WORDS * sizeof(uint32_t));
	for (size_t i = 0; i < N_MODES; i++) {
		if (!(device->float_modes & modes[i].bit))
			continue;
		words[n++] = 2u << 16 | OP_CAPABILITY;
		words[n++] = modes[i].capability;
	}
	for (size_t at = HEADER_WORDS, length; at < n_words; at += length) {
		const uint32_t op = code->words[at] & 0xffff;

		length = code->words[at] >> 16;
		if (op == OP_ENTRY_POINT)
			entry_point = code->words[at + 2];
		for (size_t i = 0; op == OP_EXECUTION_MODE && !added && i < N_MODES; i++) {
			if (!(device->float_modes & modes[i].bit))
				continue;
			words[n++] = 4u << 16 | OP_EXECUTION_MODE;
			words[n++] = entry_point;
			words[n++] = modes[i].mode;
			words[n++] = BITS;
		}
		added = added || op == OP_EXECUTION_MODE;
		memcpy(words + n, code->words + at, length * sizeof(uint32_t));
		n += length;
	}
	return n;
}

VkResult fa_vk_shader_new(struct fa_device *device, const struct fa_vulkan_code *code,
                          VkShaderModule *ret_module)
{
	uint32_t *words = malloc(code->bytes + N_MODES * 6 * sizeof(uint32_t));
	VkShaderModuleCreateInfo module = {
		.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
		.pCode = words,
	};
	VkResult result;

	if (!words)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	module.codeSize = add_modes(device, code, words) * sizeof(uint32_t);
	result = device->driver.CreateShaderModule(device->device, &module, NULL, ret_module);
	free(words);
	return result;
}
