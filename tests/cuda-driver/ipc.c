/* IPC handles of allocations (cuIpc*). */
#include "tests/cuda-driver/driver.h"

#include "common/cleanup.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x6661646970633031ull

/* The 64 bytes of an IPC handle. The importer opens the descriptor through the exporter's /proc. */
struct handle {
	uint64_t magic;
	uint64_t check; /* checksum of the members that follow */
	int32_t pid;    /* the PID that the driver compares */
	int32_t real_pid;
	uint64_t memory_id, bytes;
	int32_t fd, device;
	uint64_t spare[2];
};

_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "handles are 64 bytes");

static uint64_t check_of(const struct handle *handle)
{
	const unsigned char *bytes = (const unsigned char *)handle;
	uint64_t hash = 0xcbf29ce484222325ull;

	for (size_t i = offsetof(struct handle, pid); i < sizeof(*handle); ++i)
		hash = (hash ^ bytes[i]) * 0x100000001b3ull;
	return hash;
}

static int32_t own_pid(void)
{
	const char *text = getenv("FAD_TEST_CUDA_PID");

	return text && *text ? (int32_t)strtol(text, NULL, 10) : getpid();
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *ret_handle, CUdeviceptr at)
{
	struct handle handle = { .magic = MAGIC, .pid = own_pid(), .real_pid = getpid() };
	const struct fa_fake_region *region;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	FA_FAKE_ENTER(cuIpcGetMemHandle, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	region = fa_fake_region_find(at);
	if (region && region->kind == FA_FAKE_ALLOC) {
		handle.memory_id = region->memory->id;
		handle.bytes = region->bytes;
		handle.fd = region->memory->fd;
		handle.device = region->device;
		handle.check = check_of(&handle);
		memcpy(ret_handle, &handle, sizeof(handle));
		result = CUDA_SUCCESS;
	}
	fa_fake_unlock();
	return result;
}

/* Opens the exporter's descriptor. Returns -1 if the allocation is gone. */
static int fd_open(const struct handle *handle)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	char path[64], link[64];
	struct stat status;
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->real_pid, handle->fd);
	length = readlink(path, link, sizeof(link) - 1);
	if (length < 0)
		return -1;
	link[length] = 0;
	if (strcmp(link, "/memfd:fad-cuda-alloc (deleted)"))
		return -1;
	fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &status) < 0 || status.st_ino != handle->memory_id ||
	    (uint64_t)status.st_size < handle->bytes)
		return -1;
	return fa_steal_fd(&fd);
}

static struct fa_fake_region *opened(const struct handle *handle)
{
	for (size_t i = 0; i < fa_fake_region_count(); ++i) {
		struct fa_fake_region *region = fa_fake_region_at(i);

		if (region->kind == FA_FAKE_IPC && region->memory->id == handle->memory_id)
			return region;
	}
	return NULL;
}

/* Opens a handle that this process has not opened yet. Called with the lock held. */
static CUresult open_new(const struct handle *handle, struct fa_fake_region **ret_region)
{
	struct fa_fake_region like = {
		.bytes = handle->bytes,
		.kind = FA_FAKE_IPC,
		.device = handle->device,
		.readable = true,
		.writable = true,
		.opens = 1,
	};
	const int fd = fd_open(handle);

	if (fd < 0)
		return CUDA_ERROR_MAP_FAILED;
	if (fa_fake_memory_from_fd(fd, handle->device, 0, &like.memory) < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	like.mapped_bytes = like.memory->bytes;
	if (fa_fake_space_take(like.mapped_bytes, FA_FAKE_GRANULARITY, &like.at) < 0) {
		fa_fake_memory_unref(like.memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (fa_fake_space_map(&like) < 0 || fa_fake_region_new(&like, ret_region) < 0) {
		fa_fake_space_unmap(like.at, like.mapped_bytes);
		fa_fake_space_give(like.at);
		fa_fake_memory_unref(like.memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *ret_at, CUipcMemHandle opaque, unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;
	struct fa_fake_region *region;
	struct handle handle;

	FA_FAKE_ENTER(cuIpcOpenMemHandle, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	memcpy(&handle, &opaque, sizeof(handle));
	if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || handle.magic != MAGIC ||
	    handle.check != check_of(&handle))
		return CUDA_ERROR_INVALID_VALUE;
	if (handle.pid == own_pid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (handle.device < 0 || handle.device >= fa_fake.n_devices)
		return CUDA_ERROR_INVALID_DEVICE;
	fa_fake_lock();
	region = opened(&handle);
	if (region)
		++region->opens;
	else
		result = open_new(&handle, &region);
	if (result == CUDA_SUCCESS) {
		*ret_at = region->at;
		fa_fake_count(FA_TEST_CUDA_IPC_OPENS, 1);
	}
	fa_fake_unlock();
	return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
	struct fa_fake_region *region;
	CUresult result;

	FA_FAKE_ENTER(cuIpcCloseMemHandle, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	result = fa_fake_drain(fa_fake_current());
	if (result != CUDA_SUCCESS)
		return result;
	fa_fake_lock();
	region = fa_fake_region_find(at);
	if (region && (region->kind != FA_FAKE_IPC || region->at != at))
		region = NULL;
	if (region) {
		fa_fake_count(FA_TEST_CUDA_IPC_OPENS, -1);
		if (!--region->opens) {
			const struct fa_fake_region old = *region;

			fa_fake_region_drop(region, false);
			fa_fake_space_unmap(old.at, old.mapped_bytes);
			fa_fake_space_give(old.at);
			fa_fake_memory_unref(old.memory);
		}
	}
	fa_fake_unlock();
	return region ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
