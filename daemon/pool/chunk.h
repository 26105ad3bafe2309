/* Chunks: to which cache each belongs, and its free pages. */
#pragma once

#include "daemon/pool/objects.h"

/* NULL: free, quarantined or absent. */
struct fa_pool_cache *fa_chunk_cache(const struct fa_pool *pool, uint32_t chunk);
bool fa_chunk_is_free(const struct fa_pool *pool, uint32_t chunk);
/* Returns true if the chunk belongs to a cache and none of its pages is used or quarantined. */
bool fa_chunk_is_reclaimable(const struct fa_pool *pool, uint32_t chunk);
/* UINT32_MAX: none. */
uint32_t fa_chunk_find_free(const struct fa_pool *pool);

/* A free chunk becomes the cache's. */
void fa_chunk_assign(struct fa_pool *pool, uint32_t chunk, struct fa_pool_cache *cache);
/* A chunk without used, idle or quarantined pages becomes free. */
void fa_chunk_release(struct fa_pool *pool, uint32_t chunk);
/* A free chunk loses its memory. */
void fa_chunk_remove(struct fa_pool *pool, uint32_t chunk);

void fa_chunk_put_free_page(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
/* The cache has a free page. */
uint32_t fa_chunk_take_free_page(struct fa_pool *pool, struct fa_pool_cache *cache);
