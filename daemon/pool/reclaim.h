/* Grows the pool, moves chunks between caches, evicts idle pages. */
#pragma once

#include "daemon/pool/objects.h"

/*
 * Gives every cache in the list (by next_planned) need_pages free and idle pages. -ENOMEM: nothing
 * changed, but the pool may have grown.
 */
int fa_reclaim_pages(struct fa_pool *pool, struct fa_pool_cache *caches, struct fa_error *error);
/* Evicts idle pages of the tenant, then of its user's others, until the quota admits the bytes. */
void fa_reclaim_quota(struct fa_pool *pool, uint32_t tag, uint64_t more_bytes);
/* Returns their number. */
uint64_t fa_reclaim_cache(struct fa_pool *pool, struct fa_pool_cache *cache);
void fa_reclaim_chunk(struct fa_pool *pool, uint32_t chunk);
