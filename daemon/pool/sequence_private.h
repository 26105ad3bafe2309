/* Sequences for the pool's other files: lookup with rights, recovery, ending. Loop thread. */
#pragma once

#include "daemon/pool/objects.h"

int fa_pool_sequence_get(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                         enum fa_right right, struct fa_error *error,
                         struct fa_pool_sequence **ret_sequence);
uint64_t fa_pool_sequence_id(const struct fa_pool_sequence *sequence);
/* Removes a sequence without a check of rights. */
void fa_pool_sequence_destroy(struct fa_pool *pool, struct fa_pool_sequence *sequence);
/* Makes the object of a record, and adds it to no list. NULL: no memory. */
struct fa_pool_sequence *fa_pool_sequence_alloc(struct fa_pool *pool, struct fa_pool_cache *cache,
                                                uint32_t index);
/* Sets the id from the record. */
void fa_pool_sequence_load_id(const struct fa_pool *pool, struct fa_pool_sequence *sequence);
/* Adds the sequence to the lists of its cache and its session. */
void fa_pool_sequence_link(struct fa_pool *pool, struct fa_pool_sequence *sequence);
/* Frees the object; its record in the state stays. */
void fa_pool_sequence_dealloc(struct fa_pool_sequence *sequence);
/* After a step's part left in_flight: releases what waited for it. */
void fa_pool_sequence_reap(struct fa_pool *pool, struct fa_pool_sequence *sequence);

static inline struct fa_state_commit *
fa_pool_sequence_durable(const struct fa_pool_sequence *sequence)
{
	return &sequence->record->commits[sequence->record->current];
}

/* Restarts the time to live of a sequence. */
static inline void fa_pool_sequence_touch(const struct fa_pool *pool,
                                          struct fa_pool_sequence *sequence)
{
	sequence->record->used_ns = pool->now_ns;
}
