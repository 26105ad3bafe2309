/*
 * Vulkan's functions, found at run time: the program needs no libvulkan, and no driver, unless this
 * backend is chosen. The loader's library stays open, because drivers keep threads and handlers in it.
 */
#pragma once

#include "common/error.h"

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

/* Functions of an instance, and of a device. */
#define FA_VK_INSTANCE(X)                                                                          \
	X(CreateDevice)                                                                            \
	X(DestroyInstance)                                                                         \
	X(EnumerateDeviceExtensionProperties)                                                      \
	X(EnumeratePhysicalDevices)                                                                \
	X(GetDeviceProcAddr)                                                                       \
	X(GetPhysicalDeviceExternalBufferProperties)                                               \
	X(GetPhysicalDeviceFeatures2)                                                              \
	X(GetPhysicalDeviceMemoryProperties)                                                       \
	X(GetPhysicalDeviceProperties2)                                                            \
	X(GetPhysicalDeviceQueueFamilyProperties)

/* What a device may lack. */
#define FA_VK_OPTIONAL(X) X(GetMemoryFdKHR)

#define FA_VK_DEVICE(X)                                                                            \
	X(AllocateCommandBuffers)                                                                  \
	X(AllocateMemory)                                                                          \
	X(BeginCommandBuffer)                                                                      \
	X(BindBufferMemory)                                                                        \
	X(CmdBindPipeline)                                                                         \
	X(CmdCopyBuffer)                                                                           \
	X(CmdDispatch)                                                                             \
	X(CmdPipelineBarrier)                                                                      \
	X(CmdPushConstants)                                                                        \
	X(CmdUpdateBuffer)                                                                         \
	X(CreateBuffer)                                                                            \
	X(CreateCommandPool)                                                                       \
	X(CreateComputePipelines)                                                                  \
	X(CreatePipelineLayout)                                                                    \
	X(CreateSemaphore)                                                                         \
	X(CreateShaderModule)                                                                      \
	X(DestroyBuffer)                                                                           \
	X(DestroyCommandPool)                                                                      \
	X(DestroyDevice)                                                                           \
	X(DestroyPipeline)                                                                         \
	X(DestroyPipelineLayout)                                                                   \
	X(DestroySemaphore)                                                                        \
	X(DestroyShaderModule)                                                                     \
	X(DeviceWaitIdle)                                                                          \
	X(EndCommandBuffer)                                                                        \
	X(FreeMemory)                                                                              \
	X(GetBufferDeviceAddress)                                                                  \
	X(GetBufferMemoryRequirements)                                                             \
	X(GetDeviceQueue)                                                                          \
	X(GetMemoryHostPointerPropertiesEXT)                                                       \
	X(GetSemaphoreCounterValue)                                                                \
	X(MapMemory)                                                                               \
	X(QueueSubmit)                                                                             \
	X(ResetCommandPool)                                                                        \
	X(WaitSemaphores)

struct fa_vk_driver {
	PFN_vkGetInstanceProcAddr get;
	PFN_vkCreateInstance CreateInstance;
	PFN_vkEnumerateInstanceVersion EnumerateInstanceVersion;
#define FA_VK_FIELD(name) PFN_vk##name name;
	FA_VK_INSTANCE(FA_VK_FIELD)
	FA_VK_DEVICE(FA_VK_FIELD)
	FA_VK_OPTIONAL(FA_VK_FIELD)
#undef FA_VK_FIELD
};

/* Opens the loader. -ENOENT: there is none; *ret_driver then has no functions. */
int fa_vk_driver_open(struct fa_vk_driver *ret_driver, struct fa_error *error);

/* Find the functions of an instance, and then those of a device. -ENOTSUP names what is missing. */
int fa_vk_driver_load_instance(struct fa_vk_driver *driver, VkInstance instance,
                               struct fa_error *error);
int fa_vk_driver_load_device(struct fa_vk_driver *driver, VkDevice device, struct fa_error *error);

/* Return the name of an error, and the errno that is nearest to it. */
const char *fa_vk_error_name(VkResult result);
int fa_vk_error(VkResult result);
