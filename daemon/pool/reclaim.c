#include "daemon/pool/reclaim.h"

#include "common/cleanup.h"
#include "daemon/pool/chunk.h"
#include "daemon/pool/page.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

static uint64_t runs_for(const struct fa_pool_cache *cache, uint64_t have)
{
	uint64_t per_run = cache->layout.pages_per_chunk;

	return cache->need_pages > have ? (cache->need_pages - have + per_run - 1) / per_run : 0;
}

/* True if the chunk is free, or can be reclaimed from a cache that the step does not use. */
static bool is_available(const struct fa_pool *pool, uint32_t chunk)
{
	const struct fa_pool_cache *cache = fa_chunk_cache(pool, chunk);

	if (!cache)
		return fa_chunk_is_free(pool, chunk);
	return !cache->need_pages && fa_chunk_is_reclaimable(pool, fa_chunk_first(cache, chunk));
}

/*
 * Takes up to @n runs of 2^@run_shift chunks that @available marks; returns how many. Runs are
 * aligned, so if larger ones are taken first the choice does not matter.
 */
static uint64_t take_runs(const struct fa_pool *pool, uint32_t run_shift, uint64_t n,
                          bool *available)
{
	const uint32_t length = 1u << run_shift, max = pool->header->max_chunks;
	uint64_t taken = 0;

	for (uint32_t first = 0; taken < n && max - first >= length; first += length) {
		uint32_t i = 0;

		while (i < length && available[first + i])
			i++;
		if (i < length)
			continue;
		memset(&available[first], 0, length * sizeof(*available));
		taken++;
	}
	return taken;
}

/*
 * Plans runs for the caches: of free chunks and, with @evicts, of chunks that evictions would free
 * and of other caches'. Returns true if all get enough; else *ret_short is the first that does not,
 * and *ret_runs what it gets. -ENOMEM counts as none.
 */
static bool can_have(const struct fa_pool *pool, struct fa_pool_cache *caches, bool evicts,
                     const struct fa_pool_cache **ret_short, uint64_t *ret_runs)
{
	_fa_cleanup_(fa_freep) bool *available = calloc(pool->header->max_chunks,
	                                                sizeof(*available));

	*ret_runs = 0;
	for (uint32_t i = 0; available && i < pool->header->max_chunks; i++)
		available[i] = evicts ? is_available(pool, i) : fa_chunk_is_free(pool, i);
	for (uint32_t shift = pool->header->run_shift_max + 1; shift-- > 0;)
		for (struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned) {
			uint64_t have = cache->n_free + (evicts ? cache->n_idle : 0);
			uint64_t n = runs_for(cache, have);

			if (cache->run_shift != shift || !n)
				continue;
			*ret_short = cache;
			*ret_runs = available ? take_runs(pool, shift, n, available) : 0;
			if (*ret_runs < n)
				return false;
		}
	return true;
}

static int exhausted(const struct fa_pool *pool, const struct fa_pool_cache *cache, uint64_t runs,
                     struct fa_error *error)
{
	const char *remedy = "";

	if (pool->n_quarantined)
		remedy = ", more in some seconds, when the daemon before has let go";
	else if (pool->exhausted_hint && pool->n_chunks >= pool->exhausted_hint_chunks)
		remedy = pool->exhausted_hint;
	return fa_fail(error, -ENOMEM,
	               "the pool is exhausted: %" PRIu64 " pages of %" PRIu64
	               " bytes are needed, %" PRIu64 " can be had%s",
	               cache->need_pages, cache->layout.page_bytes,
	               cache->n_free + cache->n_idle + runs * cache->layout.pages_per_chunk,
	               remedy);
}

/* 0: the run has no idle page. */
static uint64_t last_use(const struct fa_pool *pool, uint32_t first, uint32_t run_shift)
{
	uint64_t last = 0;

	for (uint32_t i = 0; i < 1u << run_shift; i++) {
		const struct fa_pool_cache *cache = fa_chunk_cache(pool, first + i);
		const struct fa_chunk *chunk;

		if (!cache)
			continue;
		chunk = &pool->chunks[fa_chunk_first(cache, first + i)];
		if (chunk->n_idle && chunk->idle_clock > last)
			last = chunk->idle_clock;
	}
	return last;
}

/* can_have() has found that there is one. */
static uint32_t find_reclaimable(const struct fa_pool *pool, uint32_t run_shift)
{
	const uint32_t n = 1u << run_shift, max = pool->header->max_chunks;
	uint32_t best = UINT32_MAX;

	for (uint32_t first = 0; max - first >= n; first += n) {
		uint32_t i = 0;

		while (i < n && is_available(pool, first + i))
			i++;
		if (i == n && (best == UINT32_MAX ||
		               last_use(pool, first, run_shift) < last_use(pool, best, run_shift)))
			best = first;
	}
	return best;
}

static void reclaim_run(struct fa_pool *pool, uint32_t first, uint32_t run_shift)
{
	for (uint32_t i = 0; i < 1u << run_shift; i++) {
		const struct fa_pool_cache *cache = fa_chunk_cache(pool, first + i);

		if (cache)
			fa_reclaim_chunk(pool, fa_chunk_first(cache, first + i));
	}
}

/* The pool grows before anything is evicted. */
static void grow(struct fa_pool *pool, struct fa_pool_cache *caches)
{
	const struct fa_pool_cache *cache;
	uint64_t want = 0, runs;

	if (!pool->grow)
		return;
	for (cache = caches; cache; cache = cache->next_planned)
		want += runs_for(cache, cache->n_free) << cache->run_shift;
	if (!want)
		return;
	/* Free chunks may lie apart, so this goes on until runs can be had. */
	while ((want > pool->n_free_chunks || !can_have(pool, caches, false, &cache, &runs)) &&
	       pool->grow(pool->grow_userdata))
		;
}

int fa_reclaim_pages(struct fa_pool *pool, struct fa_pool_cache *caches, struct fa_error *error)
{
	const struct fa_pool_cache *poor = NULL;
	uint64_t must = 0, runs;

	grow(pool, caches);
	for (struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned)
		must += runs_for(cache, cache->n_free + cache->n_idle);
	if (must && !can_have(pool, caches, true, &poor, &runs))
		return exhausted(pool, poor, runs, error);

	/* First the runs without which a cache has too few pages, larger ones first; then those
	 * that avoid evictions. */
	for (uint32_t shift = pool->header->run_shift_max + 1; must && shift-- > 0;)
		for (struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned) {
			if (cache->run_shift != shift)
				continue;
			for (uint64_t n = runs_for(cache, cache->n_free + cache->n_idle); n > 0;
			     n--) {
				uint32_t first = fa_chunk_find_free(pool, shift);

				if (first == UINT32_MAX) {
					first = find_reclaimable(pool, shift);
					reclaim_run(pool, first, shift);
				}
				fa_chunk_assign(pool, first, cache);
			}
		}
	for (struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned)
		for (uint64_t n = runs_for(cache, cache->n_free); n > 0; n--) {
			uint32_t first = fa_chunk_find_free(pool, cache->run_shift);

			if (first == UINT32_MAX)
				break;
			fa_chunk_assign(pool, first, cache);
		}
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
	/* Free chunks first, then empty ones, then those with idle pages; the highest first. */
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
