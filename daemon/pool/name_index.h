/* Hash table of named sequences, derived from the state. Loop thread. */
#pragma once

#include "daemon/pool/objects.h"

struct fa_pool_sequence *fa_name_index_find(const struct fa_pool *pool, uint32_t uid,
                                            const char *name);
/* Makes room for one more name: adding it cannot fail. -ENOMEM. */
int fa_name_index_prepare(struct fa_pool *pool);
/* Call fa_name_index_prepare() before. */
void fa_name_index_add(struct fa_pool *pool, struct fa_pool_sequence *sequence);
void fa_name_index_remove(struct fa_pool *pool, struct fa_pool_sequence *sequence);
