#include "daemon/base/block_cache.h"

#include <stdlib.h>
#include <string.h>

/* Otherwise AddressSanitizer would miss uses after free. */
#if defined(__SANITIZE_ADDRESS__)
#define BLOCKS_MAX 0u
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BLOCKS_MAX 0u
#endif
#endif
#ifndef BLOCKS_MAX
#define BLOCKS_MAX 64u
#endif

struct fa_cached_block {
	struct fa_cached_block *next;
};

void fa_block_cache_init(struct fa_block_cache *cache, size_t bytes)
{
	*cache = (struct fa_block_cache){ .bytes = bytes };
}

void fa_block_cache_deinit(struct fa_block_cache *cache)
{
	while (cache->first) {
		struct fa_cached_block *head = cache->first;

		cache->first = head->next;
		free(head);
	}
	cache->n = 0;
}

void *fa_block_cache_get(struct fa_block_cache *cache, size_t bytes)
{
	struct fa_cached_block *head = cache->first;

	if (bytes > cache->bytes)
		return calloc(1, bytes);
	if (!head)
		return calloc(1, cache->bytes);
	cache->first = head->next;
	--cache->n;
	return memset(head, 0, bytes);
}

void fa_block_cache_put(struct fa_block_cache *cache, void *block, size_t bytes)
{
	struct fa_cached_block *freed = block;

	if (bytes > cache->bytes || cache->n + 1 > BLOCKS_MAX) {
		free(block);
		return;
	}
	freed->next = cache->first;
	cache->first = freed;
	++cache->n;
}
