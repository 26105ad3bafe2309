/* The CPU backend's part in the KV pool: its memory, and the room of requests, over it or not. */
#include "daemon/backend/cpu/backend.h"

#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- chunks */

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
	/* Clients' tokens do not belong in a core dump. */
	(void)madvise(at, pool->chunk_bytes, MADV_DONTDUMP);
	return 0;
}

int fa_cpu_pool_chunk_add(struct fa_cpu_pool *pool, uint32_t chunk, struct fa_error *error,
                          int *ret_fd)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	int r;

	r = fa_memfd_new("fad-pool", pool->chunk_bytes, true, &fd);
	if (r < 0)
		return fa_fail(error, r, "no memory for a chunk of %" PRIu64 " bytes: %s",
		               pool->chunk_bytes, strerrordesc_np(-r));
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
	/* The addresses stay ours. If that fails, so does the memory, until it is used again. */
	(void)mmap(chunk_at(pool, chunk), pool->chunk_bytes, PROT_NONE,
	           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* ---- room */

/* Room for q stands in for the tensor that append writes and attention reads. */
static bool wants_q(const struct fa_paged_request *request)
{
	return request->op == FA_PAGED_APPEND && request->append.heads &&
	       !request->append.q_out.data;
}

static size_t q_bytes(const struct fa_paged_append *append)
{
	size_t bytes = append->cache->dtype == FA_ATTENTION_F32 ? 4 : 2;

	return (size_t)append->step->cu_new[append->step->batch] * (size_t)append->heads *
	       (size_t)append->cache->head_dim * bytes;
}

static size_t align(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

static void put_q(struct fa_device_work *work, void *q)
{
	for (uint32_t i = 0; i < work->n_paged; i++) {
		struct fa_paged_request *request = &work->paged[i];

		if (wants_q(request))
			request->append.q_out.data = q;
		else if (request->op == FA_PAGED_ATTEND && !request->attention.q.data)
			request->attention.q.data = q;
	}
}

/* Another's does if that is large enough. */
static bool take_over(struct fa_device_work *work, size_t bytes)
{
	struct fa_device_work *before = work->before;

	if (!before || !before->room || before->room_taken || before->heap_bytes < bytes)
		return false;
	work->room = before->room;
	work->heap_bytes = before->heap_bytes;
	before->room_taken = true;
	return true;
}

static int room_allocate(struct fa_device_work *work, size_t bytes, struct fa_error *error)
{
	work->room = aligned_alloc(64, bytes);
	if (!work->room)
		return fa_fail(error, -ENOMEM, "no memory for the %zu bytes that a request needs",
		               bytes);
	work->heap_bytes = bytes;
	return 0;
}

int fa_cpu_room_new(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                    struct fa_error *error)
{
	size_t workspace = 0, q = 0, bytes;
	int r;

	for (uint32_t i = 0; i < work->n_paged; i++) {
		r = fa_paged_check(&work->paged[i], error->text, sizeof(error->text));
		if (r < 0)
			return r;
		bytes = align(fa_cpu_paged_workspace_bytes(isa, &work->paged[i]));
		workspace = bytes > workspace ? bytes : workspace;
		bytes = wants_q(&work->paged[i]) ? align(q_bytes(&work->paged[i].append)) : 0;
		q = bytes > q ? bytes : q;
	}
	bytes = workspace + q;
	if (!bytes)
		return 0;
	if (!take_over(work, bytes)) {
		r = room_allocate(work, bytes, error);
		if (r < 0)
			return r;
	}
	if (q)
		put_q(work, (char *)work->room + workspace);
	return 0;
}

int fa_cpu_room_new_attention(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                              struct fa_error *error)
{
	size_t bytes = align(fa_cpu_attention_workspace_bytes(isa, work->params));

	return bytes ? room_allocate(work, bytes, error) : 0;
}

void fa_cpu_room_free(struct fa_device_work *work)
{
	if (!work->room_taken)
		free(work->room);
	work->room = NULL;
}
