#include "daemon/backend/vulkan/pipelines.h"

#include "daemon/backend/vulkan/shader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int fa_vk_pipelines_open(struct fa_device *device, struct fa_error *error)
{
	const VkPushConstantRange range = {
		.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
		.size = 2 * sizeof(uint64_t), /* arguments, number of the first workgroup */
	};
	const VkPipelineLayoutCreateInfo layout = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
		.pushConstantRangeCount = 1,
		.pPushConstantRanges = &range,
	};
	VkResult result;

	fa_vk_float_modes_find(device);
	result = device->driver.CreatePipelineLayout(device->device, &layout, NULL,
	                                             &device->layout);
	for (int i = 0; i < _FA_VULKAN_KERNEL_N && result == VK_SUCCESS; i++) {
		const struct fa_vulkan_code code = fa_vulkan_code((enum fa_vulkan_kernel)i);
		const bool wanted = i == FA_VULKAN_MATRIX_F16    ? device->matrices.f16
		                    : i == FA_VULKAN_MATRIX_BF16 ? device->matrices.bf16
		                                                 : true;

		if (wanted)
			result = fa_vk_shader_new(device, &code, &device->modules[i]);
	}
	return result == VK_SUCCESS
	               ? 0
	               : fa_vk_fail(device, error, result, "Vulkan's kernels cannot be loaded");
}

void fa_vk_pipelines_close(struct fa_device *device)
{
	for (unsigned int i = 0; i < device->n_pipelines; i++)
		device->driver.DestroyPipeline(device->device, device->pipelines[i].pipeline, NULL);
	free(device->pipelines);
	device->pipelines = NULL;
	device->n_pipelines = 0;
	for (int i = 0; i < _FA_VULKAN_KERNEL_N; i++)
		device->driver.DestroyShaderModule(device->device, device->modules[i], NULL);
	device->driver.DestroyPipelineLayout(device->device, device->layout, NULL);
}

static VkResult compile(struct fa_device *device, const struct fa_vulkan_dispatch *dispatch,
                        VkPipeline *ret_pipeline)
{
	VkSpecializationMapEntry entries[FA_VULKAN_CONSTANTS];
	const VkSpecializationInfo constants = {
		.mapEntryCount = FA_VULKAN_CONSTANTS,
		.pMapEntries = entries,
		.dataSize = sizeof(dispatch->constants),
		.pData = dispatch->constants,
	};
	const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
		.requiredSubgroupSize = device->matrices.subgroup,
	};
	const bool matrices = dispatch->kernel == FA_VULKAN_MATRIX_F16 ||
	                      dispatch->kernel == FA_VULKAN_MATRIX_BF16;
	const VkComputePipelineCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
		.stage = {
			.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
			.pNext = matrices && device->sets_subgroup ? &subgroup : NULL,
			.flags = matrices ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0,
			.stage = VK_SHADER_STAGE_COMPUTE_BIT,
			.module = device->modules[dispatch->kernel],
			.pName = "main",
			.pSpecializationInfo = &constants,
		},
		.layout = device->layout,
	};

	for (uint32_t i = 0; i < FA_VULKAN_CONSTANTS; i++)
		entries[i] = (VkSpecializationMapEntry){
			.constantID = i,
			.offset = i * (uint32_t)sizeof(uint32_t),
			.size = sizeof(uint32_t),
		};
	return device->driver.CreateComputePipelines(device->device, VK_NULL_HANDLE, 1, &info, NULL,
	                                             ret_pipeline);
}

int fa_vk_pipeline_find(struct fa_device *device, const struct fa_vulkan_dispatch *dispatch,
                        struct fa_error *error, VkPipeline *ret_pipeline)
{
	struct fa_vk_pipeline *found;
	VkPipeline pipeline;
	VkResult result;

	for (unsigned int i = 0; i < device->n_pipelines; i++) {
		found = &device->pipelines[i];
		if (found->kernel == dispatch->kernel &&
		    memcmp(found->constants, dispatch->constants, sizeof(found->constants)) == 0) {
			*ret_pipeline = found->pipeline;
			return 0;
		}
	}
	result = compile(device, dispatch, &pipeline);
	if (result != VK_SUCCESS)
		return fa_vk_fail(device, error, result, "a Vulkan kernel cannot be compiled");
	found = realloc(device->pipelines, (device->n_pipelines + 1) * sizeof(*found));
	if (!found) {
		device->driver.DestroyPipeline(device->device, pipeline, NULL);
		return fa_fail(error, -ENOMEM, "no memory for a Vulkan kernel");
	}
	device->pipelines = found;
	found += device->n_pipelines++;
	found->kernel = dispatch->kernel;
	memcpy(found->constants, dispatch->constants, sizeof(found->constants));
	found->pipeline = pipeline;
	*ret_pipeline = pipeline;
	return 0;
}
