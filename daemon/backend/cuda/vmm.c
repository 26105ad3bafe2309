/* GPU memory behind descriptors: clients' allocations, mapped side by side, and the daemon's
 * arenas. On workers. */
#include "daemon/backend/cuda/vmm.h"

#include "common/clock.h"
#include "daemon/backend/cuda/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

#define ZERO_POLL_NS (50 * FA_NS_PER_US)

/* ---- clients' allocations */

static CUmemLocation location(const struct fa_device *device)
{
	return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal };
}

static int reserve(struct fa_device *device, struct fa_cuda_memory *memory, uint64_t bytes,
                   struct fa_error *error)
{
	CUresult result;

	result = device->driver.cuMemAddressReserve(&memory->at, bytes, 0, 0, 0);
	if (result != CUDA_SUCCESS) {
		memory->at = 0;
		return fa_cuda_memory_fail(device, error, result, "no addresses for the buffer");
	}
	memory->bytes = bytes;
	return 0;
}

int fa_cuda_set_access(struct fa_device *device, CUdeviceptr at, uint64_t bytes, bool read_only,
                       struct fa_error *error)
{
	CUmemAccessDesc access = { .location = location(device) };
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;

	if (read_only) {
		access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
		result = device->driver.cuMemSetAccess(at, bytes, &access, 1);
	}
	/* Some drivers do not map the GPU's own memory read-only. */
	if (result != CUDA_SUCCESS) {
		access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		result = device->driver.cuMemSetAccess(at, bytes, &access, 1);
	}
	return result ? fa_cuda_memory_fail(device, error, result,
	                                    "the memory cannot be made accessible")
	              : 0;
}

static int map_piece(struct fa_device *device, struct fa_cuda_memory *memory, CUdeviceptr at,
                     const struct fa_device_piece *piece, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	CUmemGenericAllocationHandle allocation;
	CUmemAllocationProp properties;
	CUresult result;
	int r = 0;

	result = driver->cuMemImportFromShareableHandle(&allocation, (void *)(intptr_t)piece->fd,
	                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS)
		return fa_cuda_memory_fail(device, error, result,
		                           "the descriptor stands for no allocation");
	result = driver->cuMemGetAllocationPropertiesFromHandle(&properties, allocation);
	if (result != CUDA_SUCCESS) {
		r = fa_cuda_memory_fail(device, error, result, "the allocation is unknown");
	} else if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	           properties.location.id != device->ordinal) {
		r = fa_fail(error, -ENOTSUP,
		            "the allocation is not on GPU %d, which this daemon serves",
		            device->ordinal);
	} else {
		result = driver->cuMemMap(at, piece->bytes, 0, allocation, 0);
		if (result != CUDA_SUCCESS)
			r = fa_cuda_memory_fail(
				device, error, result,
				"the allocation cannot be mapped, is its size right?");
	}
	(void)driver->cuMemRelease(allocation);
	if (r == 0)
		memory->piece_bytes[memory->n_mapped++] = piece->bytes;
	return r;
}

static int check_pieces(struct fa_device *device, const struct fa_device_piece *pieces,
                        size_t n_pieces, uint64_t offset, uint64_t bytes, uint64_t *ret_bytes,
                        struct fa_error *error)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n_pieces; ++i) {
		if (!pieces[i].bytes || pieces[i].bytes % device->granularity)
			return fa_fail(error, -EINVAL,
			               "piece %zu of %zu has %" PRIu64
			               " bytes; expected a multiple of %zu",
			               i, n_pieces, pieces[i].bytes, device->granularity);
		if (__builtin_add_overflow(sum, pieces[i].bytes, &sum))
			return fa_fail(error, -EINVAL, "%zu pieces have too many bytes", n_pieces);
	}
	if (!fa_cuda_memory_fits(offset, bytes, sum))
		return fa_fail(error, -EINVAL,
		               "offset %" PRIu64 " and %" PRIu64
		               " bytes are beyond the %zu pieces, "
		               "which have %" PRIu64 " bytes",
		               offset, bytes, n_pieces, sum);
	*ret_bytes = sum;
	return 0;
}

static int map_pieces(struct fa_device *device, struct fa_cuda_memory *memory,
                      const struct fa_device_piece *pieces, size_t n_pieces, uint64_t bytes,
                      bool read_only, struct fa_error *error)
{
	struct fa_error why;
	CUdeviceptr at;
	int r;

	FA_CUDA_HOLD_DRIVER_LOCK(&device->memory_lock);
	r = reserve(device, memory, bytes, error);
	if (r < 0)
		return r;
	at = memory->at;
	for (size_t i = 0; i < n_pieces; ++i) {
		r = map_piece(device, memory, at, &pieces[i], &why);
		if (r < 0)
			return fa_fail(error, r, "piece %zu of %zu, %" PRIu64 " bytes: %s", i,
			               n_pieces, pieces[i].bytes, why.text);
		at += pieces[i].bytes;
		if (i + 1 < n_pieces)
			fa_cuda_driver_lock_yield(&device->memory_lock, FA_CUDA_PIECE_PAUSE_NS);
	}
	return fa_cuda_set_access(device, memory->at, memory->bytes, read_only, error);
}

int fa_cuda_memory_import_pieces(struct fa_device *device, const struct fa_device_piece *pieces,
                                 size_t n_pieces, uint64_t offset, uint64_t bytes, bool read_only,
                                 struct fa_error *error, struct fa_device_memory *ret_memory)
{
	struct fa_cuda_memory *memory;
	uint64_t sum = 0;
	int r;

	r = check_pieces(device, pieces, n_pieces, offset, bytes, &sum, error);
	if (r == 0)
		r = fa_cuda_memory_enter(device, error);
	if (r < 0)
		return r;
	memory = fa_cuda_memory_new(FA_CUDA_MEMORY_MAPPED, n_pieces);
	if (!memory)
		return fa_fail(error, -ENOMEM, "no memory for a buffer");
	r = map_pieces(device, memory, pieces, n_pieces, sum, read_only, error);
	if (r < 0) {
		fa_cuda_memory_drop(device, memory, ret_memory);
		return r;
	}
	*ret_memory = (struct fa_device_memory){
		.address = (void *)(memory->at + offset),
		.bytes = bytes,
		.writable = !read_only,
		.backend = memory,
	};
	return 0;
}

/* ---- arenas */

CUmemAllocationProp fa_cuda_allocation(const struct fa_device *device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = location(device),
	};
}

/* Uses a stream for which only workers wait. */
static int zero(struct fa_device *device, CUdeviceptr at, uint64_t bytes, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	CUresult result;

	result = driver->cuMemsetD8Async(at, 0, bytes, device->memory_stream);
	if (result == CUDA_SUCCESS) {
		while ((result = driver->cuStreamQuery(device->memory_stream)) ==
		       CUDA_ERROR_NOT_READY)
			fa_cuda_sleep(ZERO_POLL_NS);
		if (result == CUDA_SUCCESS)
			return 0;
		/* The caller frees the memory, so nothing may still run. */
		(void)driver->cuStreamSynchronize(device->memory_stream);
	}
	return fa_cuda_memory_fail(device, error, result, "memory cannot be zeroed");
}

static int make_arena(struct fa_device *device, struct fa_cuda_memory *memory, uint64_t bytes,
                      int *ret_fd, struct fa_error *error)
{
	const CUmemAllocationProp properties = fa_cuda_allocation(device);
	const struct fa_cudriver *driver = &device->driver;
	CUmemGenericAllocationHandle allocation;
	char doing[96];
	CUresult result;
	int r, fd = -1;

	snprintf(doing, sizeof(doing), "%" PRIu64 " bytes of the GPU's memory cannot be had",
	         bytes);
	FA_CUDA_HOLD_DRIVER_LOCK(&device->memory_lock);
	result = driver->cuMemCreate(&allocation, bytes, &properties, 0);
	if (result != CUDA_SUCCESS)
		return fa_cuda_memory_fail(device, error, result, doing);
	r = reserve(device, memory, bytes, error);
	if (r == 0) {
		result = driver->cuMemMap(memory->at, bytes, 0, allocation, 0);
		if (result != CUDA_SUCCESS)
			r = fa_cuda_memory_fail(device, error, result, "memory cannot be mapped");
		else
			memory->piece_bytes[memory->n_mapped++] = bytes;
	}
	if (r == 0)
		r = fa_cuda_set_access(device, memory->at, memory->bytes, false, error);
	if (r == 0)
		r = zero(device, memory->at, memory->bytes, error);
	if (r == 0) {
		result = driver->cuMemExportToShareableHandle(
			&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		if (result != CUDA_SUCCESS)
			r = fa_cuda_memory_fail(device, error, result, "memory cannot be shared");
	}
	(void)driver->cuMemRelease(allocation);
	if (r < 0)
		return r;
	(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	*ret_fd = fd;
	return 0;
}

int fa_cuda_memory_new_arena(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                             struct fa_device_memory *ret_memory, int *ret_fd,
                             uint64_t *ret_piece_bytes)
{
	struct fa_cuda_memory *memory;
	uint64_t rounded;
	int r, fd = -1;

	if (__builtin_add_overflow(bytes, device->granularity - 1, &rounded))
		return fa_fail(error, -ENOMEM, "%" PRIu64 " bytes are too many", bytes);
	rounded -= rounded % device->granularity;
	memory = fa_cuda_memory_new(FA_CUDA_MEMORY_MAPPED, 1);
	if (!memory)
		return fa_fail(error, -ENOMEM, "no memory for a buffer");
	r = fa_cuda_memory_enter(device, error);
	if (r == 0)
		r = make_arena(device, memory, rounded, &fd, error);
	if (r < 0) {
		fa_cuda_memory_drop(device, memory, ret_memory);
		return r;
	}
	*ret_memory = (struct fa_device_memory){
		.address = (void *)memory->at,
		.bytes = bytes,
		.writable = true,
		.backend = memory,
	};
	*ret_fd = fd;
	*ret_piece_bytes = rounded;
	return 0;
}
