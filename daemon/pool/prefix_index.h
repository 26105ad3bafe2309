/* Hash table of published pages by their prefix's hash, derived from the state. Loop thread. */
#pragma once

#include "daemon/pool/objects.h"

/* Returns the page's index plus one; 0: none. */
uint32_t fa_prefix_index_find(const struct fa_pool *pool, const uint8_t hash[FA_STATE_HASH_BYTES]);
/* Makes room for @n_more pages: adding them cannot fail. -ENOMEM. */
int fa_prefix_index_prepare(struct fa_pool *pool, uint64_t n_more);
/* Call fa_prefix_index_prepare() before. Returns false if another page has the same hash. */
bool fa_prefix_index_add(struct fa_pool *pool, uint32_t index);
void fa_prefix_index_remove(struct fa_pool *pool, uint32_t index);
