#pragma once

#include "daemon/pool/objects.h"

struct fa_pool_sequence *fa_name_index_find(const struct fa_pool *pool, const char *name);
int fa_name_index_prepare(struct fa_pool *pool);
/* Prepared. */
void fa_name_index_add(struct fa_pool *pool, struct fa_pool_sequence *sequence);
void fa_name_index_remove(struct fa_pool *pool, struct fa_pool_sequence *sequence);
