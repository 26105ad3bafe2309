#include "daemon/backend/vulkan/pool.h"

#include "common/cleanup.h"
#include "common/memfd.h"
#include "daemon/backend/vulkan/blob.h"
#include "daemon/backend/vulkan/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>

static uint64_t *chunk_address(struct fa_vk_pool *pool, uint32_t chunk)
{
	return (uint64_t *)pool->chunks->host + chunk;
}

int fa_vk_pool_open(struct fa_device *device, uint64_t chunk_bytes, uint32_t max_chunks,
                    struct fa_error *error, void **ret_base)
{
	struct fa_vk_pool *pool = &device->pool;
	void *base;
	int r;

	if (chunk_bytes & (chunk_bytes - 1) || chunk_bytes % device->import_alignment)
		return fa_fail(error, -ENOTSUP,
		               "chunks of %" PRIu64
		               " bytes cannot be; expected a power of two, and a multiple of "
		               "%" PRIu64,
		               chunk_bytes, device->import_alignment);
	/* Addresses alone: they tell chunks apart, and are never followed. */
	base = mmap(NULL, chunk_bytes * max_chunks, PROT_NONE,
	            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return fa_fail(error, -errno, "no addresses for a pool of %" PRIu64 " bytes: %m",
		               chunk_bytes * max_chunks);
	*pool = (struct fa_vk_pool){
		.base = base,
		.chunk_bytes = chunk_bytes,
		.max_chunks = max_chunks,
	};
	pool->imports = calloc(max_chunks, sizeof(struct fa_vk_import *));
	r = pool->imports ? fa_vk_blob_new(device, FA_VK_MEMORY_ARGUMENTS,
	                                   max_chunks * sizeof(uint64_t), error, &pool->chunks)
	                  : fa_fail(error, -ENOMEM, "no memory for the pool's chunks");
	if (r < 0) {
		fa_vk_pool_close(device);
		return r;
	}
	*ret_base = base;
	return 0;
}

void fa_vk_pool_close(struct fa_device *device)
{
	struct fa_vk_pool *pool = &device->pool;

	if (!pool->base)
		return;
	for (uint32_t i = 0; pool->imports && i < pool->max_chunks; i++)
		fa_vk_import_free(device, pool->imports[i]);
	free(pool->imports);
	fa_vk_blob_free(device, pool->chunks);
	(void)munmap(pool->base, pool->chunk_bytes * pool->max_chunks);
	*pool = (struct fa_vk_pool){ 0 };
}

static void set_chunk(struct fa_vk_pool *pool, uint32_t chunk, struct fa_vk_import *import)
{
	pool->imports[chunk] = import;
	*chunk_address(pool, chunk) = import->at;
}

/* Other errors than -ENOTSUP say nothing about the chunk. */
static int import_chunk(struct fa_device *device, uint32_t chunk, int fd, struct fa_error *error)
{
	struct fa_vk_pool *pool = &device->pool;
	struct fa_device_memory memory;
	int r;

	r = fa_vk_memory_import_host(device, fd, 0, pool->chunk_bytes, false, error, &memory);
	if (r < 0)
		return r;
	set_chunk(pool, chunk, memory.backend);
	return 0;
}

/* Makes a chunk of the device's memory, or of what is behind *fd, which is taken then. The text of an error is the
 * caller's. */
static VkResult make_chunk(struct fa_device *device, uint32_t chunk, int *fd)
{
	const struct fa_vk_memory_want want = {
		.kind = FA_VK_MEMORY_DEVICE,
		.bytes = device->pool.chunk_bytes,
		.exported = *fd < 0,
		.fd = *fd,
	};
	struct fa_vk_import *import;
	VkResult result;

	import = fa_new(struct fa_vk_import);
	if (!import)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	result = fa_vk_memory_make(device, &want, &import->buffer, &import->memory, &import->at);
	if (import->memory)
		*fd = -1;
	if (result != VK_SUCCESS) {
		fa_vk_import_free(device, import);
		return result;
	}
	set_chunk(&device->pool, chunk, import);
	return VK_SUCCESS;
}

/* Makes a chunk in the device's memory. Its contents are any. */
static int add_exported(struct fa_device *device, uint32_t chunk, struct fa_error *error,
                        int *ret_fd)
{
	VkMemoryGetFdInfoKHR get = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
		.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
	};
	int fd = -1, none = -1;
	VkResult result;

	result = make_chunk(device, chunk, &none);
	if (result != VK_SUCCESS)
		return fa_vk_fail(device, error, result, "no memory for a chunk");
	get.memory = device->pool.imports[chunk]->memory;
	result = device->driver.GetMemoryFdKHR(device->device, &get, &fd);
	if (result != VK_SUCCESS) {
		fa_vk_pool_chunk_remove(device, chunk);
		return fa_vk_fail(device, error, result, "a chunk cannot be kept");
	}
	(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	*ret_fd = fd;
	return 0;
}

/* Adopts a chunk in the device's memory. -EINVAL: @fd is none. Other errors say nothing about the chunk. */
static int adopt_exported(struct fa_device *device, uint32_t chunk, int fd, struct fa_error *error)
{
	_fa_cleanup_(fa_close_fdp) int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	VkResult result;

	if (copy < 0)
		return fa_fail(error, -errno, "no descriptor for a chunk: %m");
	result = make_chunk(device, chunk, &copy);
	if (result == VK_SUCCESS)
		return 0;
	if (result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY ||
	    result == VK_ERROR_TOO_MANY_OBJECTS || result == VK_ERROR_DEVICE_LOST)
		return fa_vk_fail(device, error, result, "a chunk cannot be adopted");
	return fa_fail(error, -EINVAL,
	               "what was kept of chunk %" PRIu32 " is no memory of this device (%s)", chunk,
	               fa_vk_error_name(result));
}

int fa_vk_pool_chunk_add(struct fa_device *device, uint32_t chunk, struct fa_error *error,
                         bool *ret_zeroed, int *ret_fd)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	char why[FA_MEMFD_EXPLAIN_BYTES];
	int r;

	if (device->exports_memory) {
		*ret_zeroed = false;
		return add_exported(device, chunk, error, ret_fd);
	}
	r = fa_memfd_new("fad-pool", device->pool.chunk_bytes, true, &fd);
	if (r < 0)
		return fa_fail(error, r, "no memory for a chunk of %" PRIu64 " bytes: %s",
		               device->pool.chunk_bytes, fa_memfd_explain(r, why, sizeof(why)));
	r = import_chunk(device, chunk, fd, error);
	if (r < 0)
		return r;
	*ret_zeroed = true;
	*ret_fd = fa_steal_fd(&fd);
	return 0;
}

int fa_vk_pool_chunk_adopt(struct fa_device *device, uint32_t chunk, int fd, struct fa_error *error)
{
	uint64_t size;
	int seals, exported = 0, r;

	if (device->exports_memory) {
		exported = adopt_exported(device, chunk, fd, error);
		/* A process that did not export may have left memory of the host. */
		if ((exported != -EINVAL && exported != -ENOMEM) || fcntl(fd, F_GET_SEALS) < 0)
			return exported;
	}
	r = fa_memfd_check(fd, 0, device->pool.chunk_bytes, error, &size, &seals);
	if (r < 0 && exported == -ENOMEM)
		return exported;
	if (r < 0)
		return r == -ENOTSUP ? -EINVAL : r;
	r = import_chunk(device, chunk, fd, error);
	return r == -ENOTSUP ? -EIO : r;
}

void fa_vk_pool_chunk_remove(struct fa_device *device, uint32_t chunk)
{
	struct fa_vk_pool *pool = &device->pool;

	pool->imports[chunk] = fa_vk_import_free(device, pool->imports[chunk]);
	*chunk_address(pool, chunk) = 0;
}
