/* The CUDA backend: one GPU, in its primary context, through the driver found at run time. */
#include "common/clock.h"
#include "daemon/backend/cuda/context.h"
#include "daemon/backend/cuda/host.h"
#include "daemon/backend/cuda/memory.h"
#include "daemon/backend/cuda/modules.h"
#include "daemon/backend/cuda/paged_launch.h"
#include "daemon/backend/cuda/paged_prepare.h"
#include "daemon/backend/cuda/pool.h"
#include "daemon/backend/cuda/preempt.h"
#include "daemon/backend/cuda/queue.h"
#include "daemon/backend/cuda/scratch.h"
#include "daemon/backend/cuda/staging.h"
#include "daemon/backend/cuda/stream.h"
#include "daemon/backend/cuda/tables.h"
#include "daemon/backend/cuda/vmm.h"
#include "kernels/cuda/images.h"
#include "kernels/cuda/paged-images.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* Older chips lack cp.async and the tensor cores' bf16. */
#define ARCH_MIN 80
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

/* The driver may close the context late, and an MPS server lets kernels end. */
#define LINGER_NS (FA_NS_PER_SEC / 2)
#define LINGER_MPS_NS (5 * FA_NS_PER_SEC)

#define MPS_START_NS (5 * FA_NS_PER_SEC)
#define MPS_RETRY_NS (50 * FA_NS_PER_MS)

#define UUID_TEXT_BYTES 41 /* GPU-8-4-4-4-12 */
/* A query takes the driver's locks. */
#define FREE_MEMORY_NS (100 * FA_NS_PER_MS)

/* The staging area takes at most a 64th of the GPU's memory. */
#define STAGE_BYTES (512ull << 20)
#define STAGE_SHARE 64

/* ---- opening */

static void uuid_text(const CUuuid *uuid, char ret_text[UUID_TEXT_BYTES])
{
	size_t used = 0;

	used += (size_t)snprintf(ret_text, UUID_TEXT_BYTES, "GPU");
	for (int i = 0; i < 16; ++i)
		used += (size_t)snprintf(ret_text + used, UUID_TEXT_BYTES - used, "%s%02x",
		                         i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		                         (unsigned char)uuid->bytes[i]);
}

static int find_by_uuid(struct fa_device *device, const char *wanted, int n, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	char text[UUID_TEXT_BYTES];
	CUuuid uuid;

	for (int i = 0; i < n; ++i) {
		if (driver->cuDeviceGet(&device->ordinal, i) != CUDA_SUCCESS ||
		    driver->cuDeviceGetUuid(&uuid, device->ordinal) != CUDA_SUCCESS)
			continue;
		uuid_text(&uuid, text);
		if (strcasecmp(text, wanted) == 0)
			return 0;
	}
	return fa_fail(error, -ENODEV, "none of the %d GPUs that the driver finds is %.60s", n,
	               wanted);
}

static int find_device(struct fa_device *device, const char *wanted, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	unsigned long ordinal = 0;
	CUresult result;
	char *end;
	int n;

	result = driver->cuDeviceGetCount(&n);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "GPUs cannot be counted");
	if (n <= 0)
		return fa_fail(error, -ENXIO, "the CUDA driver finds no GPU");
	if (wanted && strncasecmp(wanted, "GPU-", 4) == 0)
		return find_by_uuid(device, wanted, n, error);
	if (wanted) {
		errno = 0;
		ordinal = strtoul(wanted, &end, 10);
		if (*wanted < '0' || *wanted > '9' || *end || errno)
			return fa_fail(error, -EINVAL,
			               "device is \"%.60s\"; expected the number of a GPU or its "
			               "GPU-... UUID",
			               wanted);
	}
	if (ordinal >= (unsigned long)n)
		return fa_fail(error, -ENODEV, "there is no GPU %lu; the driver finds %d", ordinal,
		               n);
	result = driver->cuDeviceGet(&device->ordinal, (int)ordinal);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "the GPU cannot be asked for");
	return 0;
}

static enum fa_device_mps query_mps(struct fa_device *device)
{
	int mps;

	if (device->driver.cuDeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED,
	                                        device->ordinal) != CUDA_SUCCESS)
		return FA_DEVICE_MPS_UNKNOWN;
	return mps ? FA_DEVICE_MPS_ON : FA_DEVICE_MPS_OFF;
}

static int describe_device(struct fa_device *device, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	int major = 0, minor = 0, shared = 0, l2 = 0, sms = 0, unified = 0;
	const struct {
		CUdevice_attribute attribute;
		int *value;
	} attributes[] = {
		{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major },
		{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor },
		{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &shared },
		{ CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2 },
		{ CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms },
		{ CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, &unified },
	};
	struct fa_device_info *info = &device->info;
	CUresult result = CUDA_SUCCESS;
	size_t total = 0;
	CUuuid uuid;

	for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes) && !result; ++i)
		result = driver->cuDeviceGetAttribute(attributes[i].value, attributes[i].attribute,
		                                      device->ordinal);
	if (!result)
		result = driver->cuDeviceGetName(info->name, sizeof(info->name), device->ordinal);
	if (!result)
		result = driver->cuDeviceGetUuid(&uuid, device->ordinal);
	if (!result)
		result = driver->cuDeviceTotalMem(&total, device->ordinal);
	if (result)
		return fa_cudriver_fail(driver, error, result, "the GPU does not say what it is");

	device->chip = (struct fa_cuda_chip){
		.workspace = true,
		.arch = 10 * major + minor,
		.shared_bytes_max = shared,
		.l2_bytes = l2,
		.sms = sms,
		.share_early = device->tuning.share_early,
	};
	snprintf(info->backend, sizeof(info->backend), "cuda");
	memcpy(info->uuid, uuid.bytes, sizeof(info->uuid));
	info->depth = FA_CUDA_QUEUE_DEPTH;
	info->polled = true;
	info->memory_bytes = total;
	info->mps = query_mps(device);
	info->can_wait = info->mps == FA_DEVICE_MPS_ON;
	info->linger_ns = info->mps == FA_DEVICE_MPS_OFF ? LINGER_NS : LINGER_MPS_NS;
	if (device->chip.arch < ARCH_MIN)
		return fa_fail(error, -ENODEV,
		               "%s has compute capability %d.%d; the kernels need %d.%d or later",
		               info->name, major, minor, ARCH_MIN / 10, ARCH_MIN % 10);
	if (!unified)
		return fa_fail(error, -ENODEV,
		               "%s and the processor have addresses of their own; expected unified "
		               "addressing",
		               info->name);
	return 0;
}

static int open_context(struct fa_device *device, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal },
	};
	char doing[128];
	CUresult result;

	result = driver->cuDevicePrimaryCtxRetain(&device->context, device->ordinal);
	if (result != CUDA_SUCCESS) {
		device->context = NULL;
		snprintf(doing, sizeof(doing), "%.64s cannot be used%s", device->info.name,
		         result == CUDA_ERROR_DEVICE_UNAVAILABLE
		                 ? ", another process may have it alone"
		                 : "");
		return fa_cudriver_fail(driver, error, result, doing);
	}
	result = fa_cuda_enter(device);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemGetAllocationGranularity(&device->granularity, &properties,
		                                               CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "the GPU's context cannot be used");
	device->info.arena_granularity = device->granularity;
	return 0;
}

/* Without a staging area kernels read host memory. */
static void open_staging(struct fa_device *device)
{
	uint64_t bytes = device->info.memory_bytes / STAGE_SHARE;

	fa_list_init(&device->staging.ranges);
	if (bytes > STAGE_BYTES)
		bytes = STAGE_BYTES;
	if (device->tuning.staging != FA_CUDA_STAGE_NEVER &&
	    device->driver.cuMemAlloc(&device->staging.at, bytes) == CUDA_SUCCESS)
		device->staging.bytes = bytes;
	else
		device->staging.at = 0;
}

static struct fa_device *cuda_close(struct fa_device *device)
{
	if (!device)
		return NULL;
	if (device->context) {
		/* On a lost device all calls fail. */
		(void)fa_cuda_enter(device);
		fa_cuda_streams_close(device);
		fa_cuda_scratch_free_all(device);
		fa_cuda_pool_close(device);
		fa_cuda_heap_close(&device->heap, &device->driver);
		if (device->staging.at)
			(void)device->driver.cuMemFree(device->staging.at);
		fa_cuda_kernels_unload(device);
		(void)device->driver.cuDevicePrimaryCtxRelease(device->ordinal);
	}
	fa_cuda_quiesce_deinit(&device->quiesce);
	fa_cuda_driver_lock_deinit(&device->memory_lock);
	pthread_mutex_destroy(&device->mutex);
	free(device);
	return NULL;
}

/* Returns cuInit()'s result. An MPS server that starts, or recovers from a fault, takes no clients
 * for a moment. */
static CUresult init_driver(const struct fa_cudriver *driver)
{
	const uint64_t end = fa_now_ns() + MPS_START_NS;
	CUresult result;

	for (;;) {
		result = driver->cuInit(0);
		if (result != CUDA_ERROR_MPS_CONNECTION_FAILED &&
		    result != CUDA_ERROR_MPS_SERVER_NOT_READY)
			return result;
		if (fa_now_ns() >= end)
			return result;
		nanosleep(&(struct timespec){ .tv_nsec = (long)MPS_RETRY_NS }, NULL);
	}
}

static int start_driver(struct fa_device *device, struct fa_error *error)
{
	CUresult result;
	int r, version;

	(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", TEXT(FA_CUDA_CONNECTIONS), 0);
	(void)setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	r = fa_cudriver_open(FA_CUDRIVER_FOR_ALL, error, &device->driver);
	if (r == -ENODEV)
		return -ENXIO;
	if (r < 0)
		return r;
	result = init_driver(&device->driver);
	if (result == CUDA_SUCCESS)
		result = device->driver.cuDriverGetVersion(&version);
	if (result != CUDA_SUCCESS) {
		r = fa_cudriver_fail(&device->driver, error, result,
		                     "the CUDA driver does not start");
		return result == CUDA_ERROR_NO_DEVICE ? -ENXIO : r;
	}
	device->driver_version = version;
	return 0;
}

unsigned int fa_device_cuda_modules(void)
{
	unsigned int n = 0;

	for (int i = 0; i < FA_CUDA_IMAGES; ++i)
		n += fa_cuda_images[i].bytes > 0;
	for (int i = 0; i < FA_CUDA_PAGED_IMAGES; ++i)
		n += fa_cuda_paged_images[i].bytes > 0;
	return n;
}

static unsigned int milliseconds(uint64_t ns)
{
	return (unsigned int)(ns / FA_NS_PER_MS);
}

static int open_all(struct fa_device *device, struct fa_error *error)
{
	uint64_t begin_ns = fa_now_ns(), started_ns, ready_ns, loaded_ns;
	int r;

	if (!fa_device_cuda_modules())
		return fa_fail(error, -ENXIO, "this fad was built without GPU kernels");
	r = fa_cuda_tuning_load(error, &device->tuning);
	if (r == 0)
		r = start_driver(device, error);
	started_ns = fa_now_ns();
	if (r == 0)
		r = find_device(device, device->config.device, error);
	if (r == 0)
		r = describe_device(device, error);
	if (r == 0)
		r = open_context(device, error);
	ready_ns = fa_now_ns();
	if (r == 0)
		r = fa_cuda_kernels_load(device, error);
	loaded_ns = fa_now_ns();
	if (r == 0)
		r = fa_cuda_streams_open(device, error);
	if (r < 0)
		return r;
	open_staging(device);
	snprintf(device->info.details, sizeof(device->info.details),
	         "CUDA driver %d.%d, %u kernels, opened in %u ms (driver %u, context %u, kernels "
	         "%u)%s%.120s",
	         device->driver_version / 1000, device->driver_version % 1000 / 10,
	         device->n_functions, milliseconds(fa_now_ns() - begin_ns),
	         milliseconds(started_ns - begin_ns), milliseconds(ready_ns - started_ns),
	         milliseconds(loaded_ns - ready_ns),
	         device->chip.portable ? ", none for its chip alone: " : "",
	         device->chip.portable ? device->special_error.text : "");
	return 0;
}

static int cuda_open(const struct fa_device_config *config, struct fa_error *error,
                     struct fa_device **ret_device)
{
	static _Atomic uint64_t serials;
	struct fa_device *device;
	int r;

	/* Tensor maps need more alignment than malloc() gives. */
	device = aligned_alloc(_Alignof(struct fa_device), sizeof(*device));
	if (!device)
		return fa_fail(error, -ENOMEM, "no memory for the CUDA backend");
	memset(device, 0, sizeof(*device));
	device->config = *config;
	device->config.device = config->device && *config->device ? config->device : NULL;
	device->serial = atomic_fetch_add(&serials, 1) + 1;
	pthread_mutex_init(&device->mutex, NULL);
	fa_cuda_quiesce_init(&device->quiesce);
	fa_cuda_driver_lock_init(&device->memory_lock);
	r = open_all(device, error);
	device->config.device = NULL; /* the caller's */
	if (r < 0) {
		cuda_close(device);
		return r;
	}
	*ret_device = device;
	return 0;
}

static void cuda_describe(struct fa_device *device, struct fa_device_info *ret_info)
{
	struct fa_device_info info = device->info;
	uint64_t now_ns = fa_now_ns();
	size_t available, total;

	pthread_mutex_lock(&device->mutex);
	if (!device->free_bytes_ns || now_ns - device->free_bytes_ns > FREE_MEMORY_NS) {
		device->free_bytes = 0;
		if (fa_cuda_enter(device) == CUDA_SUCCESS &&
		    device->driver.cuMemGetInfo(&available, &total) == CUDA_SUCCESS)
			device->free_bytes = available;
		device->free_bytes_ns = now_ns;
	}
	info.memory_free_bytes = device->free_bytes;
	pthread_mutex_unlock(&device->mutex);
	*ret_info = info;
}

const struct fa_device_ops fa_device_cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.describe = cuda_describe,
	.memory_import_host = fa_cuda_memory_import_host,
	.memory_import_mapped = fa_cuda_memory_import_mapped,
	.memory_new_arena = fa_cuda_memory_new_arena,
	.memory_import_ipc = fa_cuda_memory_import_ipc,
	.memory_import_pieces = fa_cuda_memory_import_pieces,
	.memory_release = fa_cuda_memory_release,
	.memory_host = fa_cuda_memory_host,
	.pool_open = fa_cuda_pool_open,
	.pool_close = fa_cuda_pool_close,
	.pool_chunk_add = fa_cuda_pool_chunk_add,
	.pool_chunk_adopt = fa_cuda_pool_chunk_adopt,
	.pool_chunk_remove = fa_cuda_pool_chunk_remove,
	.tables_new = fa_cuda_tables_new,
	.tables_free = fa_cuda_tables_free,
	.paged_cache_check = fa_cuda_paged_cache_check,
	.paged_prepare = fa_cuda_paged_prepare,
	.paged_release = fa_cuda_paged_release,
	.check = fa_cuda_check,
	.attention_rewrite = fa_cuda_rewrite,
	.group_new = fa_cuda_group_new,
	.group_free = fa_cuda_group_free,
	.queue_new = fa_cuda_queue_new,
	.queue_free = fa_cuda_queue_free,
	.can_wait = fa_cuda_can_wait,
	.queue_lane = fa_cuda_queue_lane,
	.launch = fa_cuda_launch,
	.cancel = fa_cuda_cancel,
	.reap = fa_cuda_reap,
	.health = fa_cuda_health,
	.is_lost = fa_cuda_is_lost,
};
