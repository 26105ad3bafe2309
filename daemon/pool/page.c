/* Pages: taken, shared, let go, evicted; who pays for them. */
#include "daemon/pool/private.h"

#include <errno.h>
#include <inttypes.h>

static struct fa_chunk *chunk_of(const struct fa_pool *pool, uint32_t index)
{
	return &pool->chunks[index >> pool->page_shift];
}

static uint64_t chunks_for(const struct fa_pool_cache *cache, uint64_t have)
{
	uint64_t per_chunk = cache->layout.pages_per_chunk;

	return cache->need_pages > have ? (cache->need_pages - have + per_chunk - 1) / per_chunk
	                                : 0;
}

/* Chunks that those who plan can take from those who do not. */
static uint64_t count_quiet(const struct fa_pool *pool)
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
	else if (pool->remedy && pool->n_chunks >= pool->remedy_chunks)
		remedy = pool->remedy;
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

/* Has the pool grow rather than evict. */
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
		uint64_t chunks = pool->n_free_chunks + count_quiet(pool);

		if (must > chunks)
			return exhausted(pool, caches, chunks, error);
	}

	/* First everyone what it cannot do without, then what spares it evictions. */
	for (struct fa_pool_cache *cache = caches; cache; cache = cache->next_planned)
		for (uint64_t n = chunks_for(cache, cache->n_free + cache->n_idle); n > 0; n--) {
			uint32_t chunk = fa_chunk_find_free(pool);

			if (chunk == UINT32_MAX) {
				chunk = fa_chunk_find_quiet(pool);
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

void fa_page_charge(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index,
                    uint32_t tenant)
{
	struct fa_page *page = &pool->pages[index];
	uint32_t before = page->tenant;

	page->tenant = tenant;
	fa_tenant_account(pool, tenant)->bytes += cache->layout.page_bytes;
	fa_tenant_account(pool, before)->bytes -= cache->layout.page_bytes;
	fa_tenant_try_free(pool, before);
}

uint32_t fa_page_take(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t tenant,
                      bool *ret_clear)
{
	struct fa_page *page;
	uint32_t index;

	if (!cache->n_free)
		fa_page_evict(pool, cache, cache->oldest - 1);
	index = fa_chunk_take_free(pool, cache);
	page = &pool->pages[index];
	*ret_clear = (page->flags & FA_PAGE_TAINTED) || (page->tenant && page->tenant != tenant);
	pool->refs[index] = 1;
	page->tenant = tenant;
	page->flags = 0;
	cache->n_used++;
	chunk_of(pool, index)->n_used++;
	fa_tenant_account(pool, tenant)->bytes += cache->layout.page_bytes;
	return index;
}

static void free_page(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	struct fa_page *page = &pool->pages[index];
	struct fa_chunk *chunk = chunk_of(pool, index);

	if (!chunk->n_used && !chunk->n_idle)
		chunk->empty_ns = pool->now_ns;
	fa_tenant_account(pool, page->tenant)->bytes -= cache->layout.page_bytes;
	fa_tenant_try_free(pool, page->tenant);
	if (pool->quarantine && (page->flags & FA_PAGE_SUSPECT)) {
		page->flags |= FA_PAGE_QUARANTINED;
		chunk->n_quarantined++;
		pool->n_quarantined++;
		return;
	}
	fa_chunk_put_free(pool, cache, index);
}

static void idle_add(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	struct fa_page *page = &pool->pages[index];
	struct fa_tenant_account *account = fa_tenant_account(pool, page->tenant);

	page->next = 0;
	page->prev = cache->newest;
	if (cache->newest)
		pool->pages[cache->newest - 1].next = index + 1;
	else
		cache->oldest = index + 1;
	cache->newest = index + 1;
	cache->n_idle++;
	account->idle_bytes += cache->layout.page_bytes;
	page->tenant_next = 0;
	page->tenant_prev = account->newest;
	if (account->newest)
		pool->pages[account->newest - 1].tenant_next = index + 1;
	else
		account->oldest = index + 1;
	account->newest = index + 1;
	chunk_of(pool, index)->n_idle++;
	chunk_of(pool, index)->idle_clock = ++pool->clock;
}

static void idle_remove(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	struct fa_page *page = &pool->pages[index];
	struct fa_tenant_account *account = fa_tenant_account(pool, page->tenant);

	if (page->prev)
		pool->pages[page->prev - 1].next = page->next;
	else
		cache->oldest = page->next;
	if (page->next)
		pool->pages[page->next - 1].prev = page->prev;
	else
		cache->newest = page->prev;
	if (page->tenant_prev)
		pool->pages[page->tenant_prev - 1].tenant_next = page->tenant_next;
	else
		account->oldest = page->tenant_next;
	if (page->tenant_next)
		pool->pages[page->tenant_next - 1].tenant_prev = page->tenant_prev;
	else
		account->newest = page->tenant_prev;
	cache->n_idle--;
	account->idle_bytes -= cache->layout.page_bytes;
	chunk_of(pool, index)->n_idle--;
}

void fa_page_ref(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	if (!pool->refs[index]++) {
		idle_remove(pool, cache, index);
		cache->n_used++;
		chunk_of(pool, index)->n_used++;
	}
}

void fa_page_unref(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	if (--pool->refs[index])
		return;
	cache->n_used--;
	chunk_of(pool, index)->n_used--;
	if (pool->pages[index].flags & FA_PAGE_PUBLISHED)
		idle_add(pool, cache, index);
	else
		free_page(pool, cache, index);
}

void fa_page_evict(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	idle_remove(pool, cache, index);
	fa_prefix_index_remove(pool, index);
	fa_state_store(&pool->page_records[index].state, 0);
	pool->pages[index].flags &= ~FA_PAGE_PUBLISHED;
	pool->n_evicted++;
	free_page(pool, cache, index);
}

void fa_page_load(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	struct fa_page *page = &pool->pages[index];

	if (!pool->refs[index] && !(page->flags & FA_PAGE_PUBLISHED)) {
		*page = (struct fa_page){ .flags = FA_PAGE_TAINTED | FA_PAGE_SUSPECT |
			                           FA_PAGE_QUARANTINED };
		chunk_of(pool, index)->n_quarantined++;
		pool->n_quarantined++;
		return;
	}
	page->flags |= FA_PAGE_TAINTED;
	fa_tenant_account(pool, page->tenant)->bytes += cache->layout.page_bytes;
	if (pool->refs[index]) {
		cache->n_used++;
		chunk_of(pool, index)->n_used++;
	} else {
		idle_add(pool, cache, index);
	}
}

uint64_t fa_reclaim_cache(struct fa_pool *pool, struct fa_pool_cache *cache)
{
	uint64_t n;

	for (n = 0; cache->oldest; n++)
		fa_page_evict(pool, cache, cache->oldest - 1);
	return n;
}

void fa_pages_evict_of(struct fa_pool *pool, uint32_t tenant, uint64_t bytes)
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
