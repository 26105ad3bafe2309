/* Maps and pins clients' memfds. */
#include "daemon/backend/cuda/host.h"

#include "daemon/backend/cuda/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Faults pages in first, because pinning holds driver locks. */
static int populate(struct fa_cuda_memory *memory, bool read_only, struct fa_error *error)
{
	if (madvise(memory->host, memory->bytes,
	            read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) == 0)
		return 0;
	/* Linux before 5.14 lacks this: then pinning faults pages in. */
	if (errno == EINVAL)
		return 0;
	return fa_fail(error, errno == ENOMEM ? -ENOMEM : -EIO,
	               "%" PRIu64 " bytes of the memfd cannot be brought into memory: %m",
	               memory->bytes);
}

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
		FA_CUDA_HOLD_DRIVER_LOCK(&device->memory_lock);

		host = memory->host + memory->pinned_bytes;
		bytes = memory->bytes - memory->pinned_bytes;
		if (bytes > memory->part_bytes)
			bytes = memory->part_bytes;
		result = driver->cuMemHostRegister(host, bytes, flags);
		if (result != CUDA_SUCCESS)
			return fa_cuda_memory_fail(device, error, result,
			                           "host memory cannot be pinned");
		memory->pinned_bytes += bytes;
		result = driver->cuMemHostGetDevicePointer(&at, host, 0);
		if (result != CUDA_SUCCESS)
			return fa_cuda_memory_fail(device, error, result,
			                           "pinned memory has no address");
		if (host == memory->host)
			memory->at = at;
		/* On the GPU parts are contiguous if it uses the process's addresses. */
		if (at != memory->at + (uint64_t)(host - memory->host))
			return fa_fail(error, -ENOTSUP,
			               "%" PRIu64 " bytes of pinned memory are not in one piece "
			               "for the GPU; register at most %" PRIu64 " at once",
			               memory->bytes, memory->part_bytes);
		if (memory->pinned_bytes < memory->bytes)
			fa_cuda_sleep(device->tuning.pin_pause_ns);
	}
	return 0;
}

static int populate_and_pin(struct fa_device *device, struct fa_cuda_memory *memory, void *host,
                            bool read_only, unsigned int flags, struct fa_error *error)
{
	int r;

	memory->host = host;
	/* Clients' tensors do not go into core dumps. */
	(void)madvise(host, memory->bytes, MADV_DONTDUMP);
	r = populate(memory, read_only, error);
	return r < 0 ? r : pin(device, memory, flags, error);
}

static int map_and_pin(struct fa_device *device, struct fa_cuda_memory *memory, int fd,
                       uint64_t offset, bool read_only, unsigned int flags, struct fa_error *error)
{
	void *host;

	host = mmap(NULL, memory->bytes, PROT_READ | (read_only ? 0 : PROT_WRITE), MAP_SHARED, fd,
	            (off_t)offset);
	if (host == MAP_FAILED)
		return fa_fail(error, -errno,
		               "%" PRIu64 " bytes at %" PRIu64
		               " of the memfd cannot be mapped %s: %m",
		               memory->bytes, offset, read_only ? "for reading" : "for writing");
	return populate_and_pin(device, memory, host, read_only, flags, error);
}

/* The second mapping, which is pinned, outlives the first and works on a sealed file. */
static int map_again_and_pin(struct fa_device *device, struct fa_cuda_memory *memory, void *host,
                             struct fa_error *error)
{
	void *again = mremap(host, 0, memory->bytes, MREMAP_MAYMOVE);

	if (again == MAP_FAILED)
		return fa_fail(error, -errno, "%" PRIu64 " bytes cannot be mapped again: %m",
		               memory->bytes);
	return populate_and_pin(device, memory, again, false, 0, error);
}

static int memory_new(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                      struct fa_cuda_memory **ret_memory)
{
	struct fa_cuda_memory *memory = fa_cuda_memory_new(FA_CUDA_MEMORY_HOST, 0);
	int r;

	if (!memory)
		return fa_fail(error, -ENOMEM, "no memory for a buffer");
	memory->bytes = bytes;
	memory->part_bytes = device->tuning.pin_part_bytes;
	r = fa_cuda_memory_enter(device, error);
	if (r < 0)
		free(memory);
	else
		*ret_memory = memory;
	return r;
}

static int memory_finish(struct fa_device *device, struct fa_cuda_memory *memory, int r,
                         uint64_t bytes, bool writable, struct fa_device_memory *ret_memory)
{
	if (r < 0) {
		fa_cuda_memory_drop(device, memory, ret_memory);
		return r;
	}
	*ret_memory = (struct fa_device_memory){
		.address = (void *)memory->at,
		.bytes = bytes,
		.writable = writable,
		.backend = memory,
	};
	return 0;
}

/* Pinned pages stay even if the client punches holes in the file. */
int fa_cuda_memory_import_host(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                               bool read_only, struct fa_error *error,
                               struct fa_device_memory *ret_memory)
{
	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	struct fa_cuda_memory *memory = NULL;
	struct fa_error again;
	int r;

	if (bytes > UINT64_MAX - page_bytes)
		return fa_fail(error, -EINVAL, "%" PRIu64 " bytes are too many", bytes);
	r = memory_new(device, (bytes + page_bytes - 1) / page_bytes * page_bytes, error, &memory);
	if (r < 0)
		return r;
	r = map_and_pin(device, memory, fd, offset, read_only,
	                read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0, error);
	/* Some drivers pin only writable memory. */
	if (r < 0 && read_only && r != -ENODEV && r != -ENOMEM && !memory->pinned_bytes) {
		if (memory->host)
			(void)munmap(memory->host, memory->bytes);
		memory->host = NULL;
		if (map_and_pin(device, memory, fd, offset, false, 0, &again) == 0)
			r = 0;
	}
	return memory_finish(device, memory, r, bytes, !read_only, ret_memory);
}

int fa_cuda_memory_import_mapped(struct fa_device *device, void *host, uint64_t bytes,
                                 struct fa_error *error, struct fa_device_memory *ret_memory)
{
	struct fa_cuda_memory *memory = NULL;
	int r;

	r = memory_new(device, bytes, error, &memory);
	if (r < 0)
		return r;
	return memory_finish(device, memory, map_again_and_pin(device, memory, host, error), bytes,
	                     true, ret_memory);
}
