/*
 * Chunks of device memory: which cache has which chunk, and the free pages of a chunk. A caller checks
 * the state that a comment names; nothing here does. Loop thread.
 */
#pragma once

#include "daemon/pool/objects.h"

/* NULL: free, quarantined or absent. */
struct fa_pool_cache *fa_chunk_cache(const struct fa_pool *pool, uint32_t chunk);
bool fa_chunk_is_free(const struct fa_pool *pool, uint32_t chunk);
/* True if the chunk is a cache's and has no used or quarantined page. */
bool fa_chunk_is_reclaimable(const struct fa_pool *pool, uint32_t chunk);
/* UINT32_MAX: none. */
uint32_t fa_chunk_find_free(const struct fa_pool *pool);

/* The chunk is free. */
void fa_chunk_assign(struct fa_pool *pool, uint32_t chunk, struct fa_pool_cache *cache);
/* The chunk has no used, idle or quarantined page. */
void fa_chunk_release(struct fa_pool *pool, uint32_t chunk);
/* The chunk is free, and loses its memory. */
void fa_chunk_remove(struct fa_pool *pool, uint32_t chunk);

void fa_chunk_put_free_page(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
/* The cache has a free page. */
uint32_t fa_chunk_take_free_page(struct fa_pool *pool, struct fa_pool_cache *cache);
