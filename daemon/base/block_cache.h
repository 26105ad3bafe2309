/*
 * Blocks of one size that are kept for whoever needs the next: malloc() takes its time over
 * what is too large for its caches, and memory that was just used is still near the
 * processor. One thread.
 */
#pragma once

#include <stddef.h>

struct fa_block_cache {
	size_t bytes; /* of a block */
	unsigned int n;
	struct fa_spare *first;
};

void fa_block_cache_init(struct fa_block_cache *spares, size_t bytes);
void fa_block_cache_deinit(struct fa_block_cache *spares);

/* @bytes of zeros, aligned as malloc() does it. NULL: there is no memory. */
void *fa_block_cache_get(struct fa_block_cache *spares, size_t bytes);

/* Gives back what was taken as @bytes. */
void fa_block_cache_put(struct fa_block_cache *spares, void *block, size_t bytes);
