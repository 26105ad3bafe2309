/*
 * The KV pool's memory: reserved addresses with mapped allocations, whose descriptors outlive the
 * process. The loop thread must not wait: it neither zeroes nor takes the driver lock. The first
 * step that takes pages clears them.
 */
#include "daemon/backend/cuda/pool.h"

#include "common/cleanup.h"
#include "daemon/backend/cuda/context.h"
#include "daemon/backend/cuda/gate.h"
#include "daemon/backend/cuda/memory.h"
#include "daemon/backend/cuda/modules.h"
#include "daemon/backend/cuda/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>

int fa_cuda_pool_open(struct fa_device *device, uint64_t chunk_bytes, uint32_t max_chunks,
                      struct fa_error *error, void **ret_base)
{
	struct fa_cuda_pool *pool = &device->pool;
	const char *doing;
	CUresult result;
	int r;

	if (chunk_bytes % device->granularity)
		return fa_fail(error, -ENOTSUP,
		               "chunks of %" PRIu64 " bytes cannot be; expected a multiple of %zu",
		               chunk_bytes, device->granularity);
	r = fa_cuda_memory_enter(device, error);
	if (r == 0)
		r = fa_cuda_paged_kernels_load(device, error);
	if (r == 0)
		fa_cuda_gates_open(device);
	if (r < 0)
		return r;
	result = fa_cuda_heap_open(&device->heap, &device->driver, &doing);
	if (result != CUDA_SUCCESS)
		return fa_cuda_memory_fail(device, error, result, doing);
	pool->mapped = calloc(max_chunks, sizeof(*pool->mapped));
	if (!pool->mapped)
		return fa_fail(error, -ENOMEM, "no memory for the pool's chunks");
	result = device->driver.cuMemAddressReserve(&pool->at, chunk_bytes * max_chunks, 0, 0, 0);
	if (result != CUDA_SUCCESS) {
		pool->at = 0;
		free(fa_steal_ptr(pool->mapped));
		return fa_cuda_memory_fail(device, error, result, "no addresses for the pool");
	}
	pool->chunk_bytes = chunk_bytes;
	pool->max_chunks = max_chunks;
	*ret_base = (void *)pool->at;
	return 0;
}

static CUdeviceptr chunk_at(const struct fa_cuda_pool *pool, uint32_t chunk)
{
	return pool->at + chunk * pool->chunk_bytes;
}

void fa_cuda_pool_chunk_remove(struct fa_device *device, uint32_t chunk)
{
	struct fa_cuda_pool *pool = &device->pool;

	if (!pool->mapped[chunk])
		return;
	(void)fa_cuda_enter(device);
	/* Unmapping this memory does not wait for the GPU. */
	(void)device->driver.cuMemUnmap(chunk_at(pool, chunk), pool->chunk_bytes);
	pool->mapped[chunk] = false;
}

void fa_cuda_pool_close(struct fa_device *device)
{
	struct fa_cuda_pool *pool = &device->pool;

	if (!pool->at)
		return;
	for (uint32_t i = 0; i < pool->max_chunks; ++i)
		fa_cuda_pool_chunk_remove(device, i);
	(void)device->driver.cuMemAddressFree(pool->at, pool->chunk_bytes * pool->max_chunks);
	free(pool->mapped);
	*pool = (struct fa_cuda_pool){ 0 };
}

/* -EINVAL: the chunk's memory is unsuitable. After other errors the next process may adopt it. */
static int fail(struct fa_device *device, struct fa_error *error, CUresult result,
                const char *doing)
{
	const bool unsuitable = result == CUDA_ERROR_INVALID_VALUE ||
	                        result == CUDA_ERROR_INVALID_HANDLE ||
	                        result == CUDA_ERROR_INVALID_DEVICE;
	const int r = fa_cuda_memory_fail(device, error, result, doing);

	return unsuitable || r == -ENODEV || r == -ENOMEM ? r : -EIO;
}

static int map_chunk(struct fa_device *device, uint32_t chunk,
                     CUmemGenericAllocationHandle allocation, struct fa_error *error)
{
	struct fa_cuda_pool *pool = &device->pool;
	CUresult result;
	int r;

	result = device->driver.cuMemMap(chunk_at(pool, chunk), pool->chunk_bytes, 0, allocation,
	                                 0);
	if (result != CUDA_SUCCESS)
		return fail(device, error, result, "a chunk cannot be mapped");
	r = fa_cuda_set_access(device, chunk_at(pool, chunk), pool->chunk_bytes, false, error);
	if (r < 0)
		(void)device->driver.cuMemUnmap(chunk_at(pool, chunk), pool->chunk_bytes);
	else
		pool->mapped[chunk] = true;
	return r == -EINVAL ? -EIO : r;
}

static int make_chunk(struct fa_device *device, uint32_t chunk, struct fa_error *error, int *ret_fd)
{
	const CUmemAllocationProp properties = fa_cuda_allocation(device);
	const struct fa_cudriver *driver = &device->driver;
	struct fa_cuda_pool *pool = &device->pool;
	CUmemGenericAllocationHandle allocation;
	CUresult result;
	int r, fd = -1;

	result = driver->cuMemCreate(&allocation, pool->chunk_bytes, &properties, 0);
	if (result != CUDA_SUCCESS)
		return fa_cuda_memory_fail(device, error, result, "no memory for a chunk");
	r = map_chunk(device, chunk, allocation, error);
	if (r == 0) {
		result = driver->cuMemExportToShareableHandle(
			&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		if (result != CUDA_SUCCESS)
			r = fa_cuda_memory_fail(device, error, result, "a chunk cannot be kept");
	}
	/* The mapping keeps the memory alive. */
	(void)driver->cuMemRelease(allocation);
	if (r == 0) {
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
		*ret_fd = fd;
	}
	return r;
}

int fa_cuda_pool_chunk_add(struct fa_device *device, uint32_t chunk, struct fa_error *error,
                           bool *ret_zeroed, int *ret_fd)
{
	int r;

	r = fa_cuda_memory_enter(device, error);
	if (r == 0)
		r = make_chunk(device, chunk, error, ret_fd);
	if (r < 0)
		fa_cuda_pool_chunk_remove(device, chunk);
	else
		*ret_zeroed = false;
	return r;
}

/* It must be on this GPU; the driver refuses to map too little. */
static int adopt_chunk(struct fa_device *device, uint32_t chunk, int fd, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	CUmemGenericAllocationHandle allocation;
	CUmemAllocationProp properties;
	CUresult result;
	int r;

	result = driver->cuMemImportFromShareableHandle(&allocation, (void *)(intptr_t)fd,
	                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS)
		return fail(device, error, result,
		            "what was kept of a chunk is no memory of the GPU");
	result = driver->cuMemGetAllocationPropertiesFromHandle(&properties, allocation);
	if (result != CUDA_SUCCESS)
		r = fail(device, error, result, "a chunk is unknown");
	else if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	         properties.location.id != device->ordinal)
		r = fa_fail(error, -EINVAL, "chunk %" PRIu32 " is not on GPU %d", chunk,
		            device->ordinal);
	else
		r = map_chunk(device, chunk, allocation, error);
	(void)driver->cuMemRelease(allocation);
	return r;
}

int fa_cuda_pool_chunk_adopt(struct fa_device *device, uint32_t chunk, int fd,
                             struct fa_error *error)
{
	int r;

	r = fa_cuda_memory_enter(device, error);
	return r ? r : adopt_chunk(device, chunk, fd, error);
}
