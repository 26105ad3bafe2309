#include "daemon/backend/vulkan/pool.h"

#include "common/cleanup.h"
#include "common/memfd.h"
#include "daemon/backend/vulkan/memory.h"

#include <errno.h>
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
	r = pool->imports
	            ? fa_vk_blob_new(device, max_chunks * sizeof(uint64_t), error, &pool->chunks)
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

/* Other errors than -ENOTSUP say nothing about the chunk. */
static int import_chunk(struct fa_device *device, uint32_t chunk, int fd, struct fa_error *error)
{
	struct fa_vk_pool *pool = &device->pool;
	struct fa_device_memory memory;
	int r;

	r = fa_vk_memory_import_host(device, fd, 0, pool->chunk_bytes, false, error, &memory);
	if (r < 0)
		return r;
	pool->imports[chunk] = memory.backend;
	*chunk_address(pool, chunk) = (uint64_t)(uintptr_t)memory.address;
	return 0;
}

int fa_vk_pool_chunk_add(struct fa_device *device, uint32_t chunk, struct fa_error *error,
                         bool *ret_zeroed, int *ret_fd)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	char why[FA_MEMFD_EXPLAIN_BYTES];
	int r;

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
	int seals, r;

	r = fa_memfd_check(fd, 0, device->pool.chunk_bytes, error, &size, &seals);
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
