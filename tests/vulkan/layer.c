/*
 * A Vulkan layer, VK_LAYER_FAD_test, between fad and a real driver: it forwards calls, and makes those fail that
 * a test's page says (page.h). It knows one instance and one device, as fad has.
 */
#include "tests/vulkan/page.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define VK_NO_PROTOTYPES
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static struct fa_test_vulkan_page *page;

VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *version);

/* FAD_TEST_VULKAN_GPU: for tests that know no page, the device is a GPU as NVIDIA's. */
static struct fa_test_vulkan_page gpu = { .pins_for_writing = 1, .is_gpu = 1 };

static void open_page(void)
{
	const char *path = getenv("FAD_TEST_VULKAN_PAGE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *mapped;

	if (getenv("FAD_TEST_VULKAN_GPU"))
		page = &gpu;
	if (fd < 0)
		return;
	mapped = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (mapped != MAP_FAILED)
		page = mapped;
}

/* Returns the result that the call is to have; VK_SUCCESS: it is forwarded. */
static VkResult fault(enum fa_test_vulkan_call call)
{
	struct fa_test_vulkan_rule *rule;

	if (!page)
		return VK_SUCCESS;
	rule = &page->rules[call];
	atomic_fetch_add(&rule->n_calls, 1);
	if (atomic_load(&rule->skip) > 0) {
		atomic_fetch_sub(&rule->skip, 1);
		return VK_SUCCESS;
	}
	if (atomic_load(&rule->times) == 0)
		return VK_SUCCESS;
	atomic_fetch_sub(&rule->times, 1);
	atomic_fetch_add(&rule->n_failed, 1);
	return (VkResult)atomic_load(&rule->result);
}

static bool is_mapped_for_writing(const void *address)
{
	FILE *file = fopen("/proc/self/maps", "re");
	uintptr_t at = (uintptr_t)address, start, end;
	char line[512], access[8];
	bool found = false;

	while (file && !found && fgets(line, sizeof(line), file))
		found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &start, &end, access) == 3 &&
		        start <= at && at < end;
	if (file)
		(void)fclose(file);
	return found && access[1] == 'w';
}

static const void *imported(const VkMemoryAllocateInfo *info)
{
	for (const VkBaseInStructure *next = info->pNext; next; next = next->pNext)
		if (next->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT)
			return ((const VkImportMemoryHostPointerInfoEXT *)next)->pHostPointer;
	return NULL;
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice device, const VkMemoryAllocateInfo *info,
                                               const VkAllocationCallbacks *callbacks,
                                               VkDeviceMemory *ret_memory)
{
	PFN_vkAllocateMemory next = (PFN_vkAllocateMemory)next_device(device, "vkAllocateMemory");
	const void *host = imported(info);
	VkResult result = fault(FA_TEST_VULKAN_ALLOCATE);

	if (page && page->pins_for_writing && host && !is_mapped_for_writing(host))
		page->no_imports = 1;
	if (page && page->no_imports && host)
		result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
	return result == VK_SUCCESS ? next(device, info, callbacks, ret_memory) : result;
}

static VKAPI_ATTR VkResult VKAPI_CALL compile(VkDevice device, VkPipelineCache cache, uint32_t n,
                                              const VkComputePipelineCreateInfo *infos,
                                              const VkAllocationCallbacks *callbacks,
                                              VkPipeline *ret_pipelines)
{
	PFN_vkCreateComputePipelines next = (PFN_vkCreateComputePipelines)next_device(
		device, "vkCreateComputePipelines");
	VkResult result = fault(FA_TEST_VULKAN_COMPILE);

	return result == VK_SUCCESS ? next(device, cache, n, infos, callbacks, ret_pipelines)
	                            : result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_buffer(VkDevice device, const VkBufferCreateInfo *info,
                                                    const VkAllocationCallbacks *callbacks,
                                                    VkBuffer *ret_buffer)
{
	PFN_vkCreateBuffer next = (PFN_vkCreateBuffer)next_device(device, "vkCreateBuffer");
	VkBufferCreateInfo changed = *info;

	if (page && atomic_exchange(&page->mistake, 0))
		changed.size = 0;
	return next(device, &changed, callbacks, ret_buffer);
}

/* Objects that calls with others do not name. */
static VkInstance the_instance;
static VkDevice the_device;

static VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t n, const VkSubmitInfo *infos,
                                             VkFence fence)
{
	PFN_vkQueueSubmit next = (PFN_vkQueueSubmit)next_device(the_device, "vkQueueSubmit");
	VkResult result = fault(FA_TEST_VULKAN_SUBMIT);

	return result == VK_SUCCESS ? next(queue, n, infos, fence) : result;
}

static VKAPI_ATTR VkResult VKAPI_CALL wait_semaphores(VkDevice device,
                                                      const VkSemaphoreWaitInfo *info,
                                                      uint64_t timeout_ns)
{
	PFN_vkWaitSemaphores next = (PFN_vkWaitSemaphores)next_device(device, "vkWaitSemaphores");
	VkResult result = fault(FA_TEST_VULKAN_WAIT), waited;

	if (result == VK_TIMEOUT) {
		nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
		return result;
	}
	waited = next(device, info, timeout_ns);
	return result == VK_SUCCESS ? waited : result;
}

static VKAPI_ATTR void VKAPI_CALL get_properties(VkPhysicalDevice physical,
                                                 VkPhysicalDeviceProperties2 *properties)
{
	PFN_vkGetPhysicalDeviceProperties2 next = (PFN_vkGetPhysicalDeviceProperties2)next_instance(
		the_instance, "vkGetPhysicalDeviceProperties2");

	next(physical, properties);
	if (!page || !page->is_gpu)
		return;
	properties->properties.deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
	for (VkBaseOutStructure *more = properties->pNext; more; more = more->pNext)
		if (more->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES)
			((VkPhysicalDeviceDriverProperties *)more)->driverID =
				VK_DRIVER_ID_NVIDIA_PROPRIETARY;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical,
                                                    const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *callbacks,
                                                    VkDevice *ret_device)
{
	VkLayerDeviceCreateInfo *link = (VkLayerDeviceCreateInfo *)info->pNext;
	PFN_vkCreateDevice next;
	VkResult result;

	while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO ||
	                link->function != VK_LAYER_LINK_INFO))
		link = (VkLayerDeviceCreateInfo *)link->pNext;
	if (!link)
		return VK_ERROR_INITIALIZATION_FAILED;
	next = (PFN_vkCreateDevice)link->u.pLayerInfo->pfnNextGetInstanceProcAddr(NULL,
	                                                                          "vkCreateDevice");
	next_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
	link->u.pLayerInfo = link->u.pLayerInfo->pNext;
	result = next(physical, info, callbacks, ret_device);
	if (result == VK_SUCCESS)
		the_device = *ret_device;
	return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
                                                      const VkAllocationCallbacks *callbacks,
                                                      VkInstance *ret_instance)
{
	VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
	PFN_vkCreateInstance next;
	VkResult result;

	while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO ||
	                link->function != VK_LAYER_LINK_INFO))
		link = (VkLayerInstanceCreateInfo *)link->pNext;
	if (!link)
		return VK_ERROR_INITIALIZATION_FAILED;
	open_page();
	next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
	link->u.pLayerInfo = link->u.pLayerInfo->pNext;
	next = (PFN_vkCreateInstance)next_instance(NULL, "vkCreateInstance");
	result = next(info, callbacks, ret_instance);
	if (result == VK_SUCCESS)
		the_instance = *ret_instance;
	return result;
}

static PFN_vkVoidFunction get_device(VkDevice device, const char *name);
static PFN_vkVoidFunction get_instance(VkInstance instance, const char *name);

static PFN_vkVoidFunction own(const char *name)
{
	static const struct {
		const char *name;
		PFN_vkVoidFunction function;
	} functions[] = {
		{ "vkAllocateMemory", (PFN_vkVoidFunction)allocate },
		{ "vkCreateBuffer", (PFN_vkVoidFunction)create_buffer },
		{ "vkCreateComputePipelines", (PFN_vkVoidFunction)compile },
		{ "vkCreateDevice", (PFN_vkVoidFunction)create_device },
		{ "vkCreateInstance", (PFN_vkVoidFunction)create_instance },
		{ "vkGetDeviceProcAddr", (PFN_vkVoidFunction)get_device },
		{ "vkGetInstanceProcAddr", (PFN_vkVoidFunction)get_instance },
		{ "vkGetPhysicalDeviceProperties2", (PFN_vkVoidFunction)get_properties },
		{ "vkQueueSubmit", (PFN_vkVoidFunction)submit },
		{ "vkWaitSemaphores", (PFN_vkVoidFunction)wait_semaphores },
	};

	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (strcmp(functions[i].name, name) == 0)
			return functions[i].function;
	return NULL;
}

static PFN_vkVoidFunction get_device(VkDevice device, const char *name)
{
	PFN_vkVoidFunction function = own(name);

	return function ? function : next_device(device, name);
}

static PFN_vkVoidFunction get_instance(VkInstance instance, const char *name)
{
	PFN_vkVoidFunction function = own(name);

	return function ? function : next_instance(instance, name);
}

__attribute__((visibility("default"))) VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *version)
{
	version->loaderLayerInterfaceVersion = 2;
	version->pfnGetInstanceProcAddr = get_instance;
	version->pfnGetDeviceProcAddr = get_device;
	version->pfnGetPhysicalDeviceProcAddr = NULL;
	return VK_SUCCESS;
}
