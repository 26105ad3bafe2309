/*
 * Frees clients' memory, and opens CUDA IPC handles (other imports: host.c, vmm.c), on workers, of
 * which one at a time calls the driver (driver_lock.h). Sizes and places are the driver's, not the
 * client's. Requests are checked before launch, so read-only memory may be mapped writable.
 */
#include "daemon/backend/cuda/memory.h"

#include "daemon/backend/cuda/context.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Unmapping so much takes long: the window is closed first. */
#define LARGE_BYTES ((uint64_t)16 << 20)

int fa_cuda_memory_fail(struct fa_device *device, struct fa_error *error, CUresult result,
                        const char *doing)
{
	return fa_cuda_fail(device, device->memory_stream, error, result, doing);
}

int fa_cuda_memory_enter(struct fa_device *device, struct fa_error *error)
{
	CUresult result = fa_cuda_enter(device);

	return result ? fa_cuda_memory_fail(device, error, result,
	                                    "the GPU's context cannot be used")
	              : 0;
}

/* ---- freeing */

static void unpin(struct fa_device *device, struct fa_cuda_quiesce_window *window,
                  struct fa_cuda_memory *memory)
{
	bool unpinned = true;

	while (memory->pinned_bytes) {
		fa_cuda_quiesce_window_open(window);

		FA_CUDA_HOLD_DRIVER_LOCK(&device->memory_lock);

		if (fa_cuda_quiesce_window_expired(window))
			continue;
		memory->pinned_bytes = (memory->pinned_bytes - 1) / memory->part_bytes *
		                       memory->part_bytes;
		if (device->driver.cuMemHostUnregister(memory->host + memory->pinned_bytes) !=
		    CUDA_SUCCESS)
			unpinned = false;
		if (memory->pinned_bytes &&
		    !atomic_load_explicit(&device->lost, memory_order_relaxed))
			fa_cuda_sleep(device->tuning.pin_pause_ns);
	}
	if (memory->bytes >= LARGE_BYTES)
		fa_cuda_quiesce_window_close(window);
	/* If unpinning failed, the driver may think them pinned: not to be reused. */
	if (memory->host && unpinned)
		(void)munmap(memory->host, memory->bytes);
	memory->host = NULL;
	memory->at = 0;
}

static void unmap_pieces(struct fa_device *device, struct fa_cuda_memory *memory)
{
	CUdeviceptr at = memory->at;

	FA_CUDA_HOLD_DRIVER_LOCK(&device->memory_lock);
	for (size_t i = 0; i < memory->n_mapped; ++i) {
		(void)device->driver.cuMemUnmap(at, memory->piece_bytes[i]);
		at += memory->piece_bytes[i];
		if (i + 1 < memory->n_mapped)
			fa_cuda_driver_lock_yield(&device->memory_lock, FA_CUDA_PIECE_PAUSE_NS);
	}
	if (memory->at)
		(void)device->driver.cuMemAddressFree(memory->at, memory->bytes);
}

/* The memory may be half-made. */
static struct fa_cuda_memory *memory_free(struct fa_device *device,
                                          struct fa_cuda_quiesce_window *window,
                                          struct fa_cuda_memory *memory)
{
	if (!memory)
		return NULL;
	switch (memory->kind) {
	case FA_CUDA_MEMORY_HOST:
		unpin(device, window, memory);
		break;
	case FA_CUDA_MEMORY_IPC:
		while (memory->at) {
			fa_cuda_quiesce_window_open(window);

			FA_CUDA_HOLD_DRIVER_LOCK(&device->memory_lock);

			if (fa_cuda_quiesce_window_expired(window))
				continue;
			(void)device->driver.cuIpcCloseMemHandle(memory->at);
			memory->at = 0;
		}
		break;
	case FA_CUDA_MEMORY_MAPPED:
		unmap_pieces(device, memory);
		break;
	}
	free(memory);
	return NULL;
}

void fa_cuda_memory_drop(struct fa_device *device, struct fa_cuda_memory *memory,
                         struct fa_device_memory *ret_memory)
{
	struct fa_cuda_quiesce_window window = { .quiesce = &device->quiesce };

	if (memory && (memory->kind == FA_CUDA_MEMORY_HOST
	                       ? memory->pinned_bytes > 0
	                       : memory->kind == FA_CUDA_MEMORY_IPC && memory->at))
		*ret_memory = (struct fa_device_memory){ .backend = memory };
	else
		memory_free(device, &window, memory);
}

const void *fa_cuda_memory_host(struct fa_device *device, const struct fa_device_memory *memory)
{
	const struct fa_cuda_memory *cuda = memory->backend;

	return cuda->host ? cuda->host + ((CUdeviceptr)memory->address - cuda->at) : NULL;
}

void fa_cuda_memory_release(struct fa_device *device, struct fa_device_memory *const *memories,
                            size_t n)
{
	struct fa_cuda_quiesce_window window = { .quiesce = &device->quiesce };

	/* On a lost device all calls fail. */
	(void)fa_cuda_enter(device);
	/* Releases first what needs no waiting. */
	for (int waits = 0; waits < 2; ++waits) {
		for (size_t i = 0; i < n; ++i) {
			struct fa_cuda_memory *memory = memories[i]->backend;

			if (!memory || (memory->kind != FA_CUDA_MEMORY_MAPPED) != waits)
				continue;
			memory_free(device, &window, memory);
			*memories[i] = (struct fa_device_memory){ 0 };
		}
	}
	fa_cuda_quiesce_window_close(&window);
}

struct fa_cuda_memory *fa_cuda_memory_new(enum fa_cuda_memory_kind kind, size_t n_pieces)
{
	struct fa_cuda_memory *memory;

	memory = calloc(1, sizeof(*memory) + n_pieces * sizeof(memory->piece_bytes[0]));
	if (memory)
		memory->kind = kind;
	return memory;
}

bool fa_cuda_memory_fits(uint64_t offset, uint64_t bytes, uint64_t whole_bytes)
{
	return bytes <= whole_bytes && offset <= whole_bytes - bytes;
}

/* ---- CUDA IPC */

static int explain_ipc(struct fa_device *device, CUresult result, struct fa_error *error)
{
	struct fa_error why;
	int r;

	r = fa_cuda_memory_fail(device, &why, result, "the CUDA IPC handle cannot be opened");
	if (r == -ENODEV || r == -ENOMEM)
		return fa_fail(error, r, "%s", why.text);
	if (result == CUDA_ERROR_INVALID_CONTEXT)
		return fa_fail(error, -ENOTSUP,
		               "%.100s; such handles do not work where owner and daemon have the "
		               "same PID, each in its container: use memory that is exported as a "
		               "file descriptor",
		               why.text);
	return fa_fail(error, -EINVAL,
	               "%.120s; the memory was freed, its process has ended, or this is no handle",
	               why.text);
}

static int check_ipc(struct fa_device *device, struct fa_cuda_memory *memory, uint64_t offset,
                     uint64_t bytes, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	CUdeviceptr base;
	CUresult result;
	int ordinal = -1;
	size_t size;

	result = driver->cuMemGetAddressRange(&base, &size, memory->at);
	if (result == CUDA_SUCCESS)
		result = driver->cuPointerGetAttribute(
			&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory->at);
	if (result != CUDA_SUCCESS)
		return fa_cuda_memory_fail(device, error, result,
		                           "the driver does not know the memory");
	if (ordinal != device->ordinal)
		return fa_fail(error, -ENOTSUP,
		               "the memory is on GPU %d; this daemon serves GPU %d", ordinal,
		               device->ordinal);
	/* The allocation may begin before the handle's address. */
	memory->bytes = base + size - memory->at;
	if (!fa_cuda_memory_fits(offset, bytes, memory->bytes))
		return fa_fail(error, -EINVAL,
		               "offset %" PRIu64 " and %" PRIu64
		               " bytes are beyond the allocation, which has %" PRIu64 " bytes",
		               offset, bytes, memory->bytes);
	return 0;
}

/* The driver counts opens of a handle; the last close unmaps it. */
int fa_cuda_memory_import_ipc(struct fa_device *device, const uint8_t handle[64], uint64_t offset,
                              uint64_t bytes, bool read_only, struct fa_error *error,
                              struct fa_device_memory *ret_memory)
{
	struct fa_cuda_memory *memory;
	CUipcMemHandle copy;
	CUresult result;
	int r;

	memory = fa_cuda_memory_new(FA_CUDA_MEMORY_IPC, 0);
	if (!memory)
		return fa_fail(error, -ENOMEM, "no memory for a buffer");
	memcpy(&copy, handle, sizeof(copy));
	r = fa_cuda_memory_enter(device, error);
	if (r == 0) {
		FA_CUDA_HOLD_DRIVER_LOCK(&device->memory_lock);

		result = device->driver.cuIpcOpenMemHandle(&memory->at, copy,
		                                           CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
		if (result != CUDA_SUCCESS) {
			memory->at = 0;
			r = explain_ipc(device, result, error);
		} else {
			r = check_ipc(device, memory, offset, bytes, error);
		}
	}
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
