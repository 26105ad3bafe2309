/* Virtual memory management: handles (cuMemCreate), reservations, mappings. */
#include "tests/cuda-driver/driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAME "fad-cuda-vmm"

/* A handle of memory. It counts references: each return of the handle needs a cuMemRelease. */
struct handle {
	struct handle *next;
	struct fa_fake_memory *memory;
	unsigned int refs;
};

struct reservation {
	struct reservation *next;
	CUdeviceptr at;
	size_t bytes;
};

static struct handle *handles;
static struct reservation *reservations;

static bool granular(uint64_t value)
{
	return value % FA_FAKE_GRANULARITY == 0;
}

/* ---- handles */

static struct handle *handle_find(CUmemGenericAllocationHandle value)
{
	for (struct handle *handle = handles; handle; handle = handle->next)
		if ((uintptr_t)handle == value)
			return handle;
	return NULL;
}

/* Makes a handle, which takes over a reference to @memory. */
static CUresult handle_new(struct fa_fake_memory *memory, CUmemGenericAllocationHandle *ret_handle)
{
	struct handle *handle = calloc(1, sizeof(*handle));

	if (!handle) {
		fa_fake_memory_unref(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*handle = (struct handle){ .next = handles, .memory = memory, .refs = 1 };
	handles = handle;
	fa_fake_count(FA_TEST_CUDA_HANDLES, 1);
	*ret_handle = (uintptr_t)handle;
	return CUDA_SUCCESS;
}

static CUresult properties_check(const CUmemAllocationProp *properties)
{
	if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    properties->requestedHandleTypes & ~1u)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->location.id < 0 || properties->location.id >= fa_fake.n_devices)
		return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *ret_bytes, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option)
{
	CUresult result;

	FA_FAKE_ENTER(cuMemGetAllocationGranularity, FA_FAKE_INIT);
	result = properties_check(properties);
	if (result != CUDA_SUCCESS)
		return result;
	if (option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_bytes = FA_FAKE_GRANULARITY;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *ret_handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
	struct fa_fake_memory *memory;
	CUresult result;
	char name[64];

	FA_FAKE_ENTER(cuMemCreate, FA_FAKE_INIT | FA_FAKE_ALIVE);
	result = properties_check(properties);
	if (result != CUDA_SUCCESS)
		return result;
	if (!bytes || !granular(bytes) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	/* Importers read the properties from the memfd's name. */
	snprintf(name, sizeof(name), NAME ":%d:%u", properties->location.id,
	         properties->requestedHandleTypes);
	fa_fake_lock();
	if (fa_fake_memory_new(name, bytes, properties->location.id,
	                       properties->requestedHandleTypes, &memory) < 0)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else
		result = handle_new(memory, ret_handle);
	fa_fake_unlock();
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle value)
{
	struct handle *handle;

	FA_FAKE_ENTER(cuMemRelease, FA_FAKE_INIT | FA_FAKE_ALIVE);
	fa_fake_lock();
	handle = handle_find(value);
	if (handle) {
		fa_fake_count(FA_TEST_CUDA_HANDLES, -1);
		if (!--handle->refs) {
			struct handle **at = &handles;

			while (*at != handle)
				at = &(*at)->next;
			*at = handle->next;
			fa_fake_memory_unref(handle->memory);
			free(handle);
		}
	}
	fa_fake_unlock();
	return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *ret_handle, void *at)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct fa_fake_region *region;

	FA_FAKE_ENTER(cuMemRetainAllocationHandle, FA_FAKE_INIT | FA_FAKE_ALIVE);
	fa_fake_lock();
	region = fa_fake_region_find((CUdeviceptr)(uintptr_t)at);
	if (region && region->kind == FA_FAKE_VMM) {
		struct handle *handle = handles;

		while (handle && handle->memory != region->memory)
			handle = handle->next;
		if (handle) {
			++handle->refs;
			fa_fake_count(FA_TEST_CUDA_HANDLES, 1);
			*ret_handle = (uintptr_t)handle;
			result = CUDA_SUCCESS;
		} else {
			++region->memory->refs;
			result = handle_new(region->memory, ret_handle);
		}
	}
	fa_fake_unlock();
	return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *ret_properties,
                                                CUmemGenericAllocationHandle value)
{
	const struct handle *handle;

	FA_FAKE_ENTER(cuMemGetAllocationPropertiesFromHandle, FA_FAKE_INIT | FA_FAKE_ALIVE);
	fa_fake_lock();
	handle = handle_find(value);
	if (handle)
		*ret_properties = (CUmemAllocationProp){
			.type = CU_MEM_ALLOCATION_TYPE_PINNED,
			.requestedHandleTypes = handle->memory->handle_types,
			.location = { CU_MEM_LOCATION_TYPE_DEVICE, handle->memory->device },
		};
	fa_fake_unlock();
	return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- descriptors */

CUresult cuMemExportToShareableHandle(void *ret_handle, CUmemGenericAllocationHandle value,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	const struct handle *handle;
	int fd;

	FA_FAKE_ENTER(cuMemExportToShareableHandle, FA_FAKE_INIT | FA_FAKE_ALIVE);
	fa_fake_lock();
	handle = handle_find(value);
	if (handle && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags &&
	    handle->memory->handle_types & type) {
		fd = fcntl(handle->memory->fd, F_DUPFD_CLOEXEC, 3);
		result = fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
		if (result == CUDA_SUCCESS)
			*(int *)ret_handle = fd;
	}
	fa_fake_unlock();
	return result;
}

/* Returns whether @fd is memory that cuMemCreate made, in any process. */
static bool fd_is_ours(int fd, int *ret_device, unsigned int *ret_handle_types)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	char path[40], link[128];
	int end = 0, got;
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, link, sizeof(link) - 1);
	if (length < 0)
		return false;
	link[length] = 0;
	if (sscanf(link, "/memfd:" NAME ":%d:%u%n", ret_device, ret_handle_types, &end) != 2 ||
	    strcmp(link + end, " (deleted)") || *ret_device < 0 || *ret_device >= fa_fake.n_devices)
		return false;
	got = fcntl(fd, F_GET_SEALS);
	return got >= 0 && (got & seals) == seals;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret_handle, void *os_handle,
                                        CUmemAllocationHandleType type)
{
	const int fd = (int)(intptr_t)os_handle;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	struct fa_fake_memory *memory;
	unsigned int handle_types;
	int device, copy;

	FA_FAKE_ENTER(cuMemImportFromShareableHandle, FA_FAKE_INIT | FA_FAKE_ALIVE);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !fd_is_ours(fd, &device, &handle_types))
		return CUDA_ERROR_INVALID_VALUE;
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (copy < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fa_fake_lock();
	if (fa_fake_memory_from_fd(copy, device, handle_types, &memory) == 0)
		result = handle_new(memory, ret_handle);
	fa_fake_unlock();
	return result;
}

/* ---- reservations and mappings */

/* Returns the reservation that has all of [at, at + bytes). */
static struct reservation *reservation_find(CUdeviceptr at, size_t bytes)
{
	for (struct reservation *item = reservations; item; item = item->next)
		if (at >= item->at && bytes <= item->bytes && at - item->at <= item->bytes - bytes)
			return item;
	return NULL;
}

CUresult cuMemAddressReserve(CUdeviceptr *ret_at, size_t bytes, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags)
{
	struct reservation *item;
	int r = -1;

	FA_FAKE_ENTER(cuMemAddressReserve, FA_FAKE_INIT | FA_FAKE_ALIVE);
	if (!bytes || !granular(bytes) || alignment & (alignment - 1) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < FA_FAKE_GRANULARITY)
		alignment = FA_FAKE_GRANULARITY;
	item = calloc(1, sizeof(*item));
	if (!item)
		return CUDA_ERROR_OUT_OF_MEMORY;
	item->bytes = bytes;
	fa_fake_lock();
	r = fa_fake_space_take(bytes, alignment, &item->at);
	if (r == 0) {
		item->next = reservations;
		reservations = item;
		*ret_at = item->at;
		fa_fake_count(FA_TEST_CUDA_RESERVATIONS, 1);
	}
	fa_fake_unlock();
	if (r < 0)
		free(item);
	return r < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct reservation *item;

	FA_FAKE_ENTER(cuMemAddressFree, FA_FAKE_INIT | FA_FAKE_ALIVE);
	fa_fake_lock();
	item = reservation_find(at, bytes);
	if (item && item->at == at && item->bytes == bytes && !fa_fake_region_overlaps(at, bytes)) {
		struct reservation **link = &reservations;

		while (*link != item)
			link = &(*link)->next;
		*link = item->next;
		fa_fake_space_give(at);
		free(item);
		fa_fake_count(FA_TEST_CUDA_RESERVATIONS, -1);
		result = CUDA_SUCCESS;
	}
	fa_fake_unlock();
	return result;
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle value,
                  unsigned long long flags)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct fa_fake_region *region;
	struct handle *handle;

	FA_FAKE_ENTER(cuMemMap, FA_FAKE_INIT | FA_FAKE_ALIVE);
	fa_fake_lock();
	handle = handle_find(value);
	if (handle && !flags && !offset && bytes == handle->memory->bytes && granular(at) &&
	    reservation_find(at, bytes) && !fa_fake_region_overlaps(at, bytes)) {
		/* The region is inaccessible until cuMemSetAccess. */
		const struct fa_fake_region like = {
			.at = at,
			.bytes = bytes,
			.mapped_bytes = bytes,
			.kind = FA_FAKE_VMM,
			.device = handle->memory->device,
			.memory = handle->memory,
		};

		if (fa_fake_space_map(&like) < 0) {
			result = CUDA_ERROR_OUT_OF_MEMORY;
		} else if (fa_fake_region_new(&like, &region) < 0) {
			fa_fake_space_unmap(at, bytes);
			result = CUDA_ERROR_OUT_OF_MEMORY;
		} else {
			++handle->memory->refs;
			fa_fake_count(FA_TEST_CUDA_MAPPINGS, 1);
			result = CUDA_SUCCESS;
		}
	}
	fa_fake_unlock();
	return result;
}

/* Returns whether [at, at + bytes) consists of whole mappings. */
static bool is_whole_mappings(CUdeviceptr at, size_t bytes)
{
	CUdeviceptr end;

	if (!bytes || __builtin_add_overflow(at, bytes, &end))
		return false;
	while (at < end) {
		const struct fa_fake_region *region = fa_fake_region_find(at);

		if (!region || region->kind != FA_FAKE_VMM || region->at != at)
			return false;
		at += region->bytes;
	}
	return at == end;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUdeviceptr end = at + bytes;

	FA_FAKE_ENTER(cuMemUnmap, FA_FAKE_INIT | FA_FAKE_ALIVE);
	fa_fake_lock();
	if (is_whole_mappings(at, bytes)) {
		while (at < end) {
			struct fa_fake_region *region = fa_fake_region_find(at);
			struct fa_fake_memory *memory;
			size_t piece_bytes;

			if (!region) /* another thread has unmapped the region meanwhile */
				break;
			memory = region->memory;
			piece_bytes = region->bytes;
			fa_fake_region_drop(region, false);
			fa_fake_space_unmap(at, piece_bytes);
			fa_fake_memory_unref(memory);
			fa_fake_count(FA_TEST_CUDA_MAPPINGS, -1);
			at += piece_bytes;
		}
		result = CUDA_SUCCESS;
	}
	fa_fake_unlock();
	return result;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	const CUdeviceptr end = at + bytes;

	FA_FAKE_ENTER(cuMemSetAccess, FA_FAKE_INIT | FA_FAKE_ALIVE);
	if (count != 1 || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    (access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
	     access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
		return CUDA_ERROR_INVALID_VALUE;
	fa_fake_lock();
	if (is_whole_mappings(at, bytes)) {
		result = CUDA_SUCCESS;
		for (CUdeviceptr piece = at; piece < end;) {
			const struct fa_fake_region *region = fa_fake_region_find(piece);

			if (region->device != access->location.id)
				result = CUDA_ERROR_INVALID_DEVICE;
			piece += region->bytes;
		}
	}
	while (result == CUDA_SUCCESS && at < end) {
		struct fa_fake_region *region = fa_fake_region_find(at);

		region->readable = true;
		region->writable = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		mprotect((void *)(uintptr_t)at, region->bytes,
		         PROT_READ | (region->writable ? PROT_WRITE : 0));
		at += region->bytes;
	}
	fa_fake_unlock();
	return result;
}
