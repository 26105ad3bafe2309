#include "daemon/pool/reclaim.h"

#include "daemon/pool/chunk.h"
#include "daemon/pool/page.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>

void fa_pool_set_grow(struct fa_pool *pool, fa_pool_grow_fn *grow, void *userdata)
{
	pool->grow = grow;
	pool->grow_userdata = userdata;
}

void fa_pool_set_exhausted_hint(struct fa_pool *pool, uint32_t chunks, const char *remedy)
{
	pool->exhausted_hint = remedy;
	pool->exhausted_hint_chunks = chunks;
}

void fa_reclaim_chunk(struct fa_pool *pool, uint32_t number)
{
	struct fa_chunk *chunk = &pool->chunks[number];
	struct fa_pool_cache *cache = fa_chunk_cache(pool, number);
	uint32_t first = number << pool->page_shift;

	for (uint32_t i = 0; chunk->n_idle && i < chunk->fresh_begin; i++)
		if (!pool->refs[first + i] && (pool->pages[first + i].flags & FA_PAGE_PUBLISHED))
			fa_page_evict(pool, cache, first + i);
	fa_chunk_release(pool, number);
}

uint64_t fa_reclaim_cache(struct fa_pool *pool, struct fa_pool_cache *cache)
{
	uint64_t n;

	for (n = 0; cache->oldest; n++)
		fa_page_evict(pool, cache, cache->oldest - 1);
	return n;
}

static uint64_t chunks_for(const struct fa_pool_cache *cache, uint64_t have)
{
	uint64_t per_chunk = cache->layout.pages_per_chunk;

	return cache->need_pages > have ? (cache->need_pages - have + per_chunk - 1) / per_chunk
	                                : 0;
}

/* Counts the pages that can be reclaimed from caches that the step does not use. */
static uint64_t count_reclaimable(const struct fa_pool *pool)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < pool->header->max_chunks; i++)
		if (fa_chunk_is_reclaimable(pool, i) &&
		    !pool->caches[pool->chunk_records[i].owner - FA_STATE_CHUNK_CACHE]->need_pages)
			n++;
	return n;
}

static int exhausted(const struct fa_pool *pool, const struct fa_pool_cache *caches,
                     uint64_t chunks, struct fa_error *error)
{
	const char *remedy = "";

	if (pool->n_quarantined)
		remedy = ", more in some seconds, when the daemon before has let go";
	else if (pool->exhausted_hint && pool->n_chunks >= pool->exhausted_hint_chunks)
		remedy = pool->exhausted_hint;
	for (const struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned)
		if (chunks_for(cache, cache->n_free + cache->n_idle))
			return fa_fail(error, -ENOMEM,
			               "the pool is exhausted: %" PRIu64 " pages of %" PRIu64
			               " bytes are needed, %" PRIu64 " can be had%s",
			               cache->need_pages, cache->layout.page_bytes,
			               cache->n_free + cache->n_idle +
			                       chunks * cache->layout.pages_per_chunk,
			               remedy);
	return -ENOMEM;
}

static uint32_t find_reclaimable(const struct fa_pool *pool)
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

/* Grows the pool, which comes before evicting. */
static void grow(struct fa_pool *pool, const struct fa_pool_cache *caches)
{
	uint64_t want = 0;

	if (!pool->grow)
		return;
	for (const struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned)
		want += chunks_for(cache, cache->n_free);
	while (want > pool->n_free_chunks && pool->grow(pool->grow_userdata))
		;
}

int fa_reclaim_pages(struct fa_pool *pool, struct fa_pool_cache *caches, struct fa_error *error)
{
	uint64_t must = 0;

	grow(pool, caches);
	for (struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned)
		must += chunks_for(cache, cache->n_free + cache->n_idle);
	if (must > pool->n_free_chunks) {
		uint64_t chunks = pool->n_free_chunks + count_reclaimable(pool);

		if (must > chunks)
			return exhausted(pool, caches, chunks, error);
	}

	/* First reclaim the chunks without which a cache has too few pages, then chunks that avoid
	 * evictions. */
	for (struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned)
		for (uint64_t n = chunks_for(cache, cache->n_free + cache->n_idle); n > 0; n--) {
			uint32_t chunk = fa_chunk_find_free(pool);

			if (chunk == UINT32_MAX) {
				chunk = find_reclaimable(pool);
				fa_reclaim_chunk(pool, chunk);
			}
			fa_chunk_assign(pool, chunk, cache);
		}
	for (struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned)
		for (uint64_t n = chunks_for(cache, cache->n_free); n > 0 && pool->n_free_chunks;
		     n--)
			fa_chunk_assign(pool, fa_chunk_find_free(pool), cache);
	return 0;
}

static void evict_tenant(struct fa_pool *pool, uint32_t tenant, uint64_t bytes)
{
	const struct fa_tenant_account *account = fa_tenant_account(pool, tenant);
	uint64_t done = 0;

	while (account->oldest && done < bytes) {
		uint32_t index = account->oldest - 1;
		struct fa_pool_cache *cache = fa_chunk_cache(pool, index >> pool->page_shift);

		fa_page_evict(pool, cache, index);
		done += cache->layout.page_bytes;
	}
}

void fa_reclaim_quota(struct fa_pool *pool, uint32_t tag, uint64_t more_bytes)
{
	uint32_t idle;

	while (pool->quota && (idle = fa_tenant_find_idle(pool, tag)) &&
	       !fa_tenant_quota_admits(pool, tag, more_bytes))
		evict_tenant(pool, idle, more_bytes);
}

static void remove_chunk(struct fa_pool *pool, uint32_t number)
{
	if (!fa_chunk_is_free(pool, number))
		fa_reclaim_chunk(pool, number);
	fa_chunk_remove(pool, number);
}

bool fa_pool_chunk_remove_empty(struct fa_pool *pool, uint64_t since_ns, uint32_t *ret_chunk)
{
	for (uint32_t i = pool->header->max_chunks; i-- > 0;) {
		const struct fa_chunk *chunk = &pool->chunks[i];

		if ((!fa_chunk_is_free(pool, i) &&
		     (!fa_chunk_is_reclaimable(pool, i) || chunk->n_idle)) ||
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
	/* Prefer free chunks, then empty ones, then those with idle pages: that avoids evictions.
	 * Take the highest first. */
	for (int pass = 0; pass < 3; pass++)
		for (uint32_t i = pool->header->max_chunks; i-- > 0;) {
			bool free = fa_chunk_is_free(pool, i);

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
