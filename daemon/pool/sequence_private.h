/* For the pool's other files. Loop thread. */
#pragma once

#include "daemon/pool/objects.h"

int fa_pool_sequence_get(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                         enum fa_right right, struct fa_error *error,
                         struct fa_pool_sequence **ret_sequence);
uint64_t fa_pool_sequence_id(const struct fa_pool_sequence *sequence);
/* Does not check rights. */
void fa_pool_sequence_destroy(struct fa_pool *pool, struct fa_pool_sequence *sequence);
/* Makes the object of a record, in no list. NULL: no memory. */
struct fa_pool_sequence *fa_pool_sequence_alloc(struct fa_pool *pool, struct fa_pool_cache *cache,
                                                uint32_t index);
void fa_pool_sequence_load_id(const struct fa_pool *pool, struct fa_pool_sequence *sequence);
void fa_pool_sequence_link(struct fa_pool *pool, struct fa_pool_sequence *sequence);
/* Frees the object, not its record. */
void fa_pool_sequence_dealloc(struct fa_pool_sequence *sequence);
/* Call it when a step's part has left in_flight: releases what waited for it. */
void fa_pool_sequence_reap(struct fa_pool *pool, struct fa_pool_sequence *sequence);

static inline struct fa_state_commit *
fa_pool_sequence_durable(const struct fa_pool_sequence *sequence)
{
	return &sequence->record->commits[sequence->record->current];
}

static inline void fa_pool_sequence_touch(const struct fa_pool *pool,
                                          struct fa_pool_sequence *sequence)
{
	sequence->record->used_ns = pool->now_ns;
}
