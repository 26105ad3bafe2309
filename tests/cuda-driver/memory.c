/* Device memory, cuMemAlloc and its kin, and pinned host memory. */
#include "tests/cuda-driver/driver.h"

#include "common/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define ALLOC_ALIGNMENT ((size_t)512 << 10)
#define POISON_BYTES ((size_t)64 << 10)

/* ---- memory */

static struct fa_fake_memory *memories[FA_TEST_CUDA_HOLDS];
static size_t end_memories;

/* Fills new device memory with arbitrary contents, not zeros. */
static void poison(int fd, size_t bytes)
{
	static const unsigned char value = 0xa5;
	const size_t edge = bytes < POISON_BYTES ? bytes : POISON_BYTES;
	unsigned char *data;

	data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (data == MAP_FAILED)
		return;
	memset(data, value, edge);
	memset(data + bytes - edge, value, edge);
	munmap(data, bytes);
}

int fa_fake_memory_from_fd(int fd, int device, unsigned int handle_types,
                           struct fa_fake_memory **ret_memory)
{
	_fa_cleanup_(fa_close_fdp) int owned = fd;
	struct fa_fake_memory *memory;
	struct stat status;
	size_t i = 0;

	if (fstat(owned, &status) < 0)
		return -errno;
	while (i < end_memories && memories[i])
		++i;
	if (i == FA_TEST_CUDA_HOLDS)
		return -ENOMEM;
	memory = fa_new(struct fa_fake_memory);
	if (!memory)
		return -ENOMEM;
	*memory = (struct fa_fake_memory){
		.fd = fa_steal_fd(&owned),
		.id = status.st_ino,
		.bytes = (size_t)status.st_size,
		.device = device,
		.handle_types = handle_types,
		.refs = 1,
		.hold = (int)i,
	};
	memories[i] = memory;
	if (i == end_memories)
		atomic_store(&fa_fake.page->holds_end, (uint32_t)++end_memories);
	fa_fake.page->holds[i].bytes = memory->bytes;
	fa_fake.page->holds[i].device = device;
	atomic_store(&fa_fake.page->holds[i].id, memory->id);
	fa_fake_count(FA_TEST_CUDA_DEVICE_BYTES, (int64_t)memory->bytes);
	*ret_memory = memory;
	return 0;
}

int fa_fake_memory_new(const char *name, size_t bytes, int device, unsigned int handle_types,
                       struct fa_fake_memory **ret_memory)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	uint64_t used = 0;

	for (size_t i = 0; i < end_memories; ++i)
		if (memories[i] && memories[i]->device == device)
			used += memories[i]->bytes;
	if (bytes > fa_fake.memory_bytes || used > fa_fake.memory_bytes - bytes)
		return -ENOMEM;
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) < 0)
		return -errno;
	poison(fd, bytes);
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	return fa_fake_memory_from_fd(fa_steal_fd(&fd), device, handle_types, ret_memory);
}

struct fa_fake_memory *fa_fake_memory_unref(struct fa_fake_memory *memory)
{
	if (!memory || --memory->refs)
		return NULL;
	fa_fake_count(FA_TEST_CUDA_DEVICE_BYTES, -(int64_t)memory->bytes);
	atomic_store(&fa_fake.page->holds[memory->hold].id, 0);
	memories[memory->hold] = NULL;
	close(memory->fd);
	free(memory);
	return NULL;
}

void fa_fake_memory_close_all(void)
{
	for (size_t i = 0; i < end_memories; ++i)
		if (memories[i])
			close(memories[i]->fd);
}

/* ---- cuMemAlloc and its kin */

static CUresult allocate(enum fa_fake_kind kind, size_t bytes, CUdeviceptr *ret_at)
{
	static const char *const names[] = {
		[FA_FAKE_ALLOC] = "fad-cuda-alloc",
		[FA_FAKE_ASYNC] = "fad-cuda-async",
		[FA_FAKE_MANAGED] = "fad-cuda-managed",
	};
	struct fa_fake_region region = { .bytes = bytes, .kind = kind, .readable = true };
	struct fa_fake_region *made;
	int r;

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > fa_fake.memory_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region.mapped_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
	region.writable = true;
	fa_fake_lock();
	region.device = fa_fake_current()->device;
	r = fa_fake_memory_new(names[kind], region.mapped_bytes, region.device, 0, &region.memory);
	if (r == 0)
		r = fa_fake_space_take(region.mapped_bytes, ALLOC_ALIGNMENT, &region.at);
	if (r == 0) {
		r = fa_fake_space_map(&region);
		if (r == 0)
			r = fa_fake_region_new(&region, &made);
		if (r < 0) {
			fa_fake_space_unmap(region.at, region.mapped_bytes);
			fa_fake_space_give(region.at);
		}
	}
	if (r < 0)
		fa_fake_memory_unref(region.memory);
	else
		fa_fake_count(FA_TEST_CUDA_ALLOCATIONS, 1);
	fa_fake_unlock();
	if (r < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ret_at = region.at;
	return CUDA_SUCCESS;
}

/* Frees an allocation. Called with the lock held. */
static void allocation_free(struct fa_fake_region *region, bool patient)
{
	const struct fa_fake_region old = *region;

	fa_fake_region_drop(region, patient);
	fa_fake_space_unmap(old.at, old.mapped_bytes);
	fa_fake_space_give(old.at);
	fa_fake_memory_unref(old.memory);
	fa_fake_count(FA_TEST_CUDA_ALLOCATIONS, -1);
}

static struct fa_fake_region *allocation_find(CUdeviceptr at)
{
	struct fa_fake_region *region = fa_fake_region_find(at);

	return region && region->at == at && region->kind <= FA_FAKE_MANAGED ? region : NULL;
}

CUresult cuMemAlloc(CUdeviceptr *ret_at, size_t bytes)
{
	FA_FAKE_ENTER(cuMemAlloc, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return allocate(FA_FAKE_ALLOC, bytes, ret_at);
}

CUresult cuMemAllocManaged(CUdeviceptr *ret_at, size_t bytes, unsigned int flags)
{
	FA_FAKE_ENTER(cuMemAllocManaged, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	if (flags != 1 && flags != 2)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(FA_FAKE_MANAGED, bytes, ret_at);
}

CUresult cuMemAllocAsync(CUdeviceptr *ret_at, size_t bytes, CUstream stream)
{
	FA_FAKE_ENTER(cuMemAllocAsync, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return allocate(FA_FAKE_ASYNC, bytes, ret_at);
}

CUresult cuMemFree(CUdeviceptr at)
{
	struct fa_fake_region *region;
	CUresult result;

	FA_FAKE_ENTER(cuMemFree, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	if (!at)
		return CUDA_SUCCESS;
	fa_fake_lock();
	region = allocation_find(at);
	fa_fake_unlock();
	if (!region)
		return CUDA_ERROR_INVALID_VALUE;
	/* Waits for all work that may use the memory. */
	result = fa_fake_drain(fa_fake_current());
	if (result != CUDA_SUCCESS)
		return result;
	fa_fake_lock();
	region = allocation_find(at);
	if (region)
		allocation_free(region, true);
	fa_fake_unlock();
	return region ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	struct fa_fake_region *region;

	fa_fake_lock();
	region = allocation_find(op->to);
	if (region)
		allocation_free(region, false);
	fa_fake_unlock();
	return region ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream)
{
	struct fa_fake_region *region;
	struct fa_fake_op *op;

	FA_FAKE_ENTER(cuMemFreeAsync, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	region = allocation_find(at);
	fa_fake_unlock();
	if (!region || region->kind == FA_FAKE_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	op = fa_fake_op_new(free_run);
	if (op)
		op->to = at;
	return fa_fake_submit(stream, op);
}

/* ---- the host's pinned memory */

CUresult cuMemHostAlloc(void **ret_at, size_t bytes, unsigned int flags)
{
	struct fa_fake_region region = { .bytes = bytes, .kind = FA_FAKE_HOST_ALLOC };
	struct fa_fake_region *made;
	void *at;
	int r;

	FA_FAKE_ENTER(cuMemHostAlloc, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	if (!bytes || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	region.mapped_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
	region.readable = region.writable = true;
	at = mmap(NULL, region.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
	          0);
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	madvise(at, region.mapped_bytes, MADV_DONTFORK);
	region.at = (CUdeviceptr)(uintptr_t)at;
	fa_fake_lock();
	region.device = fa_fake_current()->device;
	r = fa_fake_region_new(&region, &made);
	if (r == 0) {
		fa_fake_count(FA_TEST_CUDA_HOST_ALLOCATIONS, 1);
		fa_fake_count(FA_TEST_CUDA_HOST_BYTES, (int64_t)bytes);
	}
	fa_fake_unlock();
	if (r < 0) {
		munmap(at, region.mapped_bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ret_at = at;
	return CUDA_SUCCESS;
}

/* Frees pinned host memory. Called with the lock held. */
static void host_free(struct fa_fake_region *region, bool patient)
{
	const struct fa_fake_region old = *region;

	fa_fake_region_drop(region, patient);
	if (old.kind == FA_FAKE_HOST_ALLOC)
		munmap((void *)(uintptr_t)old.at, old.mapped_bytes);
	fa_fake_count(old.kind == FA_FAKE_HOST_ALLOC ? FA_TEST_CUDA_HOST_ALLOCATIONS
	                                             : FA_TEST_CUDA_REGISTRATIONS,
	              -1);
	fa_fake_count(FA_TEST_CUDA_HOST_BYTES, -(int64_t)old.bytes);
}

static struct fa_fake_region *host_find(const void *at, enum fa_fake_kind kind)
{
	struct fa_fake_region *region = fa_fake_region_find((CUdeviceptr)(uintptr_t)at);

	return region && region->at == (CUdeviceptr)(uintptr_t)at && region->kind == kind ? region
	                                                                                  : NULL;
}

CUresult cuMemFreeHost(void *at)
{
	struct fa_fake_region *region;
	CUresult result;

	FA_FAKE_ENTER(cuMemFreeHost, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	if (!at)
		return CUDA_SUCCESS;
	result = fa_fake_drain(fa_fake_current());
	if (result != CUDA_SUCCESS)
		return result;
	fa_fake_lock();
	region = host_find(at, FA_FAKE_HOST_ALLOC);
	if (region)
		host_free(region, true);
	fa_fake_unlock();
	return region ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Returns whether all of [at, at + bytes) is mapped and readable, and with @write also writable. */
static bool is_mapped(CUdeviceptr at, size_t bytes, bool write)
{
	unsigned long long start, end;
	CUdeviceptr next = at;
	char line[512], flags[8];
	FILE *maps;

	maps = fopen("/proc/self/maps", "re");
	if (!maps)
		return false;
	while (next < at + bytes && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%llx-%llx %7s", &start, &end, flags) != 3 || end <= next)
			continue;
		if (start > next || flags[0] != 'r' || (write && flags[1] != 'w'))
			break;
		next = end;
	}
	fclose(maps);
	return next >= at + bytes;
}

CUresult cuMemHostRegister(void *at, size_t bytes, unsigned int flags)
{
	struct fa_fake_region region = { .bytes = bytes, .kind = FA_FAKE_HOST_REGISTERED };
	CUresult result = CUDA_SUCCESS;
	struct fa_fake_region *made;

	FA_FAKE_ENTER(cuMemHostRegister, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	result = fa_fake_refuse_capture();
	if (result != CUDA_SUCCESS)
		return result;
	if (!bytes || flags & ~0xfu || (uintptr_t)at % PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	region.at = (CUdeviceptr)(uintptr_t)at;
	region.mapped_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
	region.readable = true;
	region.writable = !(flags & CU_MEMHOSTREGISTER_READ_ONLY);
	if (!is_mapped(region.at, bytes, region.writable))
		return CUDA_ERROR_INVALID_VALUE;
	while (atomic_load(&fa_fake.page->pins_held))
		usleep(100);
	fa_fake_lock();
	region.device = fa_fake_current()->device;
	if (fa_fake_region_overlaps(region.at, region.mapped_bytes)) {
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	} else if (fa_fake_region_new(&region, &made) < 0) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		fa_fake_count(FA_TEST_CUDA_REGISTRATIONS, 1);
		fa_fake_count(FA_TEST_CUDA_HOST_BYTES, (int64_t)bytes);
	}
	fa_fake_unlock();
	return result;
}

CUresult cuMemHostUnregister(void *at)
{
	struct fa_fake_region *region;
	CUresult result;

	FA_FAKE_ENTER(cuMemHostUnregister, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	region = host_find(at, FA_FAKE_HOST_REGISTERED);
	fa_fake_unlock();
	if (!region)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	result = fa_fake_drain(fa_fake_current());
	if (result != CUDA_SUCCESS)
		return result;
	fa_fake_lock();
	region = host_find(at, FA_FAKE_HOST_REGISTERED);
	if (region)
		host_free(region, false);
	fa_fake_unlock();
	return region ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *ret_at, void *host, unsigned int flags)
{
	struct fa_fake_region *region;

	FA_FAKE_ENTER(cuMemHostGetDevicePointer, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	region = fa_fake_region_find((CUdeviceptr)(uintptr_t)host);
	fa_fake_unlock();
	if (flags || !region || region->memory)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_at = (CUdeviceptr)(uintptr_t)host;
	return CUDA_SUCCESS;
}

/* ---- the end of a context */

static void ipc_end(struct fa_fake_region *region)
{
	const struct fa_fake_region old = *region;

	fa_fake_region_drop(region, true);
	fa_fake_space_unmap(old.at, old.mapped_bytes);
	fa_fake_space_give(old.at);
	fa_fake_memory_unref(old.memory);
	fa_fake_count(FA_TEST_CUDA_IPC_OPENS, -(int64_t)old.opens);
}

void fa_fake_memory_end(struct fa_fake_context *context)
{
	size_t i = 0;

	while (i < fa_fake_region_count()) {
		struct fa_fake_region *region = fa_fake_region_at(i);

		/* VMM memory belongs to no context. */
		if (region->device != context->device || region->kind == FA_FAKE_VMM) {
			++i;
			continue;
		}
		atomic_fetch_add(&fa_fake.page->abandoned, 1);
		if (region->kind == FA_FAKE_IPC)
			ipc_end(region);
		else if (region->memory)
			allocation_free(region, true);
		else
			host_free(region, true);
		i = 0;
	}
}
