#include "daemon/backend/vulkan/driver.h"

#include <dlfcn.h>
#include <errno.h>

int fa_vk_driver_open(struct fa_vk_driver *ret_driver, struct fa_error *error)
{
	struct fa_vk_driver driver = { 0 };
	void *library;

	library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return fa_fail(
			error, -ENOENT,
			"libvulkan.so.1 cannot be loaded (%s); expected Vulkan's loader, which "
			"Debian has in libvulkan1",
			dlerror());
	driver.get = (PFN_vkGetInstanceProcAddr)dlsym(library, "vkGetInstanceProcAddr");
	if (driver.get) {
		driver.CreateInstance = (PFN_vkCreateInstance)driver.get(NULL, "vkCreateInstance");
		driver.EnumerateInstanceVersion = (PFN_vkEnumerateInstanceVersion)driver.get(
			NULL, "vkEnumerateInstanceVersion");
	}
	if (!driver.CreateInstance || !driver.EnumerateInstanceVersion) {
		(void)dlclose(library);
		return fa_fail(
			error, -ENOTSUP,
			"libvulkan.so.1 is too old; expected a loader of Vulkan 1.1 or later");
	}
	*ret_driver = driver;
	return 0;
}

int fa_vk_driver_load_instance(struct fa_vk_driver *driver, VkInstance instance,
                               struct fa_error *error)
{
#define LOAD(name)                                                                                 \
	driver->name = (PFN_vk##name)driver->get(instance, "vk" #name);                            \
	if (!driver->name)                                                                         \
		return fa_fail(error, -ENOTSUP, "Vulkan's loader has no function vk" #name);
	FA_VK_INSTANCE(LOAD)
#undef LOAD
	return 0;
}

int fa_vk_driver_load_device(struct fa_vk_driver *driver, VkDevice device, struct fa_error *error)
{
#define LOAD(name)                                                                                 \
	driver->name = (PFN_vk##name)driver->GetDeviceProcAddr(device, "vk" #name);                \
	if (!driver->name)                                                                         \
		return fa_fail(error, -ENOTSUP, "the Vulkan driver has no function vk" #name);
	FA_VK_DEVICE(LOAD)
#undef LOAD
#define LOAD(name) driver->name = (PFN_vk##name)driver->GetDeviceProcAddr(device, "vk" #name);
	FA_VK_OPTIONAL(LOAD)
#undef LOAD
	return 0;
}

const char *fa_vk_error_name(VkResult result)
{
	switch (result) {
	case VK_ERROR_OUT_OF_HOST_MEMORY:
		return "VK_ERROR_OUT_OF_HOST_MEMORY";
	case VK_ERROR_OUT_OF_DEVICE_MEMORY:
		return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
	case VK_ERROR_INITIALIZATION_FAILED:
		return "VK_ERROR_INITIALIZATION_FAILED";
	case VK_ERROR_DEVICE_LOST:
		return "VK_ERROR_DEVICE_LOST";
	case VK_ERROR_MEMORY_MAP_FAILED:
		return "VK_ERROR_MEMORY_MAP_FAILED";
	case VK_ERROR_LAYER_NOT_PRESENT:
		return "VK_ERROR_LAYER_NOT_PRESENT";
	case VK_ERROR_EXTENSION_NOT_PRESENT:
		return "VK_ERROR_EXTENSION_NOT_PRESENT";
	case VK_ERROR_FEATURE_NOT_PRESENT:
		return "VK_ERROR_FEATURE_NOT_PRESENT";
	case VK_ERROR_INCOMPATIBLE_DRIVER:
		return "VK_ERROR_INCOMPATIBLE_DRIVER";
	case VK_ERROR_TOO_MANY_OBJECTS:
		return "VK_ERROR_TOO_MANY_OBJECTS";
	case VK_ERROR_INVALID_EXTERNAL_HANDLE:
		return "VK_ERROR_INVALID_EXTERNAL_HANDLE";
	case VK_TIMEOUT:
		return "VK_TIMEOUT";
	default:
		return "an error of Vulkan's";
	}
}

int fa_vk_error(VkResult result)
{
	switch (result) {
	case VK_SUCCESS:
		return 0;
	case VK_ERROR_OUT_OF_HOST_MEMORY:
	case VK_ERROR_OUT_OF_DEVICE_MEMORY:
	case VK_ERROR_MEMORY_MAP_FAILED:
	case VK_ERROR_TOO_MANY_OBJECTS:
		return -ENOMEM;
	case VK_ERROR_DEVICE_LOST:
		return -ENODEV;
	case VK_ERROR_LAYER_NOT_PRESENT:
	case VK_ERROR_EXTENSION_NOT_PRESENT:
	case VK_ERROR_FEATURE_NOT_PRESENT:
	case VK_ERROR_INCOMPATIBLE_DRIVER:
		return -ENOTSUP;
	default:
		return -EIO;
	}
}
