#include "daemon/pool/chunk.h"

#include "daemon/pool/state_store.h"

#include <errno.h>
#include <inttypes.h>

uint64_t fa_pool_chunk_bytes(const struct fa_pool *pool)
{
	return pool->header->chunk_bytes;
}

uint32_t fa_pool_max_chunks(const struct fa_pool *pool)
{
	return pool->header->max_chunks;
}

struct fa_pool_cache *fa_chunk_cache(const struct fa_pool *pool, uint32_t chunk)
{
	uint32_t owner = pool->chunk_records[chunk].owner;

	return owner < FA_STATE_CHUNK_CACHE || owner == FA_STATE_CHUNK_QUARANTINED
	               ? NULL
	               : pool->caches[owner - FA_STATE_CHUNK_CACHE];
}

bool fa_chunk_is_free(const struct fa_pool *pool, uint32_t chunk)
{
	return pool->chunk_records[chunk].owner == FA_STATE_CHUNK_FREE;
}

enum fa_chunk_state fa_pool_chunk_state(const struct fa_pool *pool, uint32_t chunk)
{
	if (chunk >= pool->header->max_chunks ||
	    pool->chunk_records[chunk].owner == FA_STATE_CHUNK_ABSENT)
		return FA_CHUNK_ABSENT;
	return fa_chunk_cache(pool, chunk) ? FA_CHUNK_CACHE : FA_CHUNK_FREE;
}

bool fa_chunk_is_reclaimable(const struct fa_pool *pool, uint32_t number)
{
	const struct fa_chunk *chunk = &pool->chunks[number];
	const struct fa_pool_cache *cache = fa_chunk_cache(pool, number);

	return cache && fa_chunk_first(cache, number) == number && !chunk->n_used &&
	       !chunk->n_quarantined;
}

uint32_t fa_chunk_find_free(const struct fa_pool *pool, uint32_t run_shift)
{
	const uint32_t n = 1u << run_shift, max = pool->header->max_chunks;

	for (uint32_t first = 0; pool->n_free_chunks >= n && max - first >= n; first += n) {
		uint32_t i = 0;

		while (i < n && fa_chunk_is_free(pool, first + i))
			i++;
		if (i == n)
			return first;
	}
	return UINT32_MAX;
}

void fa_chunk_put_free_page(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	struct fa_chunk *chunk = &pool->chunks[fa_chunk_of_page(pool, cache, index)];

	pool->pages[index].next = chunk->free_head;
	chunk->free_head = index + 1;
	cache->n_free++;
	if (!chunk->n_free++)
		fa_list_append(&cache->open_chunks, &chunk->link);
}

uint32_t fa_chunk_take_free_page(struct fa_pool *pool, struct fa_pool_cache *cache)
{
	struct fa_chunk *chunk = fa_container_of(cache->open_chunks.next, struct fa_chunk, link);
	uint32_t index;

	if (chunk->free_head) {
		index = chunk->free_head - 1;
		chunk->free_head = pool->pages[index].next;
	} else {
		index = (uint32_t)(chunk - pool->chunks) << pool->page_shift | chunk->fresh_begin++;
		pool->pages[index] = (struct fa_page){ .flags = chunk->zeroed ? 0
			                                                      : FA_PAGE_TAINTED };
	}
	cache->n_free--;
	if (!--chunk->n_free)
		fa_list_remove(&chunk->link);
	return index;
}

void fa_chunk_assign(struct fa_pool *pool, uint32_t number, struct fa_pool_cache *cache)
{
	struct fa_chunk *chunk = &pool->chunks[number];
	const uint32_t n = 1u << cache->run_shift;
	bool zeroed = true;

	for (uint32_t i = 0; i < n; i++) {
		fa_state_store(&pool->chunk_records[number + i].owner,
		               FA_STATE_CHUNK_CACHE + cache->index);
		zeroed = zeroed && chunk[i].zeroed;
	}
	*chunk = (struct fa_chunk){ .zeroed = zeroed,
		                    .n_free = cache->layout.pages_per_chunk,
		                    .empty_ns = chunk->empty_ns };
	fa_list_append(&cache->open_chunks, &chunk->link);
	cache->n_free += chunk->n_free;
	cache->n_chunks += n;
	pool->n_free_chunks -= n;
}

void fa_chunk_release(struct fa_pool *pool, uint32_t number)
{
	struct fa_chunk *chunk = &pool->chunks[number];
	struct fa_pool_cache *cache = fa_chunk_cache(pool, number);
	const struct fa_chunk left = { .zeroed = chunk->zeroed && !chunk->fresh_begin,
		                       .empty_ns = chunk->empty_ns };
	const uint32_t n = 1u << cache->run_shift;

	fa_list_remove(&chunk->link);
	cache->n_free -= chunk->n_free;
	cache->n_chunks -= n;
	pool->n_free_chunks += n;
	for (uint32_t i = 0; i < n; i++) {
		fa_state_store(&pool->chunk_records[number + i].owner, FA_STATE_CHUNK_FREE);
		chunk[i] = left;
		fa_list_init(&chunk[i].link);
	}
}

void fa_chunk_remove(struct fa_pool *pool, uint32_t number)
{
	fa_state_store(&pool->chunk_records[number].owner, FA_STATE_CHUNK_ABSENT);
	pool->n_chunks--;
	pool->n_free_chunks--;
}

int fa_pool_chunk_add(struct fa_pool *pool, uint32_t number, bool zeroed, struct fa_error *error)
{
	if (number >= pool->header->max_chunks)
		return fa_fail(error, -EINVAL,
		               "the pool has no chunk %" PRIu32 "; expected one below %" PRIu32,
		               number, pool->header->max_chunks);
	if (pool->chunk_records[number].owner != FA_STATE_CHUNK_ABSENT)
		return fa_fail(error, -EEXIST, "chunk %" PRIu32 " has memory already", number);
	pool->chunks[number] = (struct fa_chunk){ .zeroed = zeroed, .empty_ns = pool->now_ns };
	fa_list_init(&pool->chunks[number].link);
	fa_state_store(&pool->chunk_records[number].owner, FA_STATE_CHUNK_FREE);
	pool->n_chunks++;
	pool->n_free_chunks++;
	return 0;
}
