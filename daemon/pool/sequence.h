/*
 * Sequences: tokens in pages, in order. Loop thread only. The *durable* length is in the state; the
 * *planned* length includes what steps in flight append. Positions stay when leading tokens are
 * dropped.
 *
 * A fork shares pages. A step copies a page before it appends if the page is shared, published or
 * paid for by another tenant, or if steps read its truncated tokens. Dropped pages and pages of a
 * removed sequence stay until the steps in flight end.
 *
 * In a cache with states of linear layers forks, attached prefixes and shortened sequences end at a
 * checkpoint, or are empty.
 */
#pragma once

#include "daemon/pool/pool.h"

#define FA_POOL_SEQUENCE_TOKENS_MAX ((uint64_t)1 << 29)

struct fa_pool_sequence_info {
	uint64_t id, cache;
	uint64_t length, planned, first; /* in tokens; those before first were dropped */
	uint64_t step;                   /* the last committed; 0: none */
	const char *name;                /* "": none; valid until the sequence is gone */
	uint32_t mode;
	uint32_t tenant, uid; /* tag, and its user */
	uint64_t owner;
	uint64_t ttl_ns;
	uint32_t in_flight;  /* steps */
	uint64_t checkpoint; /* tokens before the newest checkpoint; 0: none */
	uint32_t n_checkpoints;
};

/* -EDQUOT; -ENOSPC: too many sequences. */
int fa_pool_sequence_new(struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache,
                         struct fa_error *error, uint64_t *ret_id);

/*
 * Makes a sequence of the first @tokens durable tokens of @parent (UINT64_MAX: all); with states,
 * of those up to the last checkpoint there. The actor's tenant pays for added pages. -EINVAL,
 * -EDQUOT, -ENOSPC; -ENOTSUP no checkpoint is kept there.
 */
int fa_pool_sequence_fork(struct fa_pool *pool, const struct fa_actor *actor, uint64_t parent,
                          uint64_t tokens, struct fa_error *error, uint64_t *ret_id);

/*
 * Sets name, mode and time to live; the name stays. A named sequence outlives its session. For its
 * tenant only. -ENAMETOOLONG, -EINVAL, -EEXIST name taken, or the sequence has another.
 */
int fa_pool_sequence_set_name(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              const char *name, uint32_t mode, uint64_t ttl_ns, uint64_t now_ns,
                              struct fa_error *error);

/* -ENOENT, -EACCES. */
int fa_pool_sequence_find(struct fa_pool *pool, const struct fa_actor *actor, const char *name,
                          uint32_t uid, uint64_t now_ns, struct fa_error *error, uint64_t *ret_id);

/* Shortens the sequence to its first @tokens tokens; with states, to the last checkpoint there
 * (-ENOTSUP: none is kept). -EINVAL: @tokens is beyond the durable length, or tokens before it were
 * dropped; -EBUSY: steps are appending. */
int fa_pool_sequence_truncate(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              uint64_t tokens, struct fa_error *error);

/* Drops pages with all tokens before @first; returns 0 and the first token left. -EINVAL. */
int fa_pool_sequence_drop(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                          uint64_t first, struct fa_error *error, uint64_t *ret_first);

/* For the sequence's session, admins and, if it has a name, its tenant. */
int fa_pool_sequence_remove(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                            struct fa_error *error);

int fa_pool_sequence_get_info(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              struct fa_error *error, struct fa_pool_sequence_info *ret_info);

/*
 * Finds the checkpoint at @tokens (UINT64_MAX: the newest). *ret_slots: its pages, checkpoint_pages
 * of the cache. They stay while a step of the sequence is in flight, the array until the pool
 * changes. -ENOENT.
 */
int fa_pool_sequence_checkpoint(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                                uint64_t tokens, struct fa_error *error, uint64_t *ret_length,
                                const uint32_t **ret_slots);

bool fa_pool_sequence_each(const struct fa_pool *pool, uint32_t *cursor,
                           struct fa_pool_sequence_info *ret_info);
