/* Errors, devices and their primary contexts. */
#include "tests/cuda-driver/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fa_fake_context *fa_fake_current(void)
{
	const struct fa_fake_thread *thread = fa_fake_thread();
	struct fa_fake_context *current = thread->current;

	if (current && (!current->retained || current->generation != thread->generation))
		return NULL; /* the context was destroyed meanwhile */
	return current;
}

/* ---- errors */

#define ERRORS(X)                                                                                  \
	X(CUDA_SUCCESS, "no error")                                                                \
	X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                            \
	X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                               \
	X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                      \
	X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                        \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, "device busy or unavailable")                             \
	X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                              \
	X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                     \
	X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                              \
	X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                    \
	X(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")                                \
	X(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped")                                    \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution")              \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")                     \
	X(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed")                                  \
	X(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error encountered")               \
	X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                    \
	X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                          \
	X(CUDA_ERROR_NOT_READY, "device not ready")                                                \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                  \
	X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")           \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")                    \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                 \
	X(CUDA_ERROR_ASSERT, "device-side assert triggered")                                       \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "memory is already registered")               \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "memory is not registered")                       \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error")                                 \
	X(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")                \
	X(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                     \
	X(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on address space")            \
	X(CUDA_ERROR_INVALID_PC, "invalid program counter")                                        \
	X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                  \
	X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                     \
	X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                     \
	X(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized")                               \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "driver and kernel do not match")                     \
	X(CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to its server")          \
	X(CUDA_ERROR_MPS_RPC_FAILURE, "MPS server and client cannot talk")                         \
	X(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server takes no clients yet")                      \
	X(CUDA_ERROR_MPS_CLIENT_TERMINATED, "MPS client has been terminated")                      \
	X(CUDA_ERROR_UNKNOWN, "unknown error")

static const struct {
	CUresult result;
	const char *name, *text;
} errors[] = {
#define ERROR(code, text) { code, #code, text },
	ERRORS(ERROR)
#undef ERROR
};

static CUresult error_find(CUresult error, size_t *ret_index)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); ++i)
		if (errors[i].result == error) {
			*ret_index = i;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **ret_name)
{
	size_t i;

	FA_FAKE_ENTER(cuGetErrorName, 0);
	*ret_name = NULL;
	if (error_find(error, &i) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_name = errors[i].name;
	return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **ret_text)
{
	size_t i;

	FA_FAKE_ENTER(cuGetErrorString, 0);
	*ret_text = NULL;
	if (error_find(error, &i) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_text = errors[i].text;
	return CUDA_SUCCESS;
}

bool fa_fake_is_sticky(CUresult result)
{
	switch ((int)result) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_MPS_CONNECTION_FAILED:
	case CUDA_ERROR_MPS_RPC_FAILURE:
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
	case CUDA_ERROR_UNKNOWN:
		return true;
	default:
		return false;
	}
}

void fa_fake_lose(struct fa_fake_context *context, CUresult result)
{
	if (!context->lost) {
		context->lost = result;
		atomic_fetch_add(&fa_fake.page->lost, 1);
	}
	pthread_cond_broadcast(&fa_fake.changed);
}

/* ---- the driver and its devices */

CUresult cuInit(unsigned int flags)
{
	FA_FAKE_ENTER(cuInit, 0);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	/* A forked child cannot call cuInit if its parent had called it. */
	if (fa_fake.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (fa_fake.n_devices <= 0)
		return CUDA_ERROR_NO_DEVICE;
	fa_fake_lock();
	fa_fake.initialised = true;
	fa_fake_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *ret_version)
{
	FA_FAKE_ENTER(cuDriverGetVersion, 0);
	*ret_version = fa_fake.version;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *ret_count)
{
	FA_FAKE_ENTER(cuDeviceGetCount, FA_FAKE_INIT);
	*ret_count = fa_fake.n_devices;
	return CUDA_SUCCESS;
}

static bool is_device(CUdevice device)
{
	return device >= 0 && device < fa_fake.n_devices;
}

CUresult cuDeviceGet(CUdevice *ret_device, int ordinal)
{
	FA_FAKE_ENTER(cuDeviceGet, FA_FAKE_INIT);
	if (!is_device(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*ret_device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *ret_uuid, CUdevice device)
{
	FA_FAKE_ENTER(cuDeviceGetUuid, FA_FAKE_INIT);
	if (!is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	for (int i = 0; i < 16; ++i)
		ret_uuid->bytes[i] = (char)(0xfa ^ i * 0x11);
	ret_uuid->bytes[15] = (char)(device + 1);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *ret_name, int bytes, CUdevice device)
{
	FA_FAKE_ENTER(cuDeviceGetName, FA_FAKE_INIT);
	if (!is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(ret_name, (size_t)bytes, "test GPU %d", device);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *ret_value, CUdevice_attribute attribute, CUdevice device)
{
	FA_FAKE_ENTER(cuDeviceGetAttribute, FA_FAKE_INIT);
	if (!is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*ret_value = 132;
		break;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*ret_value = 1 + device;
		break;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
		*ret_value = 50 << 20;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*ret_value = 9;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*ret_value = 0;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		*ret_value = 232448;
		break;
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
		*ret_value = 1;
		break;
	case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
		*ret_value = getenv("FAD_TEST_CUDA_MPS") != NULL;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *ret_bytes, CUdevice device)
{
	FA_FAKE_ENTER(cuDeviceTotalMem, FA_FAKE_INIT);
	if (!is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*ret_bytes = fa_fake.memory_bytes;
	return CUDA_SUCCESS;
}

/* ---- primary contexts */

CUresult cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
	struct fa_fake_context *context;

	FA_FAKE_ENTER(cuDevicePrimaryCtxRetain, FA_FAKE_INIT);
	if (!is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	context = &fa_fake.contexts[device];
	fa_fake_lock();
	while (context->ending)
		pthread_cond_wait(&fa_fake.changed, &fa_fake.lock);
	if (!context->retained++)
		++context->generation;
	fa_fake_unlock();
	fa_fake_count(FA_TEST_CUDA_CONTEXTS, 1);
	*ret_context = (CUcontext)context;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	struct fa_fake_context *context;

	FA_FAKE_ENTER(cuDevicePrimaryCtxRelease, FA_FAKE_INIT);
	if (!is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	context = &fa_fake.contexts[device];
	fa_fake_lock();
	if (!context->retained || context->ending) {
		fa_fake_unlock();
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	fa_fake_count(FA_TEST_CUDA_CONTEXTS, -1);
	if (!--context->retained) {
		context->ending = true;
		fa_fake_streams_end(context);
		fa_fake_events_end(context);
		fa_fake_graphs_end(context);
		fa_fake_modules_end(context);
		fa_fake_memory_end(context);
		context->lost = CUDA_SUCCESS;
		context->ending = false;
		pthread_cond_broadcast(&fa_fake.changed);
	}
	fa_fake_unlock();
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ret_context)
{
	FA_FAKE_ENTER(cuCtxGetCurrent, FA_FAKE_INIT);
	fa_fake_lock();
	*ret_context = (CUcontext)fa_fake_current();
	fa_fake_unlock();
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	struct fa_fake_context *next = (struct fa_fake_context *)context;
	CUresult result = CUDA_SUCCESS;

	FA_FAKE_ENTER(cuCtxSetCurrent, FA_FAKE_INIT | FA_FAKE_REPORTS_LOSS);
	if (next && (next < fa_fake.contexts || next >= fa_fake.contexts + fa_fake.n_devices))
		return CUDA_ERROR_INVALID_CONTEXT;
	fa_fake_lock();
	if (next && !next->retained) {
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	} else {
		struct fa_fake_thread *thread = fa_fake_thread();

		thread->current = next;
		thread->generation = next ? next->generation : 0;
	}
	fa_fake_unlock();
	return result;
}

CUresult cuCtxGetDevice(CUdevice *ret_device)
{
	FA_FAKE_ENTER(cuCtxGetDevice, FA_FAKE_INIT | FA_FAKE_CURRENT);
	*ret_device = fa_fake_thread()->current->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
	FA_FAKE_ENTER(cuCtxGetStreamPriorityRange, FA_FAKE_INIT | FA_FAKE_CURRENT);
	*ret_least = FA_FAKE_LEAST_PRIORITY;
	*ret_greatest = FA_FAKE_GREATEST_PRIORITY;
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	FA_FAKE_ENTER(cuCtxSynchronize, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return fa_fake_drain(fa_fake_thread()->current);
}
