/*
 * A free list of blocks of one size, for sizes beyond malloc()'s caches: the block used last is
 * still in the processor's cache. One thread.
 */
#pragma once

#include <stddef.h>

struct fa_block_cache {
	size_t bytes; /* of a block; larger requests bypass the cache */
	unsigned int n;
	struct fa_cached_block *first;
};

void fa_block_cache_init(struct fa_block_cache *cache, size_t bytes);
void fa_block_cache_deinit(struct fa_block_cache *cache);

/* Returns zeros, aligned as by malloc(), or NULL. */
void *fa_block_cache_get(struct fa_block_cache *cache, size_t bytes);

/* @bytes: as for fa_block_cache_get(). */
void fa_block_cache_put(struct fa_block_cache *cache, void *block, size_t bytes);
