#include "daemon/base/block_cache.h"

#include <stdlib.h>
#include <string.h>

/* Blocks kept at most; where uses of what was freed are to be found, none. */
#if defined(__SANITIZE_ADDRESS__)
#define SPARES_MAX 0u
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPARES_MAX 0u
#endif
#endif
#ifndef SPARES_MAX
#define SPARES_MAX 64u
#endif

struct fa_spare {
	struct fa_spare *next;
};

void fa_block_cache_init(struct fa_block_cache *spares, size_t bytes)
{
	*spares = (struct fa_block_cache){ .bytes = bytes };
}

void fa_block_cache_deinit(struct fa_block_cache *spares)
{
	while (spares->first) {
		struct fa_spare *spare = spares->first;

		spares->first = spare->next;
		free(spare);
	}
	spares->n = 0;
}

void *fa_block_cache_get(struct fa_block_cache *spares, size_t bytes)
{
	struct fa_spare *spare = spares->first;

	if (bytes > spares->bytes)
		return calloc(1, bytes);
	if (!spare)
		return calloc(1, spares->bytes);
	spares->first = spare->next;
	--spares->n;
	return memset(spare, 0, bytes);
}

void fa_block_cache_put(struct fa_block_cache *spares, void *block, size_t bytes)
{
	struct fa_spare *spare = block;

	if (bytes > spares->bytes || spares->n + 1 > SPARES_MAX) {
		free(block);
		return;
	}
	spare->next = spares->first;
	spares->first = spare;
	++spares->n;
}
