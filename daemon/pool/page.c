#include "daemon/pool/page.h"

#include "daemon/pool/chunk.h"
#include "daemon/pool/prefix_index.h"
#include "daemon/pool/state_store.h"
#include "daemon/pool/tenant_account.h"

static struct fa_chunk *chunk_of(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                                 uint32_t index)
{
	return &pool->chunks[fa_chunk_of_page(pool, cache, index)];
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
	index = fa_chunk_take_free_page(pool, cache);
	page = &pool->pages[index];
	*ret_clear = (page->flags & FA_PAGE_TAINTED) || (page->tenant && page->tenant != tenant);
	pool->refs[index] = 1;
	page->tenant = tenant;
	page->flags = 0;
	cache->n_used++;
	chunk_of(pool, cache, index)->n_used++;
	fa_tenant_account(pool, tenant)->bytes += cache->layout.page_bytes;
	return index;
}

static void free_page(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	struct fa_page *page = &pool->pages[index];
	struct fa_chunk *chunk = chunk_of(pool, cache, index);

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
	fa_chunk_put_free_page(pool, cache, index);
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
	chunk_of(pool, cache, index)->n_idle++;
	chunk_of(pool, cache, index)->idle_clock = ++pool->clock;
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
	chunk_of(pool, cache, index)->n_idle--;
}

void fa_page_ref(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	if (!pool->refs[index]++) {
		idle_remove(pool, cache, index);
		cache->n_used++;
		chunk_of(pool, cache, index)->n_used++;
	} else {
		pool->n_shared += pool->refs[index] == 2;
	}
}

void fa_page_unref(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	if (--pool->refs[index]) {
		pool->n_shared -= pool->refs[index] == 1;
		return;
	}
	cache->n_used--;
	chunk_of(pool, cache, index)->n_used--;
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
		chunk_of(pool, cache, index)->n_quarantined++;
		pool->n_quarantined++;
		return;
	}
	page->flags |= FA_PAGE_TAINTED;
	fa_tenant_account(pool, page->tenant)->bytes += cache->layout.page_bytes;
	pool->n_shared += pool->refs[index] > 1;
	if (pool->refs[index]) {
		cache->n_used++;
		chunk_of(pool, cache, index)->n_used++;
	} else {
		idle_add(pool, cache, index);
	}
}
