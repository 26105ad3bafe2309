#include "common/cleanup.h"
#include "daemon/pool/hash.h"
#include "daemon/pool/objects.h"
#include "daemon/pool/recover.h"
#include "daemon/pool/sequence_private.h"
#include "daemon/pool/state_header.h"

#include <errno.h>
#include <sys/mman.h>

static uint64_t pages_of(const struct fa_state_header *header)
{
	return (uint64_t)header->max_chunks << header->page_shift;
}

/* Only pages that are written take real memory. */
static void *map_sparse(uint64_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
	                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static int map(struct fa_pool *pool, int fd, const struct fa_state_header *header,
               struct fa_error *error)
{
	void *state = mmap(NULL, header->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (state == MAP_FAILED)
		return fa_fail(error, -errno, "the pool's state cannot be mapped: %m");
	pool->map = state;
	pool->header = state;
	pool->chunk_records = (void *)(pool->map + header->chunks_at);
	pool->cache_records = (void *)(pool->map + header->caches_at);
	pool->tenant_records = (void *)(pool->map + header->tenants_at);
	pool->sequence_records = (void *)(pool->map + header->sequences_at);
	pool->cells = (void *)(pool->map + header->cells_at);
	pool->page_records = (void *)(pool->map + header->pages_at);
	pool->scale_records = (void *)(pool->map + header->scales_at);
	pool->page_shift = header->page_shift;
	pool->slot_shift = (uint32_t)__builtin_ctzll(header->chunk_bytes / FA_SLOT_BYTES);

	pool->pages = map_sparse(pages_of(header) * sizeof(*pool->pages));
	pool->refs = map_sparse(pages_of(header) * sizeof(*pool->refs));
	if (!pool->pages || !pool->refs)
		return fa_fail(error, -ENOMEM, "there is no memory for the pool's pages");
	return 0;
}

/* Returns the first generation, from 1 to 2^31: half of all remain. */
static uint32_t generation_base(const struct fa_state_header *header)
{
	static const char what[] = "generation";

	return (uint32_t)(fa_pool_hash_short(header->secret, what, sizeof(what)) >> 33) + 1;
}

int fa_pool_open(int fd, struct fa_pool_report *report, struct fa_error *error,
                 struct fa_pool **ret_pool)
{
	return fa_pool_open_partial(fd, NULL, NULL, report, error, ret_pool);
}

int fa_pool_open_partial(int fd, fa_pool_chunk_present_fn *present, void *userdata,
                         struct fa_pool_report *report, struct fa_error *error,
                         struct fa_pool **ret_pool)
{
	_fa_cleanup_(fa_pool_freep) struct fa_pool *pool = NULL;
	struct fa_state_header header;
	int r;

	r = fa_pool_hash_init();
	if (r < 0)
		return fa_fail(error, r, "libsodium does not start");
	r = fa_state_read_header(fd, error, &header);
	if (r < 0)
		return r;
	pool = fa_new(struct fa_pool);
	if (!pool)
		return fa_fail(error, -ENOMEM, "there is no memory for the pool");
	for (uint32_t i = 0; i < FA_POOL_OWNER_BUCKETS; i++)
		fa_list_init(&pool->owned[i]);
	r = map(pool, fd, &header, error);
	if (r < 0)
		return r;
	pool->recent = calloc(FA_POOL_RECENT_SETS, sizeof(*pool->recent));
	pool->chunks = calloc(header.max_chunks, sizeof(*pool->chunks));
	pool->tenants = calloc(header.max_tenants, sizeof(*pool->tenants));
	pool->sequences = calloc(header.max_sequences, sizeof(*pool->sequences));
	pool->free_sequences = calloc(header.max_sequences, sizeof(*pool->free_sequences));
	if (!pool->recent || !pool->chunks || !pool->tenants || !pool->sequences ||
	    !pool->free_sequences)
		return fa_fail(error, -ENOMEM, "there is no memory for the pool's tables");
	pool->generation_base = generation_base(&header);
	r = fa_pool_recover(pool, present, userdata, report, error);
	if (r < 0)
		return r;
	pool->header->generation++;
	*ret_pool = fa_steal_ptr(pool);
	return 0;
}

struct fa_pool *fa_pool_free(struct fa_pool *pool)
{
	if (!pool)
		return NULL;
	for (uint32_t i = 0; pool->sequences && i < pool->header->high_sequences; i++)
		fa_pool_sequence_dealloc(pool->sequences[i]);
	for (uint32_t i = 0; i < FA_STATE_CACHES; i++)
		free(pool->caches[i]);
	free(pool->sequences);
	free(pool->free_sequences);
	free(pool->chunks);
	free(pool->recent);
	free(pool->tenants);
	free(pool->buckets);
	free(pool->names);
	if (pool->pages)
		munmap(pool->pages, pages_of(pool->header) * sizeof(*pool->pages));
	if (pool->refs)
		munmap(pool->refs, pages_of(pool->header) * sizeof(*pool->refs));
	if (pool->map)
		munmap(pool->map, pool->header->bytes);
	free(pool);
	return NULL;
}

void fa_pool_get_info(const struct fa_pool *pool, struct fa_pool_info *ret_info)
{
	*ret_info = (struct fa_pool_info){
		.chunk_bytes = pool->header->chunk_bytes,
		.chunks = pool->n_chunks,
		.chunks_free = pool->n_free_chunks,
		.sequences = pool->n_sequences,
		.tenants = pool->n_tenants,
		.steps = pool->n_steps,
		.generation = pool->header->generation,
		.quarantined_pages = pool->n_quarantined,
		.evicted_pages = pool->n_evicted,
		.shared_pages = pool->n_shared,
	};
	for (uint32_t i = 0; i < FA_STATE_CACHES; i++) {
		const struct fa_pool_cache *cache = pool->caches[i];

		if (!cache)
			continue;
		if (cache->removed)
			ret_info->chunks_held_back += cache->n_chunks;
		else
			ret_info->caches++;
		ret_info->used_bytes += cache->n_used * cache->layout.page_bytes;
		ret_info->idle_bytes += cache->n_idle * cache->layout.page_bytes;
	}
	for (uint32_t i = 0; i < pool->header->max_chunks; i++)
		if (pool->chunk_records[i].owner == FA_STATE_CHUNK_QUARANTINED)
			ret_info->chunks_held_back++;
}

void fa_pool_set_time(struct fa_pool *pool, uint64_t now_ns)
{
	pool->now_ns = now_ns;
}
