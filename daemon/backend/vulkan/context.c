#include "daemon/backend/vulkan/context.h"

#include "common/cpu.h"
#include "daemon/backend/vulkan/matrices.h"
#include "daemon/backend/vulkan/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES_MAX 16
#define FAMILIES_MAX 16
/* What kernels have of a workgroup's shared memory: attend.comp has the most. Vulkan promises 16 KiB. */
#define SHARED_BYTES (22u << 10)
/* Fills a GPU of some size; a group has 32 invocations. */
#define GPU_GROUPS 256
/* Small workgroups that read memory fill a GPU from about this many on. */
#define GPU_SPLIT_GROUPS 1024
/* Fewer keys of a part are not worth joining. */
#define SPLIT_KEYS_MIN 128

int fa_vk_fail(struct fa_device *device, struct fa_error *error, VkResult result, const char *doing)
{
	return fa_fail(error, fa_vk_error(result), "%s: %s", doing, fa_vk_error_name(result));
}

static int open_instance(struct fa_device *device, struct fa_error *error)
{
	const VkApplicationInfo application = {
		.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
		.pApplicationName = "fad",
		.apiVersion = VK_API_VERSION_1_3,
	};
	const VkInstanceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
		.pApplicationInfo = &application,
	};
	uint32_t version = 0;
	VkResult result;
	int r;

	r = fa_vk_driver_open(&device->driver, error);
	if (r < 0)
		return r == -ENOENT ? -ENXIO : r;
	result = device->driver.EnumerateInstanceVersion(&version);
	if (result != VK_SUCCESS || version < VK_API_VERSION_1_3)
		return fa_fail(error, -ENOTSUP,
		               "Vulkan's loader has version %" PRIu32 ".%" PRIu32 "; expected 1.3",
		               VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
	result = device->driver.CreateInstance(&info, NULL, &device->instance);
	if (result == VK_ERROR_INCOMPATIBLE_DRIVER)
		return fa_fail(
			error, -ENXIO,
			"Vulkan's loader finds no driver (VK_ERROR_INCOMPATIBLE_DRIVER); NVIDIA's "
			"also needs libegl1 and GLVND's libraries");
	if (result != VK_SUCCESS)
		return fa_vk_fail(device, error, result, "a Vulkan instance cannot be made");
	return fa_vk_driver_load_instance(&device->driver, device->instance, error);
}

/* ---- which device */

static unsigned int rank(VkPhysicalDeviceType type)
{
	switch (type) {
	case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
		return 0;
	case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
		return 1;
	case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
		return 2;
	case VK_PHYSICAL_DEVICE_TYPE_CPU:
		return 4;
	default:
		return 3;
	}
}

static void describe(struct fa_device *device, VkPhysicalDevice physical,
                     VkPhysicalDeviceProperties *ret_properties, uint8_t uuid[VK_UUID_SIZE],
                     char driver_name[128], bool *ret_is_lavapipe)
{
	VkPhysicalDeviceDriverProperties driver = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES,
	};
	VkPhysicalDeviceIDProperties id = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES,
		.pNext = &driver,
	};
	VkPhysicalDeviceProperties2 properties = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
		.pNext = &id,
	};

	device->driver.GetPhysicalDeviceProperties2(physical, &properties);
	*ret_properties = properties.properties;
	memcpy(uuid, id.deviceUUID, VK_UUID_SIZE);
	*ret_is_lavapipe = driver.driverID == VK_DRIVER_ID_MESA_LLVMPIPE;
	snprintf(driver_name, 128, "%.60s %.60s", driver.driverName, driver.driverInfo);
}

/* Writes a UUID as nvidia-smi does. */
static void print_uuid(const uint8_t uuid[VK_UUID_SIZE], char text[48])
{
	int n = snprintf(text, 48, "GPU-");

	for (size_t i = 0; i < VK_UUID_SIZE; i++)
		n += snprintf(text + n, 48 - (size_t)n,
		              i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

static int choose_device(struct fa_device *device, struct fa_error *error)
{
	const char *wanted = device->config.device;
	VkPhysicalDevice devices[DEVICES_MAX];
	uint32_t n = DEVICES_MAX;
	unsigned int best = UINT32_MAX;
	VkResult result;

	result = device->driver.EnumeratePhysicalDevices(device->instance, &n, devices);
	if (result != VK_SUCCESS && result != VK_INCOMPLETE)
		return fa_vk_fail(device, error, result, "Vulkan's devices cannot be listed");
	for (uint32_t i = 0; i < n; i++) {
		VkPhysicalDeviceProperties properties;
		char name[48], ordinal[12], driver_name[128];
		uint8_t uuid[VK_UUID_SIZE];
		bool is_lavapipe;

		describe(device, devices[i], &properties, uuid, driver_name, &is_lavapipe);
		print_uuid(uuid, name);
		snprintf(ordinal, sizeof(ordinal), "%" PRIu32, i);
		if (wanted && strcmp(wanted, ordinal) != 0 && strcmp(wanted, name) != 0)
			continue;
		if (rank(properties.deviceType) >= best)
			continue;
		best = rank(properties.deviceType);
		device->physical = devices[i];
		device->properties = properties;
		device->is_lavapipe = is_lavapipe;
		memcpy(device->uuid, uuid, sizeof(device->uuid));
		memcpy(device->driver_name, driver_name, sizeof(device->driver_name));
	}
	if (device->physical)
		return 0;
	if (wanted)
		return fa_fail(error, -ENXIO,
		               "Vulkan has no device \"%.48s\"; expected a number below %" PRIu32
		               " or a UUID like \"GPU-…\"",
		               wanted, n);
	return fa_fail(error, -ENXIO, "Vulkan has no device");
}

/* ---- what the device must have */

static int check_device(struct fa_device *device, struct fa_error *error)
{
	VkPhysicalDeviceVulkan12Features twelve = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
	};
	VkPhysicalDeviceVulkan11Features eleven = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
		.pNext = &twelve,
	};
	VkPhysicalDeviceFeatures2 features = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
		.pNext = &eleven,
	};
	const char *missing = NULL;

	if (device->properties.apiVersion < VK_API_VERSION_1_3)
		return fa_fail(error, -ENOTSUP,
		               "the driver of %.64s has Vulkan %" PRIu32 ".%" PRIu32
		               "; expected 1.3",
		               device->properties.deviceName,
		               VK_API_VERSION_MAJOR(device->properties.apiVersion),
		               VK_API_VERSION_MINOR(device->properties.apiVersion));
	if (device->properties.limits.maxComputeSharedMemorySize < SHARED_BYTES)
		return fa_fail(error, -ENOTSUP,
		               "workgroups on %.64s have %" PRIu32
		               " bytes of shared memory; expected at least %u, which kernels need",
		               device->properties.deviceName,
		               device->properties.limits.maxComputeSharedMemorySize, SHARED_BYTES);
	device->driver.GetPhysicalDeviceFeatures2(device->physical, &features);
	if (!features.features.shaderInt64)
		missing = "shaderInt64";
	else if (!eleven.storageBuffer16BitAccess)
		missing = "storageBuffer16BitAccess";
	else if (!twelve.storageBuffer8BitAccess)
		missing = "storageBuffer8BitAccess";
	else if (!twelve.bufferDeviceAddress)
		missing = "bufferDeviceAddress";
	else if (!twelve.scalarBlockLayout)
		missing = "scalarBlockLayout";
	else if (!twelve.timelineSemaphore)
		missing = "timelineSemaphore";
	if (missing)
		return fa_fail(error, -ENOTSUP, "%.64s lacks the feature %s, which kernels need",
		               device->properties.deviceName, missing);
	return 0;
}

/* Returns true if memory of the device can be exported as a descriptor, and imported again. */
static bool can_export(const struct fa_device *device)
{
	const VkExternalMemoryFeatureFlags both = VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT |
	                                          VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
	const VkPhysicalDeviceExternalBufferInfo buffer = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
		.usage = FA_VK_BUFFER_USAGE,
		.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
	};
	VkExternalBufferProperties properties = {
		.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES,
	};
	VkExternalMemoryFeatureFlags features;

	device->driver.GetPhysicalDeviceExternalBufferProperties(device->physical, &buffer,
	                                                         &properties);
	features = properties.externalMemoryProperties.externalMemoryFeatures;
	return (features & both) == both &&
	       !(features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT);
}

static int find_import(struct fa_device *device, struct fa_error *error)
{
	VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT,
	};
	VkPhysicalDeviceProperties2 properties = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
		.pNext = &host,
	};
	VkExtensionProperties *extensions;
	bool found = false, exports = false;
	uint32_t n = 0;

	if (device->driver.EnumerateDeviceExtensionProperties(device->physical, NULL, &n, NULL) !=
	    VK_SUCCESS)
		n = 0;
	extensions = calloc(n + 1, sizeof(*extensions));
	if (!extensions)
		return fa_fail(error, -ENOMEM, "no memory for the names of extensions");
	if (device->driver.EnumerateDeviceExtensionProperties(device->physical, NULL, &n,
	                                                      extensions) != VK_SUCCESS)
		n = 0;
	for (uint32_t i = 0; i < n; i++) {
		const char *name = extensions[i].extensionName;

		found = found || strcmp(name, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME) == 0;
		exports = exports || strcmp(name, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME) == 0;
	}
	free(extensions);
	device->exports_memory = exports && device->is_gpu && can_export(device);
	if (!found)
		return fa_fail(
			error, -ENOTSUP,
			"%.64s lacks the extension " VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME
			", without which clients' memory cannot be reached",
			device->properties.deviceName);
	device->driver.GetPhysicalDeviceProperties2(device->physical, &properties);
	device->import_alignment = host.minImportedHostPointerAlignment;
	return 0;
}

static int choose_family(struct fa_device *device, struct fa_error *error)
{
	VkQueueFamilyProperties families[FAMILIES_MAX];
	uint32_t n = FAMILIES_MAX, best = UINT32_MAX;

	device->driver.GetPhysicalDeviceQueueFamilyProperties(device->physical, &n, families);
	for (uint32_t i = 0; i < n; i++) {
		if (!(families[i].queueFlags & VK_QUEUE_COMPUTE_BIT))
			continue;
		/* A family without graphics does not wait for anyone's display. */
		if (best == UINT32_MAX || !(families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT))
			best = i;
	}
	if (best == UINT32_MAX)
		return fa_fail(error, -ENOTSUP, "%.64s has no queue for computing",
		               device->properties.deviceName);
	device->family = best;
	return 0;
}

static int make_device(struct fa_device *device, struct fa_error *error)
{
	VkPhysicalDeviceVulkan12Features twelve = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
		.storageBuffer8BitAccess = VK_TRUE,
		.bufferDeviceAddress = VK_TRUE,
		.scalarBlockLayout = VK_TRUE,
		.timelineSemaphore = VK_TRUE,
		.shaderFloat16 = device->matrices.f16,
		.vulkanMemoryModel = device->matrices.f16,
	};
	VkPhysicalDeviceVulkan11Features eleven = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
		.pNext = &twelve,
		.storageBuffer16BitAccess = VK_TRUE,
	};
	const VkPhysicalDeviceFeatures2 features = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
		.pNext = &eleven,
		.features = { .shaderInt64 = VK_TRUE },
	};
	const char *const extensions[] = {
		VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME,
		VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME,
	};
	const float priority = 1;
	const VkDeviceQueueCreateInfo queue = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueFamilyIndex = device->family,
		.queueCount = 1,
		.pQueuePriorities = &priority,
	};
	const VkDeviceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.pNext = &features,
		.queueCreateInfoCount = 1,
		.pQueueCreateInfos = &queue,
		.enabledExtensionCount = device->exports_memory ? 2 : 1,
		.ppEnabledExtensionNames = extensions,
	};
	VkResult result;
	int r;

	result = fa_vk_matrices_create_device(device, &info);
	if (result != VK_SUCCESS)
		return fa_vk_fail(device, error, result, "the Vulkan device cannot be opened");
	r = fa_vk_driver_load_device(&device->driver, device->device, error);
	if (r < 0)
		return r;
	device->driver.GetDeviceQueue(device->device, device->family, 0, &device->queue);
	device->driver.GetPhysicalDeviceMemoryProperties(device->physical, &device->memory_types);
	return 0;
}

/* Vulkan does not tell how many processors a device has, unless it is a CPU. */
static uint64_t groups_at_once(const struct fa_device *device)
{
	return device->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU ? fa_cpu_count()
	                                                                    : GPU_GROUPS;
}

int fa_vk_context_open(struct fa_device *device, struct fa_error *error)
{
	int r;

	r = open_instance(device, error);
	if (r == 0)
		r = choose_device(device, error);
	if (r == 0)
		r = check_device(device, error);
	if (r == 0)
		device->groups_at_once = groups_at_once(device);
	device->splits = (struct fa_vulkan_splits){
		.groups = GPU_SPLIT_GROUPS,
		/* Lavapipe takes seconds to compile the kernel that splits keys, and gains nothing by it. */
		.from_keys = device->is_lavapipe ? UINT32_MAX : 0,
		.least_keys = SPLIT_KEYS_MIN,
		.most_keys = UINT32_MAX,
		.halves = true,
	};
	device->is_gpu = device->properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU;
	/* Drivers of GPUs pin pages for writing. To try is no way: with NVIDIA's, all imports fail after one that
	 * did. */
	device->imports_read_only = device->is_lavapipe;
	if (r == 0)
		r = find_import(device, error);
	if (r == 0)
		r = choose_family(device, error);
	if (r == 0)
		fa_vk_matrices_find(device);
	if (r == 0)
		r = make_device(device, error);
	return r;
}

void fa_vk_context_close(struct fa_device *device)
{
	/* Functions are missing if opening failed before they were found. */
	if (device->device && device->driver.DestroyDevice)
		device->driver.DestroyDevice(device->device, NULL);
	if (device->instance && device->driver.DestroyInstance)
		device->driver.DestroyInstance(device->instance, NULL);
	device->device = NULL;
	device->instance = NULL;
}
