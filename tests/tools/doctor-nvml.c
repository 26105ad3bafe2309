/* Stands for NVIDIA's management library; DOCTOR_SLOWDOWN and DOCTOR_ECC are what it tells. */
#include <stdio.h>
#include <stdlib.h>

#define PUBLIC __attribute__((visibility("default")))

PUBLIC int nvmlInit_v2(void);
PUBLIC int nvmlShutdown(void);
PUBLIC const char *nvmlErrorString(int result);
PUBLIC int nvmlSystemGetDriverVersion(char *version, unsigned int bytes);
PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **ret_device);
PUBLIC int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret_device);
PUBLIC int nvmlDeviceGetClockInfo(void *device, unsigned int type, unsigned int *ret_mhz);
PUBLIC int nvmlDeviceGetMaxClockInfo(void *device, unsigned int type, unsigned int *ret_mhz);
PUBLIC int nvmlDeviceGetTemperature(void *device, unsigned int sensor, unsigned int *ret_c);
PUBLIC int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *ret_reasons);
PUBLIC int nvmlDeviceGetTotalEccErrors(void *device, unsigned int type, unsigned int counter,
                                       unsigned long long *ret_count);

static unsigned long long setting(const char *name)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : 0;
}

int nvmlInit_v2(void)
{
	return 0;
}

int nvmlShutdown(void)
{
	return 0;
}

const char *nvmlErrorString(int result)
{
	return "Invalid Argument";
}

int nvmlSystemGetDriverVersion(char *version, unsigned int bytes)
{
	return snprintf(version, bytes, "555.55") < 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **ret_device)
{
	*ret_device = NULL;
	return 0;
}

/* GPU-, and 32 digits in five groups. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret_device)
{
	unsigned int a, b, c, d;
	unsigned long long e;
	int end = 0;

	*ret_device = NULL;
	if (sscanf(uuid, "GPU-%8x-%4x-%4x-%4x-%12llx%n", &a, &b, &c, &d, &e, &end) != 5)
		return 2;
	return end == 40 && !uuid[end] ? 0 : 2;
}

int nvmlDeviceGetClockInfo(void *device, unsigned int type, unsigned int *ret_mhz)
{
	*ret_mhz = type == 1 ? 345 : 0;
	return 0;
}

int nvmlDeviceGetMaxClockInfo(void *device, unsigned int type, unsigned int *ret_mhz)
{
	*ret_mhz = type == 1 ? 1980 : 0;
	return 0;
}

int nvmlDeviceGetTemperature(void *device, unsigned int sensor, unsigned int *ret_c)
{
	*ret_c = 44;
	return sensor;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *ret_reasons)
{
	*ret_reasons = setting("DOCTOR_SLOWDOWN");
	return 0;
}

int nvmlDeviceGetTotalEccErrors(void *device, unsigned int type, unsigned int counter,
                                unsigned long long *ret_count)
{
	*ret_count = type == 1 && counter == 0 ? setting("DOCTOR_ECC") : 0;
	return 0;
}
