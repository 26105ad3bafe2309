#include "daemon/backend/cpu/pool.h"

#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

int fa_cpu_pool_open(struct fa_cpu_pool *pool, uint64_t chunk_bytes, uint32_t max_chunks,
                     struct fa_error *error, void **ret_base)
{
	void *base;

	base = mmap(NULL, chunk_bytes * max_chunks, PROT_NONE,
	            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return fa_fail(error, -errno, "no addresses for a pool of %" PRIu64 " bytes: %m",
		               chunk_bytes * max_chunks);
	*pool = (struct fa_cpu_pool){
		.base = base,
		.chunk_bytes = chunk_bytes,
		.max_chunks = max_chunks,
	};
	*ret_base = base;
	return 0;
}

void fa_cpu_pool_close(struct fa_cpu_pool *pool)
{
	if (pool->base)
		(void)munmap(pool->base, pool->chunk_bytes * pool->max_chunks);
	*pool = (struct fa_cpu_pool){};
}

static char *chunk_at(const struct fa_cpu_pool *pool, uint32_t chunk)
{
	return pool->base + chunk * pool->chunk_bytes;
}

static int map_chunk(struct fa_cpu_pool *pool, uint32_t chunk, int fd, struct fa_error *error)
{
	void *at = chunk_at(pool, chunk);

	if (mmap(at, pool->chunk_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
	    MAP_FAILED)
		return fa_fail(error, -errno, "chunk %" PRIu32 " cannot be mapped: %m", chunk);
	/* Clients' tokens do not go into core dumps. */
	(void)madvise(at, pool->chunk_bytes, MADV_DONTDUMP);
	return 0;
}

int fa_cpu_pool_chunk_add(struct fa_cpu_pool *pool, uint32_t chunk, struct fa_error *error,
                          int *ret_fd)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	char why[FA_MEMFD_EXPLAIN_BYTES];
	int r;

	r = fa_memfd_new("fad-pool", pool->chunk_bytes, true, &fd);
	if (r < 0)
		return fa_fail(error, r, "no memory for a chunk of %" PRIu64 " bytes: %s",
		               pool->chunk_bytes, fa_memfd_explain(r, why, sizeof(why)));
	r = map_chunk(pool, chunk, fd, error);
	if (r < 0)
		return r;
	*ret_fd = fa_steal_fd(&fd);
	return 0;
}

int fa_cpu_pool_chunk_adopt(struct fa_cpu_pool *pool, uint32_t chunk, int fd,
                            struct fa_error *error)
{
	uint64_t size;
	int seals, r;

	r = fa_memfd_check(fd, 0, pool->chunk_bytes, error, &size, &seals);
	if (r < 0)
		return r == -ENOTSUP ? -EINVAL : r;
	return map_chunk(pool, chunk, fd, error);
}

void fa_cpu_pool_chunk_remove(struct fa_cpu_pool *pool, uint32_t chunk)
{
	/* Addresses stay reserved. If this fails, the memory stays, too. */
	(void)mmap(chunk_at(pool, chunk), pool->chunk_bytes, PROT_NONE,
	           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
