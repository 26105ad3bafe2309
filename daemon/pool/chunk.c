/* Chunks: whose they are, and the free pages in them. */
#include "daemon/pool/private.h"

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

static bool is_free(const struct fa_pool *pool, uint32_t chunk)
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

void fa_chunk_put_free(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	struct fa_chunk *chunk = &pool->chunks[index >> pool->page_shift];

	pool->pages[index].next = chunk->free_head;
	chunk->free_head = index + 1;
	cache->n_free++;
	if (!chunk->n_free++)
		fa_list_append(&cache->open_chunks, &chunk->link);
}

uint32_t fa_chunk_take_free(struct fa_pool *pool, struct fa_pool_cache *cache)
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

	fa_state_store(&pool->chunk_records[number].owner, FA_STATE_CHUNK_CACHE + cache->index);
	*chunk = (struct fa_chunk){ .zeroed = chunk->zeroed,
		                    .n_free = cache->layout.pages_per_chunk,
		                    .empty_ns = chunk->empty_ns };
	fa_list_append(&cache->open_chunks, &chunk->link);
	cache->n_free += chunk->n_free;
	cache->n_chunks++;
	pool->n_free_chunks--;
}

void fa_reclaim_chunk(struct fa_pool *pool, uint32_t number)
{
	struct fa_chunk *chunk = &pool->chunks[number];
	struct fa_pool_cache *cache = fa_chunk_cache(pool, number);
	uint32_t first = number << pool->page_shift;

	for (uint32_t i = 0; chunk->n_idle && i < chunk->fresh_begin; i++)
		if (!pool->refs[first + i] && (pool->pages[first + i].flags & FA_PAGE_PUBLISHED))
			fa_page_evict(pool, cache, first + i);
	fa_state_store(&pool->chunk_records[number].owner, FA_STATE_CHUNK_FREE);
	fa_list_remove(&chunk->link);
	cache->n_free -= chunk->n_free;
	cache->n_chunks--;
	pool->n_free_chunks++;
	*chunk = (struct fa_chunk){ .zeroed = chunk->zeroed && !chunk->fresh_begin,
		                    .empty_ns = chunk->empty_ns };
	fa_list_init(&chunk->link);
}

bool fa_chunk_is_reclaimable(const struct fa_pool *pool, uint32_t number)
{
	const struct fa_chunk *chunk = &pool->chunks[number];

	return fa_chunk_cache(pool, number) && !chunk->n_used && !chunk->n_quarantined;
}

uint32_t fa_chunk_find_quiet(const struct fa_pool *pool)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t i = 0; i < pool->header->max_chunks; i++) {
		const struct fa_chunk *chunk = &pool->chunks[i];
		uint64_t missed = chunk->n_idle ? chunk->idle_clock : 0;

		if (!fa_chunk_is_reclaimable(pool, i) || fa_chunk_cache(pool, i)->need_pages)
			continue;
		if (best == UINT32_MAX ||
		    missed < (pool->chunks[best].n_idle ? pool->chunks[best].idle_clock : 0))
			best = i;
	}
	return best;
}

uint32_t fa_chunk_find_free(const struct fa_pool *pool)
{
	if (pool->n_free_chunks)
		for (uint32_t i = 0; i < pool->header->max_chunks; i++)
			if (is_free(pool, i))
				return i;
	return UINT32_MAX;
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

void fa_pool_set_grow(struct fa_pool *pool, fa_pool_grow_fn *grow, void *userdata)
{
	pool->grow = grow;
	pool->grow_userdata = userdata;
}

void fa_pool_set_exhausted_hint(struct fa_pool *pool, uint32_t chunks, const char *remedy)
{
	pool->remedy = remedy;
	pool->remedy_chunks = chunks;
}

static void remove_chunk(struct fa_pool *pool, uint32_t number)
{
	if (!is_free(pool, number))
		fa_reclaim_chunk(pool, number);
	fa_state_store(&pool->chunk_records[number].owner, FA_STATE_CHUNK_ABSENT);
	pool->n_chunks--;
	pool->n_free_chunks--;
}

bool fa_pool_chunk_remove_empty(struct fa_pool *pool, uint64_t since_ns, uint32_t *ret_chunk)
{
	for (uint32_t i = pool->header->max_chunks; i-- > 0;) {
		const struct fa_chunk *chunk = &pool->chunks[i];

		if ((!is_free(pool, i) && (!fa_chunk_is_reclaimable(pool, i) || chunk->n_idle)) ||
		    chunk->empty_ns > since_ns)
			continue;
		remove_chunk(pool, i);
		*ret_chunk = i;
		return true;
	}
	return false;
}

int fa_pool_chunk_remove(struct fa_pool *pool, struct fa_error *error, uint32_t *ret_chunk)
{
	/* Free ones first, then empty ones, then those with idle pages: nothing is evicted
	 * without need. */
	for (int pass = 0; pass < 3; pass++)
		for (uint32_t i = pool->header->max_chunks; i-- > 0;) {
			bool free = is_free(pool, i);

			if (!free && (pass == 0 || !fa_chunk_is_reclaimable(pool, i) ||
			              (pass == 1 && pool->chunks[i].n_idle)))
				continue;
			remove_chunk(pool, i);
			*ret_chunk = i;
			return 0;
		}
	return fa_fail(error, -EBUSY, "every one of the pool's %" PRIu32 " chunks is in use",
	               pool->n_chunks);
}

void fa_pool_quarantine_end(struct fa_pool *pool)
{
	if (!pool->quarantine)
		return;
	pool->quarantine = false;
	for (uint32_t i = 0; i < pool->header->max_chunks; i++) {
		struct fa_pool_cache *cache = fa_chunk_cache(pool, i);
		uint32_t first = i << pool->page_shift;

		if (pool->chunk_records[i].owner == FA_STATE_CHUNK_QUARANTINED) {
			fa_state_store(&pool->chunk_records[i].owner, FA_STATE_CHUNK_FREE);
			pool->n_free_chunks++;
		}
		for (uint32_t j = 0; cache && j < pool->chunks[i].fresh_begin; j++) {
			struct fa_page *page = &pool->pages[first + j];

			if (page->flags & FA_PAGE_QUARANTINED)
				fa_chunk_put_free(pool, cache, first + j);
			page->flags &= ~(FA_PAGE_SUSPECT | FA_PAGE_QUARANTINED);
		}
		pool->chunks[i].n_quarantined = 0;
	}
	pool->n_quarantined = 0;
	for (uint32_t i = 0; i < pool->header->max_caches; i++)
		if (pool->caches[i])
			fa_pool_cache_try_free(pool, pool->caches[i]);
}
