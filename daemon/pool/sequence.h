/*
 * Sequences: tokens in pages, in order. Loop thread only.
 *
 * The *durable* length is in the state; the *planned* length includes what steps in flight append.
 * Positions stay when leading tokens are dropped.
 *
 * Pages are shared by reference; a fork copies none. Before appending to a page a step copies it if
 * it is shared, published or paid for by another tenant, or if steps read its truncated tokens.
 *
 * Dropped pages and pages of a removed sequence stay until the steps in flight end.
 *
 * In a cache with states of linear layers a step may write a checkpoint of them. Forks, attached
 * prefixes and shortened sequences end at a checkpoint, or are empty.
 */
#pragma once

#include "daemon/pool/pool.h"

#define FA_POOL_SEQUENCE_TOKENS_MAX ((uint64_t)1 << 29)

struct fa_pool_sequence_info {
	uint64_t id, cache;
	uint64_t length, planned, first; /* tokens; those before first were dropped */
	uint64_t step;                   /* number of the last committed step; 0: none */
	const char *name;                /* "": none; valid until the sequence is gone */
	uint32_t mode;
	uint32_t tenant, uid; /* tag of the tenant; its user */
	uint64_t owner;
	uint64_t ttl_ns;
	uint32_t in_flight;  /* number of steps in flight */
	uint64_t checkpoint; /* tokens before the newest checkpoint; 0: there is none */
	uint32_t n_checkpoints;
};

/* Makes an empty sequence. -EDQUOT; -ENOSPC: too many sequences. */
int fa_pool_sequence_new(struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache,
                         struct fa_error *error, uint64_t *ret_id);

/*
 * Makes a sequence of the first @tokens durable tokens of @parent (UINT64_MAX: all); with states,
 * of those up to the last checkpoint that is not behind them. The actor's tenant pays for pages
 * added. -EINVAL, -EDQUOT, -ENOSPC; -ENOTSUP no checkpoint is kept there.
 */
int fa_pool_sequence_fork(struct fa_pool *pool, const struct fa_actor *actor, uint64_t parent,
                          uint64_t tokens, struct fa_error *error, uint64_t *ret_id);

/*
 * Sets name, mode and time to live; the name cannot be changed later. A named sequence outlives its
 * session. Only its tenant may call this. -ENAMETOOLONG, -EINVAL, -EEXIST name taken, or the
 * sequence has another.
 */
int fa_pool_sequence_set_name(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              const char *name, uint32_t mode, uint64_t ttl_ns, uint64_t now_ns,
                              struct fa_error *error);

/* Finds a sequence of a user (FA_UID_OWN). -ENOENT, -EACCES. */
int fa_pool_sequence_find(struct fa_pool *pool, const struct fa_actor *actor, const char *name,
                          uint32_t uid, uint64_t now_ns, struct fa_error *error, uint64_t *ret_id);

/* Shortens the sequence to its first @tokens tokens. -EINVAL: it does not have them all (a length
 * beyond the durable one, or tokens that were dropped); -EBUSY: steps are appending. With states
 * the sequence ends at the last checkpoint that is not behind @tokens; -ENOTSUP: none is kept
 * there. */
int fa_pool_sequence_truncate(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              uint64_t tokens, struct fa_error *error);

/* Drops pages with all tokens before @first; returns 0 and the first token left. -EINVAL. */
int fa_pool_sequence_drop(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                          uint64_t first, struct fa_error *error, uint64_t *ret_first);

/* Allowed for the sequence's session, admins and, if it has a name, its tenant. */
int fa_pool_sequence_remove(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                            struct fa_error *error);

int fa_pool_sequence_get_info(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              struct fa_error *error, struct fa_pool_sequence_info *ret_info);

/*
 * Finds the checkpoint at @tokens (UINT64_MAX: the newest). *ret_slots are its pages, as many as
 * the cache's checkpoint_pages; they stay while a step of the sequence is in flight, the array until
 * the pool is changed. -ENOENT.
 */
int fa_pool_sequence_checkpoint(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                                uint64_t tokens, struct fa_error *error, uint64_t *ret_length,
                                const uint32_t **ret_slots);

bool fa_pool_sequence_each(const struct fa_pool *pool, uint32_t *cursor,
                           struct fa_pool_sequence_info *ret_info);
