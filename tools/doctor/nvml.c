#include "tools/doctor/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

#define CLOCK_SM 1
#define TEMPERATURE_GPU 0
#define ECC_UNCORRECTED 1
#define ECC_VOLATILE 0
#define UUID_TEXT_BYTES 41 /* GPU-8-4-4-4-12 */

/* Names and values are the library's; a result of 0 is success. */
struct nvml {
	void *library;
	int (*nvmlInit_v2)(void);
	int (*nvmlShutdown)(void);
	const char *(*nvmlErrorString)(int result);
	int (*nvmlSystemGetDriverVersion)(char *version, unsigned int bytes);
	int (*nvmlDeviceGetHandleByIndex_v2)(unsigned int index, void **ret_device);
	int (*nvmlDeviceGetHandleByUUID)(const char *uuid, void **ret_device);
	int (*nvmlDeviceGetClockInfo)(void *device, unsigned int type, unsigned int *ret_mhz);
	int (*nvmlDeviceGetMaxClockInfo)(void *device, unsigned int type, unsigned int *ret_mhz);
	int (*nvmlDeviceGetTemperature)(void *device, unsigned int sensor, unsigned int *ret_c);
	int (*nvmlDeviceGetCurrentClocksThrottleReasons)(void *device,
	                                                 unsigned long long *ret_reasons);
	int (*nvmlDeviceGetTotalEccErrors)(void *device, unsigned int type, unsigned int counter,
	                                   unsigned long long *ret_count);
};

static int open_library(struct nvml *nvml)
{
	nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!nvml->library)
		return -ENOENT;
#define LOAD(name)                                                                                 \
	*(void **)&nvml->name = dlsym(nvml->library, #name);                                       \
	if (!nvml->name)                                                                           \
		return -EIO;
	LOAD(nvmlInit_v2)
	LOAD(nvmlShutdown)
	LOAD(nvmlErrorString)
	LOAD(nvmlSystemGetDriverVersion)
	LOAD(nvmlDeviceGetHandleByIndex_v2)
	LOAD(nvmlDeviceGetHandleByUUID)
	LOAD(nvmlDeviceGetClockInfo)
	LOAD(nvmlDeviceGetMaxClockInfo)
	LOAD(nvmlDeviceGetTemperature)
	LOAD(nvmlDeviceGetCurrentClocksThrottleReasons)
	LOAD(nvmlDeviceGetTotalEccErrors)
#undef LOAD
	return 0;
}

static int find_device(const struct nvml *nvml, const uint64_t uuid[2], void **ret_device)
{
	const unsigned char *bytes = (const unsigned char *)uuid;
	char text[UUID_TEXT_BYTES] = "GPU";
	size_t used = 3;

	if (!uuid[0] && !uuid[1])
		return nvml->nvmlDeviceGetHandleByIndex_v2(0, ret_device);
	for (int i = 0; i < 16; ++i)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%02x",
		                         i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		                         bytes[i]);
	return nvml->nvmlDeviceGetHandleByUUID(text, ret_device);
}

/* What a GPU does not tell stays 0. */
static void read_health(const struct nvml *nvml, void *device, struct fa_nvml_health *ret_health)
{
	unsigned long long reasons = 0, errors = 0;
	unsigned int number;

	if (nvml->nvmlDeviceGetClockInfo(device, CLOCK_SM, &number) == 0)
		ret_health->clock_mhz = number;
	if (nvml->nvmlDeviceGetMaxClockInfo(device, CLOCK_SM, &number) == 0)
		ret_health->clock_max_mhz = number;
	if (nvml->nvmlDeviceGetTemperature(device, TEMPERATURE_GPU, &number) == 0)
		ret_health->temperature_c = number;
	if (nvml->nvmlDeviceGetCurrentClocksThrottleReasons(device, &reasons) == 0)
		ret_health->slowdown = reasons & (FA_NVML_HARDWARE | FA_NVML_HEAT_SOFTWARE |
		                                  FA_NVML_HEAT_HARDWARE | FA_NVML_POWER_BRAKE);
	if (nvml->nvmlDeviceGetTotalEccErrors(device, ECC_UNCORRECTED, ECC_VOLATILE, &errors) == 0)
		ret_health->ecc_errors = errors;
}

int fa_nvml_ask(const uint64_t uuid[2], struct fa_nvml_health *ret_health, const char **ret_text)
{
	struct nvml nvml = {};
	void *device;
	int r;

	r = open_library(&nvml);
	if (r < 0) {
		*ret_text = r == -ENOENT ? "there is no libnvidia-ml.so.1"
		                         : "libnvidia-ml.so.1 is too old";
		return r;
	}
	r = nvml.nvmlInit_v2();
	if (r != 0) {
		*ret_text = nvml.nvmlErrorString(r);
		return -EIO;
	}
	*ret_health = (struct fa_nvml_health){};
	(void)nvml.nvmlSystemGetDriverVersion(ret_health->driver, sizeof(ret_health->driver));
	r = find_device(&nvml, uuid, &device);
	if (r == 0)
		read_health(&nvml, device, ret_health);
	else
		*ret_text = nvml.nvmlErrorString(r);
	(void)nvml.nvmlShutdown();
	return r ? -EIO : 0;
}
