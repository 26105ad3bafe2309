/*
 * The CUDA backend's memory: what clients handed over, as the GPU addresses it. All of
 * it is done by workers, who take turns: the driver has locks of its own that launches
 * need, too, and one caller at a time who pauses now and then leaves them room.
 *
 * Nothing is believed: sizes, places and kinds of allocations come from the driver.
 * Whether a tensor lies inside its memory is checked before a request is launched, so
 * that memory which a client gave for reading is safe even where the driver maps it for
 * writing, too.
 */
#include "daemon/device_cuda.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Between the allocations of one buffer. */
#define PIECE_PAUSE_NS (20 * FA_NS_PER_US)
/* How often it is looked whether memory is zeroed. */
#define ZERO_POLL_NS (50 * FA_NS_PER_US)

/* ---- turns */

static void pause_ns(uint64_t ns)
{
	const struct timespec time = {
		.tv_sec = (time_t)(ns / FA_NS_PER_SEC),
		.tv_nsec = (long)(ns % FA_NS_PER_SEC),
	};

	if (ns)
		(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static struct fa_device *turn_begin(struct fa_device *device)
{
	struct fa_cuda_turn *turn = &device->turn;
	uint64_t mine;

	pthread_mutex_lock(&turn->mutex);
	mine = turn->n_asked++;
	while (turn->n_done != mine)
		pthread_cond_wait(&turn->next, &turn->mutex);
	pthread_mutex_unlock(&turn->mutex);
	return device;
}

static void turn_endp(struct fa_device **device)
{
	struct fa_cuda_turn *turn = &(*device)->turn;

	pthread_mutex_lock(&turn->mutex);
	++turn->n_done;
	pthread_cond_broadcast(&turn->next);
	pthread_mutex_unlock(&turn->mutex);
}

/* Until the end of the block. */
#define TAKE_TURN(device)                                                                          \
	_fa_cleanup_(turn_endp) struct fa_device *_turn __attribute__((unused)) = turn_begin(device)

static int fail(struct fa_device *device, struct fa_error *error, CUresult result,
                const char *doing)
{
	return fa_cuda_fail(device, device->memory_stream, error, result, doing);
}

static int enter(struct fa_device *device, struct fa_error *error)
{
	CUresult result = fa_cuda_enter(device);

	return result ? fail(device, error, result, "the GPU's context cannot be used") : 0;
}

/* ---- the end of memory, however far it had got */

static void unpin(struct fa_device *device, struct fa_cuda_memory *memory)
{
	while (memory->pinned_bytes) {
		TAKE_TURN(device);

		/* The last part may be shorter. */
		memory->pinned_bytes = (memory->pinned_bytes - 1) / memory->part_bytes *
		                       memory->part_bytes;
		(void)device->driver.cuMemHostUnregister(memory->host + memory->pinned_bytes);
		if (memory->pinned_bytes)
			pause_ns(device->pin_pause_ns);
	}
}

static void unmap_pieces(struct fa_device *device, struct fa_cuda_memory *memory)
{
	CUdeviceptr at = memory->at;

	TAKE_TURN(device);
	for (size_t i = 0; i < memory->n_mapped; ++i) {
		(void)device->driver.cuMemUnmap(at, memory->piece_bytes[i]);
		at += memory->piece_bytes[i];
		if (i + 1 < memory->n_mapped)
			pause_ns(PIECE_PAUSE_NS);
	}
	if (memory->at)
		(void)device->driver.cuMemAddressFree(memory->at, memory->bytes);
}

static struct fa_cuda_memory *memory_free(struct fa_device *device, struct fa_cuda_memory *memory)
{
	if (!memory)
		return NULL;
	switch (memory->kind) {
	case FA_CUDA_MEMORY_HOST:
		unpin(device, memory);
		if (memory->host)
			(void)munmap(memory->host, memory->bytes);
		break;
	case FA_CUDA_MEMORY_IPC:
		if (memory->at) {
			TAKE_TURN(device);

			(void)device->driver.cuIpcCloseMemHandle(memory->at);
		}
		break;
	case FA_CUDA_MEMORY_MAPPED:
		unmap_pieces(device, memory);
		break;
	}
	free(memory);
	return NULL;
}

void fa_cuda_memory_release(struct fa_device *device, struct fa_device_memory *memory)
{
	/* On a lost device calls fail; what they would free ends with the process. */
	(void)fa_cuda_enter(device);
	memory_free(device, memory->backend);
	*memory = (struct fa_device_memory){ 0 };
}

static struct fa_cuda_memory *memory_new(enum fa_cuda_memory_kind kind, size_t n_pieces)
{
	struct fa_cuda_memory *memory;

	memory = calloc(1, sizeof(*memory) + n_pieces * sizeof(memory->piece_bytes[0]));
	if (memory)
		memory->kind = kind;
	return memory;
}

/* Whether [offset, offset + bytes) lies in @whole_bytes. */
static bool fits(uint64_t offset, uint64_t bytes, uint64_t whole_bytes)
{
	return bytes <= whole_bytes && offset <= whole_bytes - bytes;
}

/* ---- host memory */

/* Pinning faults in what is not there; before that, it is done without the driver. */
static int populate(struct fa_cuda_memory *memory, bool read_only, struct fa_error *error)
{
	if (madvise(memory->host, memory->bytes,
	            read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno == EINVAL) /* a kernel before 5.14: pinning will do it */
		return 0;
	return fa_fail(error, errno == ENOMEM ? -ENOMEM : -EIO,
	               "%" PRIu64 " bytes of the memfd cannot be brought into memory: %m",
	               memory->bytes);
}

/* Pins what is mapped, in parts of part_bytes. */
static int pin(struct fa_device *device, struct fa_cuda_memory *memory, unsigned int flags,
               struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	CUresult result;
	uint64_t bytes;
	CUdeviceptr at;
	char *host;

	flags |= CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE;
	while (memory->pinned_bytes < memory->bytes) {
		TAKE_TURN(device);

		host = memory->host + memory->pinned_bytes;
		bytes = memory->bytes - memory->pinned_bytes;
		if (bytes > memory->part_bytes)
			bytes = memory->part_bytes;
		result = driver->cuMemHostRegister(host, bytes, flags);
		if (result != CUDA_SUCCESS)
			return fail(device, error, result, "host memory cannot be pinned");
		memory->pinned_bytes += bytes;
		result = driver->cuMemHostGetDevicePointer(&at, host, 0);
		if (result != CUDA_SUCCESS)
			return fail(device, error, result, "pinned memory has no address");
		if (host == memory->host)
			memory->at = at;
		/* Parts follow one another as the GPU sees them, too, where it uses the
		 * process's addresses. */
		if (at != memory->at + (uint64_t)(host - memory->host))
			return fa_fail(error, -ENOTSUP,
			               "%" PRIu64 " bytes of pinned memory are not in one piece "
			               "for the GPU; register at most %" PRIu64 " at once",
			               memory->bytes, memory->part_bytes);
		if (memory->pinned_bytes < memory->bytes)
			pause_ns(device->pin_pause_ns);
	}
	return 0;
}

static int map_and_pin(struct fa_device *device, struct fa_cuda_memory *memory, int fd,
                       uint64_t offset, bool read_only, unsigned int flags, struct fa_error *error)
{
	void *host;
	int r;

	host = mmap(NULL, memory->bytes, PROT_READ | (read_only ? 0 : PROT_WRITE), MAP_SHARED, fd,
	            (off_t)offset);
	if (host == MAP_FAILED)
		return fa_fail(error, -errno,
		               "%" PRIu64 " bytes at %" PRIu64
		               " of the memfd cannot be mapped %s: %m",
		               memory->bytes, offset, read_only ? "for reading" : "for writing");
	memory->host = host;
	/* Clients' tensors do not belong in a core dump. */
	(void)madvise(host, memory->bytes, MADV_DONTDUMP);
	r = populate(memory, read_only, error);
	if (r == 0)
		r = pin(device, memory, flags, error);
	if (r < 0) {
		unpin(device, memory);
		(void)munmap(host, memory->bytes);
		memory->host = NULL;
		memory->at = 0;
	}
	return r;
}

/*
 * Pages stay what they are while they are pinned, whatever the client does to its file:
 * who punches holes into it parts with what the GPU sees, and harms nobody else.
 */
int fa_cuda_memory_import_host(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                               bool read_only, struct fa_error *error,
                               struct fa_device_memory *ret_memory)
{
	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	struct fa_cuda_memory *memory;
	struct fa_error again;
	int r;

	if (bytes > UINT64_MAX - page_bytes)
		return fa_fail(error, -EINVAL, "%" PRIu64 " bytes are too many", bytes);
	memory = memory_new(FA_CUDA_MEMORY_HOST, 0);
	if (!memory)
		return fa_fail(error, -ENOMEM, "no memory for a buffer");
	memory->bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
	memory->part_bytes = device->pin_part_bytes;
	r = enter(device, error);
	if (r == 0)
		r = map_and_pin(device, memory, fd, offset, read_only,
		                read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0, error);
	/* Some drivers do not pin for reading alone; a file that can be written can be
	 * pinned for both. */
	if (r < 0 && read_only && r != -ENODEV && r != -ENOMEM &&
	    map_and_pin(device, memory, fd, offset, false, 0, &again) == 0)
		r = 0;
	if (r < 0) {
		memory_free(device, memory);
		return r;
	}
	*ret_memory = (struct fa_device_memory){
		.address = (void *)memory->at,
		.bytes = bytes,
		.writable = !read_only,
		.backend = memory,
	};
	return 0;
}

/* ---- memory by its handle */

static int explain_ipc(struct fa_device *device, CUresult result, struct fa_error *error)
{
	struct fa_error why;
	int r;

	r = fail(device, &why, result, "the CUDA IPC handle cannot be opened");
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

/* What the driver says of the allocation behind the handle. */
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
		return fail(device, error, result, "the driver does not know the memory");
	if (ordinal != device->ordinal)
		return fa_fail(error, -ENOTSUP,
		               "the memory is on GPU %d; this daemon serves GPU %d", ordinal,
		               device->ordinal);
	/* An allocation may begin before the address that its handle stands for. */
	memory->bytes = base + size - memory->at;
	if (!fits(offset, bytes, memory->bytes))
		return fa_fail(error, -EINVAL,
		               "offset %" PRIu64 " and %" PRIu64
		               " bytes are beyond the allocation, which has %" PRIu64 " bytes",
		               offset, bytes, memory->bytes);
	return 0;
}

/* The driver counts how often a handle was opened, and unmaps it with the last close. */
int fa_cuda_memory_import_ipc(struct fa_device *device, const uint8_t handle[64], uint64_t offset,
                              uint64_t bytes, bool read_only, struct fa_error *error,
                              struct fa_device_memory *ret_memory)
{
	struct fa_cuda_memory *memory;
	CUipcMemHandle copy;
	CUresult result;
	int r;

	memory = memory_new(FA_CUDA_MEMORY_IPC, 0);
	if (!memory)
		return fa_fail(error, -ENOMEM, "no memory for a buffer");
	memcpy(&copy, handle, sizeof(copy));
	r = enter(device, error);
	if (r == 0) {
		TAKE_TURN(device);

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
		memory_free(device, memory);
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

/* ---- memory by descriptors */

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
		return fail(device, error, result, "no addresses for the buffer");
	}
	memory->bytes = bytes;
	return 0;
}

static int set_access(struct fa_device *device, struct fa_cuda_memory *memory, bool read_only,
                      struct fa_error *error)
{
	CUmemAccessDesc access = { .location = location(device) };
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;

	if (read_only) {
		access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
		result = device->driver.cuMemSetAccess(memory->at, memory->bytes, &access, 1);
	}
	/* Not every driver maps the GPU's own memory for reading alone. */
	if (result != CUDA_SUCCESS) {
		access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		result = device->driver.cuMemSetAccess(memory->at, memory->bytes, &access, 1);
	}
	return result ? fail(device, error, result, "the memory cannot be made accessible") : 0;
}

/* Maps one allocation behind those that are mapped. */
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
		return fail(device, error, result, "the descriptor stands for no allocation");
	result = driver->cuMemGetAllocationPropertiesFromHandle(&properties, allocation);
	if (result != CUDA_SUCCESS) {
		r = fail(device, error, result, "the allocation is unknown");
	} else if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	           properties.location.id != device->ordinal) {
		r = fa_fail(error, -ENOTSUP,
		            "the allocation is not on GPU %d, which this daemon serves",
		            device->ordinal);
	} else {
		result = driver->cuMemMap(at, piece->bytes, 0, allocation, 0);
		if (result != CUDA_SUCCESS)
			r = fail(device, error, result,
			         "the allocation cannot be mapped, is its size right?");
	}
	/* What is mapped lives on without it. */
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
	if (!fits(offset, bytes, sum))
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

	TAKE_TURN(device);
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
			pause_ns(PIECE_PAUSE_NS);
	}
	return set_access(device, memory, read_only, error);
}

int fa_cuda_memory_import_pieces(struct fa_device *device, const struct fa_device_piece *pieces,
                                 size_t n_pieces, uint64_t offset, uint64_t bytes, bool read_only,
                                 struct fa_error *error, struct fa_device_memory *ret_memory)
{
	struct fa_cuda_memory *memory;
	uint64_t sum;
	int r;

	r = check_pieces(device, pieces, n_pieces, offset, bytes, &sum, error);
	if (r == 0)
		r = enter(device, error);
	if (r < 0)
		return r;
	memory = memory_new(FA_CUDA_MEMORY_MAPPED, n_pieces);
	if (!memory)
		return fa_fail(error, -ENOMEM, "no memory for a buffer");
	r = map_pieces(device, memory, pieces, n_pieces, sum, read_only, error);
	if (r < 0) {
		memory_free(device, memory);
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

/* ---- memory of the daemon's */

/* On a stream that only workers wait for. */
static int zero(struct fa_device *device, struct fa_cuda_memory *memory, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	CUresult result;

	result = driver->cuMemsetD8Async(memory->at, 0, memory->bytes, device->memory_stream);
	while (result == CUDA_SUCCESS) {
		result = driver->cuStreamQuery(device->memory_stream);
		if (result == CUDA_SUCCESS)
			return 0;
		if (result == CUDA_ERROR_NOT_READY) {
			pause_ns(ZERO_POLL_NS);
			result = CUDA_SUCCESS;
		}
	}
	return fail(device, error, result, "memory cannot be zeroed");
}

static int make_arena(struct fa_device *device, struct fa_cuda_memory *memory, uint64_t bytes,
                      int *ret_fd, struct fa_error *error)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = location(device),
	};
	const struct fa_cudriver *driver = &device->driver;
	CUmemGenericAllocationHandle allocation;
	char doing[96];
	CUresult result;
	int r, fd = -1;

	snprintf(doing, sizeof(doing), "%" PRIu64 " bytes of the GPU's memory cannot be had",
	         bytes);
	TAKE_TURN(device);
	result = driver->cuMemCreate(&allocation, bytes, &properties, 0);
	if (result != CUDA_SUCCESS)
		return fail(device, error, result, doing);
	r = reserve(device, memory, bytes, error);
	if (r == 0) {
		result = driver->cuMemMap(memory->at, bytes, 0, allocation, 0);
		if (result != CUDA_SUCCESS)
			r = fail(device, error, result, "memory cannot be mapped");
		else
			memory->piece_bytes[memory->n_mapped++] = bytes;
	}
	if (r == 0)
		r = set_access(device, memory, false, error);
	if (r == 0)
		r = zero(device, memory, error);
	if (r == 0) {
		result = driver->cuMemExportToShareableHandle(
			&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		if (result != CUDA_SUCCESS)
			r = fail(device, error, result, "memory cannot be shared");
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
	int r, fd;

	if (__builtin_add_overflow(bytes, device->granularity - 1, &rounded))
		return fa_fail(error, -ENOMEM, "%" PRIu64 " bytes are too many", bytes);
	rounded -= rounded % device->granularity;
	memory = memory_new(FA_CUDA_MEMORY_MAPPED, 1);
	if (!memory)
		return fa_fail(error, -ENOMEM, "no memory for a buffer");
	r = enter(device, error);
	if (r == 0)
		r = make_arena(device, memory, rounded, &fd, error);
	if (r < 0) {
		memory_free(device, memory);
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
