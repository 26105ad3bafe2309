/* For the pool's other files. Loop thread. */
#pragma once

#include "daemon/pool/objects.h"

int fa_pool_cache_get(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                      enum fa_right right, struct fa_error *error,
                      struct fa_pool_cache **ret_cache);
uint64_t fa_pool_cache_id(const struct fa_pool_cache *cache);
/* Makes the object of a record. -ENOMEM; -EINVAL, -ENOTSUP damaged geometry. */
int fa_pool_cache_load(struct fa_pool *pool, uint32_t index, struct fa_error *error);
bool fa_pool_cache_scales_good(const float *scales, size_t n);
void fa_pool_cache_try_free(struct fa_pool *pool, struct fa_pool_cache *cache);
