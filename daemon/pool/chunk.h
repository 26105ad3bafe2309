/*
 * Chunks of device memory: which cache has which, and their free pages. What a comment requires is
 * for the caller to check. Loop thread.
 */
#pragma once

#include "daemon/pool/objects.h"

/* NULL: the chunk is free, quarantined or absent. */
struct fa_pool_cache *fa_chunk_cache(const struct fa_pool *pool, uint32_t chunk);
bool fa_chunk_is_free(const struct fa_pool *pool, uint32_t chunk);
static inline uint32_t fa_chunk_of_page(const struct fa_pool *pool,
                                        const struct fa_pool_cache *cache, uint32_t index)
{
	return index >> (pool->page_shift + cache->run_shift) << cache->run_shift;
}

static inline uint32_t fa_chunk_first(const struct fa_pool_cache *cache, uint32_t chunk)
{
	return chunk >> cache->run_shift << cache->run_shift;
}

/* Returns true if the chunk is the first of a run without used or quarantined pages. */
bool fa_chunk_is_reclaimable(const struct fa_pool *pool, uint32_t chunk);
/* Returns the first chunk of a free run of 2^@run_shift; UINT32_MAX: none. */
uint32_t fa_chunk_find_free(const struct fa_pool *pool, uint32_t run_shift);

void fa_chunk_assign(struct fa_pool *pool, uint32_t chunk, struct fa_pool_cache *cache);
/* Takes the run that begins with @chunk from its cache. No page of it may be used, idle or
 * quarantined. */
void fa_chunk_release(struct fa_pool *pool, uint32_t chunk);
/* Takes the memory of a free chunk, which becomes absent. */
void fa_chunk_remove(struct fa_pool *pool, uint32_t chunk);

void fa_chunk_put_free_page(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
/* The cache must have a free page. */
uint32_t fa_chunk_take_free_page(struct fa_pool *pool, struct fa_pool_cache *cache);
