#include "client/cuda_memory.h"

#include "common/cleanup.h"
#include "common/packet.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UUID_TEXT_BYTES sizeof("GPU-01234567-89ab-cdef-0123-456789abcdef")

/* ---- the driver */

int fa_cuda_open(struct fa_error *error, const struct fa_cudriver **ret_driver)
{
	/* Without a lock, which a child of fork() might find held. */
	static struct fa_cudriver *_Atomic opened;
	struct fa_cudriver *driver = atomic_load(&opened), *none = NULL;
	CUresult result;
	int r;

	if (!driver) {
		driver = fa_new(struct fa_cudriver);
		if (!driver)
			return fa_fail(error, -ENOMEM, "no memory for the CUDA driver's table");
		r = fa_cudriver_open(FA_CUDRIVER_FOR_CLIENT, error, driver);
		if (r < 0) {
			free(driver);
			return r;
		}
		if (!atomic_compare_exchange_strong(&opened, &none, driver)) {
			free(driver); /* another thread opened the driver first */
			driver = none;
		}
	}
	result = driver->cuInit(0);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "CUDA cannot be used here");
	*ret_driver = driver;
	return 0;
}

/* ---- contexts */

/* driver NULL: nothing to restore. */
struct scope {
	const struct fa_cudriver *driver;
	CUcontext before;
	CUdevice retained; /* -1: none */
};

static void scope_leave(struct scope *scope)
{
	if (!scope->driver)
		return;
	(void)scope->driver->cuCtxSetCurrent(scope->before);
	if (scope->retained >= 0)
		(void)scope->driver->cuDevicePrimaryCtxRelease(scope->retained);
}

/* @at 0: the memory has no context. */
static int scope_enter(const struct fa_cudriver *driver, uint64_t at, CUdevice device,
                       struct fa_error *error, struct scope *ret_scope)
{
	struct scope scope = { .retained = -1 };
	CUcontext context = NULL;
	CUresult result;

	result = driver->cuCtxGetCurrent(&scope.before);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "the current context is unknown");
	if (!at || driver->cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at) !=
	                   CUDA_SUCCESS)
		context = NULL;
	if (context ? context == scope.before : !!scope.before) {
		*ret_scope = scope;
		return 0;
	}
	if (!context) {
		result = driver->cuDevicePrimaryCtxRetain(&context, device);
		if (result != CUDA_SUCCESS)
			return fa_cudriver_fail(driver, error, result, "the GPU has no context");
		scope.retained = device;
	}
	scope.driver = driver;
	result = driver->cuCtxSetCurrent(context);
	if (result != CUDA_SUCCESS) {
		scope_leave(&scope);
		return fa_cudriver_fail(driver, error, result,
		                        "the memory's context cannot be used");
	}
	*ret_scope = scope;
	return 0;
}

/* ---- devices */

static void uuid_text(const void *uuid, char text[UUID_TEXT_BYTES])
{
	const uint8_t *b = uuid;

	(void)snprintf(text, UUID_TEXT_BYTES,
	               "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
	               b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11],
	               b[12], b[13], b[14], b[15]);
}

static int device_check(const struct fa_cudriver *driver, uint64_t at, int ordinal,
                        const uint64_t uuid[2], struct fa_error *error)
{
	char expected[UUID_TEXT_BYTES], found[UUID_TEXT_BYTES];
	CUdevice device;
	CUresult result;
	CUuuid own;

	result = driver->cuDeviceGet(&device, ordinal);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGetUuid(&own, device);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "the memory's GPU is unknown");
	if (!memcmp(&own, uuid, sizeof(own)))
		return 0;
	uuid_text(&own, found);
	uuid_text(uuid, expected);
	return fa_fail(error, -ENOTSUP,
	               "0x%" PRIx64 " is memory of %s, and the daemon's is %s; copy it there, or "
	               "connect to the daemon of its own GPU",
	               at, found, expected);
}

static int device_find(const struct fa_cudriver *driver, const uint64_t uuid[2],
                       struct fa_error *error, CUdevice *ret_device)
{
	char expected[UUID_TEXT_BYTES];
	CUdevice device;
	CUuuid own;
	int n = 0;

	(void)driver->cuDeviceGetCount(&n);
	for (int i = 0; i < n; ++i)
		if (driver->cuDeviceGet(&device, i) == CUDA_SUCCESS &&
		    driver->cuDeviceGetUuid(&own, device) == CUDA_SUCCESS &&
		    !memcmp(&own, uuid, sizeof(own))) {
			*ret_device = device;
			return 0;
		}
	uuid_text(uuid, expected);
	return fa_fail(error, -ENODEV,
	               "the daemon's GPU, %s, is none of the %d that this process sees", expected,
	               n);
}

/* ---- allocations of a pointer */

static bool attribute(const struct fa_cudriver *driver, void *ret_value,
                      CUpointer_attribute attribute, uint64_t at)
{
	return driver->cuPointerGetAttribute(ret_value, attribute, at) == CUDA_SUCCESS;
}

static int check_kind(const struct fa_cudriver *driver, uint64_t at, struct fa_error *error)
{
	unsigned int managed = 0, type = 0;
	void *pool = NULL;

	if (!attribute(driver, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at))
		return fa_fail(error, -EINVAL,
		               "the CUDA driver knows no memory at 0x%" PRIx64
		               "; for memory of the host there are fa_buffer_new() and "
		               "fa_buffer_import_fd()",
		               at);
	if (attribute(driver, &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at) && managed)
		return fa_fail(error, -ENOTSUP,
		               "0x%" PRIx64
		               " is managed memory, which no other process can map; use "
		               "cuMemAlloc, or cuMemCreate with POSIX file descriptors",
		               at);
	if (type != CU_MEMORYTYPE_DEVICE)
		return fa_fail(error, -ENOTSUP,
		               "0x%" PRIx64 " is host memory; use fa_buffer_new(), or "
		               "fa_buffer_import_fd() for a memfd: the daemon pins it",
		               at);
	if (attribute(driver, &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at) && pool)
		return fa_fail(error, -ENOTSUP,
		               "0x%" PRIx64 " comes from a memory pool (cuMemAllocAsync), which "
		               "cannot be handed over; use cuMemAlloc, or cuMemCreate with POSIX "
		               "file descriptors",
		               at);
	return 0;
}

static bool is_legacy(const struct fa_cudriver *driver, uint64_t at)
{
	CUipcMemHandle handle;
	unsigned int capable = 0;

	if (attribute(driver, &capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at))
		return capable;
	return driver->cuIpcGetMemHandle(&handle, at) == CUDA_SUCCESS;
}

static int piece_find(const struct fa_cudriver *driver, uint64_t at, struct fa_error *error,
                      struct fa_cuda_piece *ret_piece, bool *ret_has_id)
{
	unsigned long long id = 0;
	CUdeviceptr base = 0;
	size_t bytes = 0;

	if (driver->cuMemGetAddressRange(&base, &bytes, at) != CUDA_SUCCESS || !bytes ||
	    at - base >= bytes)
		return fa_fail(error, -EINVAL, "nothing is allocated at 0x%" PRIx64, at);
	*ret_has_id = attribute(driver, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, base);
	*ret_piece = (struct fa_cuda_piece){ .at = base, .bytes = bytes, .buffer_id = id };
	return 0;
}

static int append(struct fa_cuda_allocations **memory, size_t *size,
                  const struct fa_cuda_piece *piece)
{
	size_t n = (*memory)->n_pieces;

	if (n == *size) {
		struct fa_cuda_allocations *larger;

		larger = realloc(*memory, sizeof(*larger) + 2 * n * sizeof(larger->pieces[0]));
		if (!larger)
			return -ENOMEM;
		*memory = larger;
		*size = 2 * n;
	}
	(*memory)->pieces[(*memory)->n_pieces++] = *piece;
	(*memory)->bytes += piece->bytes;
	return 0;
}

static int walk(const struct fa_cudriver *driver, uint64_t at, uint64_t end, struct fa_error *error,
                struct fa_cuda_allocations **memory)
{
	size_t size = 1;
	int r, ordinal;
	bool has_id = false;

	while ((*memory)->at + (*memory)->bytes < end) {
		struct fa_cuda_piece piece;
		uint64_t next = (*memory)->n_pieces ? (*memory)->at + (*memory)->bytes : at;

		if ((*memory)->n_pieces && (*memory)->by_ipc_handle)
			return fa_fail(error, -EINVAL,
			               "the range ends at 0x%" PRIx64
			               ", and the allocation that it begins in at 0x%" PRIx64,
			               end, next);
		if ((*memory)->n_pieces == FA_WIRE_PIECES_MAX)
			return fa_fail(
				error, -ENOTSUP,
				"the range lies in more than %d allocations; import parts of it",
				FA_WIRE_PIECES_MAX);
		r = piece_find(driver, next, error, &piece, &has_id);
		if (r < 0)
			return r;
		if (!attribute(driver, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, piece.at))
			return fa_fail(error, -EINVAL, "the GPU of 0x%" PRIx64 " is unknown", next);
		if (!(*memory)->n_pieces) {
			(*memory)->at = piece.at;
			(*memory)->device = ordinal;
			(*memory)->by_ipc_handle = is_legacy(driver, piece.at);
		} else if (ordinal != (*memory)->device || piece.at != next) {
			return fa_fail(error, -ENOTSUP,
			               "at 0x%" PRIx64
			               " something else begins, or memory of another "
			               "GPU; import the parts one by one",
			               next);
		}
		(*memory)->has_ids = (*memory)->has_ids && has_id;
		r = append(memory, &size, &piece);
		if (r < 0)
			return fa_fail(error, r, "no memory for a list of allocations");
	}
	return 0;
}

int fa_cuda_find(const struct fa_cudriver *driver, uint64_t at, uint64_t bytes,
                 const uint64_t uuid[2], struct fa_error *error,
                 struct fa_cuda_allocations **ret_memory)
{
	_fa_cleanup_(fa_freep) struct fa_cuda_allocations *memory = NULL;
	_fa_cleanup_(scope_leave) struct scope scope = {};
	int ordinal = 0, r;
	uint64_t end;

	if (!bytes || __builtin_add_overflow(at, bytes, &end))
		return fa_fail(error, -EINVAL, "%" PRIu64 " bytes at 0x%" PRIx64 " are no range",
		               bytes, at);
	r = check_kind(driver, at, error);
	if (r < 0)
		return r;
	if (!attribute(driver, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at))
		return fa_fail(error, -EINVAL, "the GPU of 0x%" PRIx64 " is unknown", at);
	r = device_check(driver, at, ordinal, uuid, error);
	if (r < 0)
		return r;
	r = scope_enter(driver, at, ordinal, error, &scope);
	if (r < 0)
		return r;
	memory = calloc(1, sizeof(*memory) + sizeof(memory->pieces[0]));
	if (!memory)
		return fa_fail(error, -ENOMEM, "no memory for a list of allocations");
	memory->has_ids = true;
	r = walk(driver, at, end, error, &memory);
	if (r < 0)
		return r;
	*ret_memory = fa_steal_ptr(memory);
	return 0;
}

bool fa_cuda_is_alive(const struct fa_cudriver *driver, const struct fa_cuda_allocations *memory)
{
	for (size_t i = 0; i < memory->n_pieces; ++i) {
		const struct fa_cuda_piece *piece = &memory->pieces[i];
		unsigned long long id = 0;

		if (!attribute(driver, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, piece->at) ||
		    id != piece->buffer_id)
			return false;
	}
	return true;
}

/* ---- exporting */

int fa_cuda_handle(const struct fa_cudriver *driver, const struct fa_cuda_allocations *memory,
                   struct fa_error *error, uint8_t ret_handle[FA_WIRE_HANDLE_BYTES])
{
	_fa_cleanup_(scope_leave) struct scope scope = {};
	CUipcMemHandle handle;
	CUresult result;
	int r;

	_Static_assert(sizeof(handle) == FA_WIRE_HANDLE_BYTES, "handles travel whole");
	r = scope_enter(driver, memory->at, memory->device, error, &scope);
	if (r < 0)
		return r;
	result = driver->cuIpcGetMemHandle(&handle, memory->at);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result,
		                        "the memory has no handle for other processes");
	memcpy(ret_handle, &handle, sizeof(handle));
	return 0;
}

static int export_handle(const struct fa_cudriver *driver, CUmemGenericAllocationHandle handle,
                         uint64_t at, struct fa_error *error, int *ret_fd)
{
	CUmemAllocationProp properties;
	CUresult result;
	int fd = -1;

	result = driver->cuMemGetAllocationPropertiesFromHandle(&properties, handle);
	if (result == CUDA_SUCCESS &&
	    !(properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return fa_fail(error, -ENOTSUP,
		               "the memory at 0x%" PRIx64
		               " was made by cuMemCreate without POSIX file "
		               "descriptors; set requestedHandleTypes to "
		               "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
		               at);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemExportToShareableHandle(
			&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "memory cannot be exported");
	(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	*ret_fd = fd;
	return 0;
}

static int export_piece(const struct fa_cudriver *driver, const struct fa_cuda_piece *piece,
                        struct fa_error *error, int *ret_fd)
{
	CUmemGenericAllocationHandle handle;
	int r;

	if (driver->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)piece->at) !=
	    CUDA_SUCCESS)
		return fa_fail(error, -ENOTSUP,
		               "the memory at 0x%" PRIx64
		               " is of a kind that cannot be handed over; "
		               "use cuMemAlloc, or cuMemCreate with POSIX file descriptors",
		               piece->at);
	r = export_handle(driver, handle, piece->at, error, ret_fd);
	(void)driver->cuMemRelease(handle);
	return r;
}

int fa_cuda_export(const struct fa_cudriver *driver, const struct fa_cuda_allocations *memory,
                   size_t first, size_t n, struct fa_error *error, int *ret_fds)
{
	_fa_cleanup_(scope_leave) struct scope scope = {};
	size_t done = 0;
	int r;

	r = scope_enter(driver, 0, memory->device, error, &scope);
	for (; r == 0 && done < n; ++done) {
		r = export_piece(driver, &memory->pieces[first + done], error, &ret_fds[done]);
		if (r < 0)
			break;
	}
	if (r < 0)
		fa_packet_close_fds(ret_fds, done);
	return r;
}

/* ---- mapping */

static int map(const struct fa_cudriver *driver, int fd, struct fa_cuda_mapping *mapping,
               struct fa_error *error)
{
	const CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = mapping->device },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at = 0;
	CUresult result;

	result = driver->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
	                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result,
		                        "the daemon's memory cannot be imported");
	result = driver->cuMemAddressReserve(&at, mapping->bytes, 0, 0, 0);
	if (result == CUDA_SUCCESS) {
		result = driver->cuMemMap(at, mapping->bytes, 0, handle, 0);
		if (result == CUDA_SUCCESS) {
			result = driver->cuMemSetAccess(at, mapping->bytes, &access, 1);
			if (result != CUDA_SUCCESS)
				(void)driver->cuMemUnmap(at, mapping->bytes);
		}
		if (result != CUDA_SUCCESS)
			(void)driver->cuMemAddressFree(at, mapping->bytes);
	}
	/* The mapping keeps the memory alive. */
	(void)driver->cuMemRelease(handle);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result,
		                        "the daemon's memory cannot be mapped");
	mapping->at = at;
	return 0;
}

int fa_cuda_map(const struct fa_cudriver *driver, int fd, uint64_t bytes, const uint64_t uuid[2],
                struct fa_error *error, struct fa_cuda_mapping *ret_mapping)
{
	struct fa_cuda_mapping mapping = { .bytes = bytes };
	struct scope scope = {};
	int r;

	r = device_find(driver, uuid, error, &mapping.device);
	if (r == 0)
		r = scope_enter(driver, 0, mapping.device, error, &scope);
	if (r < 0)
		return r;
	r = map(driver, fd, &mapping, error);
	/* A primary context that was retained here lives as long as the mapping. */
	if (r == 0 && scope.retained >= 0) {
		scope.retained = -1;
		mapping.retained = true;
	}
	scope_leave(&scope);
	if (r == 0)
		*ret_mapping = mapping;
	return r;
}

void fa_cuda_unmap(const struct fa_cudriver *driver, const struct fa_cuda_mapping *mapping)
{
	(void)driver->cuMemUnmap(mapping->at, mapping->bytes);
	(void)driver->cuMemAddressFree(mapping->at, mapping->bytes);
	if (mapping->retained)
		(void)driver->cuDevicePrimaryCtxRelease(mapping->device);
}
