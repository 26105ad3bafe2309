#include "daemon/backend/vulkan/matrices.h"

#include <stdlib.h>
#include <string.h>

#define EXTENSIONS_MAX 8

/* Subgroup operations that kernels use. */
#define OPERATIONS                                                                                 \
	(VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT |                            \
	 VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT)

struct extensions {
	bool matrix, bfloat16;
};

static struct extensions find_extensions(const struct fa_device *device)
{
	struct extensions found = { false, false };
	VkExtensionProperties *all = NULL;
	uint32_t n = 0;

	if (device->driver.EnumerateDeviceExtensionProperties(device->physical, NULL, &n, NULL) ==
	    VK_SUCCESS)
		all = calloc(n + 1, sizeof(*all));
	if (!all || device->driver.EnumerateDeviceExtensionProperties(device->physical, NULL, &n,
	                                                              all) != VK_SUCCESS)
		n = 0;
	for (uint32_t i = 0; i < n; i++) {
		found.matrix = found.matrix ||
		               strcmp(all[i].extensionName,
		                      VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME) == 0;
		found.bfloat16 = found.bfloat16 ||
		                 strcmp(all[i].extensionName,
		                        VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME) == 0;
	}
	free(all);
	return found;
}

/* Returns which types of matrices kernels may have, before any shape is known. */
static struct extensions find_features(const struct fa_device *device, struct extensions present)
{
	VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
	};
	VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
		.pNext = present.bfloat16 ? &bfloat16 : NULL,
	};
	VkPhysicalDeviceVulkan13Features thirteen = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
		.pNext = &matrix,
	};
	VkPhysicalDeviceVulkan12Features twelve = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
		.pNext = &thirteen,
	};
	VkPhysicalDeviceFeatures2 features = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
		.pNext = &twelve,
	};

	device->driver.GetPhysicalDeviceFeatures2(device->physical, &features);
	present.matrix = matrix.cooperativeMatrix && twelve.shaderFloat16 &&
	                 twelve.vulkanMemoryModel && thirteen.computeFullSubgroups &&
	                 thirteen.subgroupSizeControl && thirteen.maintenance4;
	present.bfloat16 = present.bfloat16 && bfloat16.shaderBFloat16Type &&
	                   bfloat16.shaderBFloat16CooperativeMatrix;
	return present;
}

/* Returns the size of subgroups that kernels with matrices get, or 0 if they cannot run. */
static uint32_t find_subgroup(struct fa_device *device)
{
	VkPhysicalDeviceCooperativeMatrixPropertiesKHR matrix = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_KHR,
	};
	VkPhysicalDeviceVulkan13Properties thirteen = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES,
		.pNext = &matrix,
	};
	VkPhysicalDeviceVulkan11Properties eleven = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES,
		.pNext = &thirteen,
	};
	VkPhysicalDeviceProperties2 properties = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
		.pNext = &eleven,
	};

	device->driver.GetPhysicalDeviceProperties2(device->physical, &properties);
	if (!(matrix.cooperativeMatrixSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) ||
	    (eleven.subgroupSupportedOperations & OPERATIONS) != OPERATIONS)
		return 0;
	if (thirteen.minSubgroupSize == thirteen.maxSubgroupSize)
		return eleven.subgroupSize;
	device->sets_subgroup = true;
	return thirteen.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT
	               ? eleven.subgroupSize
	               : 0;
}

static bool is_product(const VkCooperativeMatrixPropertiesKHR *p, VkComponentTypeKHR type)
{
	return p->AType == type && p->BType == type && p->CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
	       p->ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR && !p->saturatingAccumulation &&
	       p->scope == VK_SCOPE_SUBGROUP_KHR;
}

/* Takes the shape of @p, if it is a better one than what there is. */
static void consider(struct fa_vulkan_matrices *matrices, const VkCooperativeMatrixPropertiesKHR *p)
{
	if (!is_product(p, VK_COMPONENT_TYPE_FLOAT16_KHR) || p->MSize > 16 || p->NSize > 16 ||
	    p->KSize > 16 || matrices->subgroup % p->MSize)
		return;
	if (matrices->f16 &&
	    matrices->m * matrices->n * matrices->k >= p->MSize * p->NSize * p->KSize)
		return;
	matrices->f16 = true;
	matrices->m = p->MSize;
	matrices->n = p->NSize;
	matrices->k = p->KSize;
}

static bool has_bf16(const struct fa_vulkan_matrices *matrices,
                     const VkCooperativeMatrixPropertiesKHR *p)
{
	return is_product(p, VK_COMPONENT_TYPE_BFLOAT16_KHR) && p->MSize == matrices->m &&
	       p->NSize == matrices->n && p->KSize == matrices->k;
}

static void find_shapes(struct fa_device *device, bool bfloat16,
                        struct fa_vulkan_matrices *matrices)
{
	PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR get;
	VkCooperativeMatrixPropertiesKHR *all;
	uint32_t n = 0;

	get = (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)device->driver.get(
		device->instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
	if (!get || get(device->physical, &n, NULL) != VK_SUCCESS)
		return;
	all = calloc(n + 1, sizeof(*all));
	if (!all)
		return;
	for (uint32_t i = 0; i < n; i++)
		all[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
	if (get(device->physical, &n, all) != VK_SUCCESS)
		n = 0;
	for (uint32_t i = 0; i < n; i++)
		consider(matrices, &all[i]);
	for (uint32_t i = 0; i < n && bfloat16; i++)
		matrices->bf16 = matrices->bf16 || has_bf16(matrices, &all[i]);
	free(all);
}

void fa_vk_matrices_find(struct fa_device *device)
{
	struct fa_vulkan_matrices matrices = {
		.exact = device->is_lavapipe,
		.shared_bytes = device->properties.limits.maxComputeSharedMemorySize,
		.narrow = { .subgroups = 4, .row_tiles = 1, .keys = 32 },
		.wide = { .subgroups = 4, .row_tiles = 1, .keys = 32 },
	};
	struct extensions has = find_extensions(device);

	/* Lavapipe computes each product by hundreds of instructions, and takes minutes to compile many. */
	if (device->is_lavapipe) {
		matrices.narrow.row_tiles = 2;
		matrices.narrow.keys = 16;
		matrices.wide.keys = 8;
	}
	if (has.matrix)
		has = find_features(device, has);
	if (has.matrix)
		matrices.subgroup = find_subgroup(device);
	if (matrices.subgroup)
		find_shapes(device, has.bfloat16, &matrices);
	if (matrices.f16)
		device->matrices = matrices;
}

VkResult fa_vk_matrices_create_device(struct fa_device *device, const VkDeviceCreateInfo *info)
{
	VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
		.pNext = (void *)info->pNext,
		.shaderBFloat16Type = VK_TRUE,
		.shaderBFloat16CooperativeMatrix = VK_TRUE,
	};
	VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
		.pNext = device->matrices.bf16 ? &bfloat16 : (void *)info->pNext,
		.cooperativeMatrix = VK_TRUE,
	};
	const VkPhysicalDeviceVulkan13Features thirteen = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
		.pNext = &matrix,
		.subgroupSizeControl = VK_TRUE,
		.computeFullSubgroups = VK_TRUE,
		.maintenance4 = VK_TRUE, /* sizes of workgroups are constants */
	};
	const char *names[EXTENSIONS_MAX];
	VkDeviceCreateInfo more = *info;

	if (!device->matrices.f16 || info->enabledExtensionCount + 2 > EXTENSIONS_MAX)
		return device->driver.CreateDevice(device->physical, info, NULL, &device->device);
	for (uint32_t i = 0; i < info->enabledExtensionCount; i++)
		names[i] = info->ppEnabledExtensionNames[i];
	names[more.enabledExtensionCount++] = VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME;
	if (device->matrices.bf16)
		names[more.enabledExtensionCount++] = VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME;
	more.ppEnabledExtensionNames = names;
	more.pNext = &thirteen;
	return device->driver.CreateDevice(device->physical, &more, NULL, &device->device);
}
