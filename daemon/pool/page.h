/*
 * Pages: numbers, references, charges, eviction. A page has a slot, which the state stores, and an
 * index into the pool's arrays. Loop thread.
 */
#pragma once

#include "daemon/pool/objects.h"

static inline uint32_t fa_page_index(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                                     uint32_t slot)
{
	uint32_t shift = pool->slot_shift + cache->run_shift;

	return (slot >> shift) << (pool->page_shift + cache->run_shift) |
	       fa_cache_page_place(&cache->layout, slot & ((1u << shift) - 1));
}

static inline uint32_t fa_page_slot(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                                    uint32_t index)
{
	uint32_t shift = pool->page_shift + cache->run_shift;

	return ((index >> shift) << (pool->slot_shift + cache->run_shift)) +
	       (index & ((1u << shift) - 1)) * cache->layout.page_slots;
}

static inline void fa_page_prefetch(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                                    uint32_t slot)
{
	__builtin_prefetch(&pool->refs[fa_page_index(pool, cache, slot)], 1);
}

/* Takes a page, with one reference. The cache must have one free or idle (fa_reclaim_pages()).
 * @ret_clear: it has another tenant's contents. */
uint32_t fa_page_take(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t tenant,
                      bool *ret_clear);
void fa_page_ref(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
void fa_page_unref(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
void fa_page_charge(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index,
                    uint32_t tenant);
void fa_page_evict(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
/* Recovery calls it once references and PUBLISHED are known: makes the page used, idle or
 * quarantined. */
void fa_page_load(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
