#pragma once

#include "daemon/pool/objects.h"

/* An index plus one; 0: unknown. */
uint32_t fa_prefix_index_find(const struct fa_pool *pool, const uint8_t hash[FA_STATE_HASH_BYTES]);
/* For @n_more pages. */
int fa_prefix_index_prepare(struct fa_pool *pool, uint64_t n_more);
/* False: another page has its record's hash. Prepared. */
bool fa_prefix_index_add(struct fa_pool *pool, uint32_t index);
void fa_prefix_index_remove(struct fa_pool *pool, uint32_t index);
