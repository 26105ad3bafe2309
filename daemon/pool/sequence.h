/*
 * Sequences: tokens in pages, in order. Loop thread only.
 *
 * A sequence has a *durable* length, which is in the state, and a *planned* one, which steps
 * in flight have reserved; without those they are equal. Tokens are numbered from the
 * sequence's beginning for ever, also when leading ones were dropped.
 *
 * Pages are shared by reference: a fork copies none. A page that a sequence does not have for
 * itself (another has it too, it is published, or another tenant pays for it) is copied when a
 * step appends to it; and so is one of which tokens were taken back while steps read them.
 *
 * While steps are in flight a sequence can be freed and leading pages dropped: the pages
 * leave when those steps have ended.
 */
#pragma once

#include "daemon/pool/pool.h"

#define FA_POOL_SEQUENCE_TOKENS_MAX ((uint64_t)1 << 29)

struct fa_pool_sequence_info {
	uint64_t id, cache;
	uint64_t length, planned, first; /* tokens; those before first were dropped */
	uint64_t step;                   /* number of the step committed last, 0: none */
	const char *name;                /* "" if it has none; good until it is gone or renamed */
	uint32_t mode;
	uint32_t tenant; /* tag of who pays */
	uint64_t owner;
	uint64_t ttl_ns;
	uint32_t in_flight; /* steps */
};

/* -ENOENT, -ESTALE, -EACCES for the cache; -EDQUOT, -ENOSPC too many sequences. */
int fa_pool_sequence_new(struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache,
                         struct fa_error *error, uint64_t *ret_id);

/*
 * A new sequence with the first @tokens durable tokens of @parent (UINT64_MAX: all), which
 * the actor's session owns and tenant pays for what it adds. -EINVAL @tokens beyond the
 * length or before what was dropped; -EACCES, -ENOENT, -ESTALE, -EDQUOT, -ENOSPC, -ENOMEM.
 */
int fa_pool_sequence_fork(struct fa_pool *pool, const struct fa_actor *actor, uint64_t parent,
                          uint64_t tokens, struct fa_error *error, uint64_t *ret_id);

/*
 * Gives it a name, or another mode and time to live with the name it has. From then on it
 * outlives its session. -ENAMETOOLONG, -EINVAL, -EEXIST taken, or it has another name;
 * -EACCES not of its tenant.
 */
int fa_pool_sequence_set_name(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              const char *name, uint32_t mode, uint64_t ttl_ns, uint64_t now_ns,
                              struct fa_error *error);

/* By name, with the right to read. -ENOENT, -EACCES. */
int fa_pool_sequence_find(struct fa_pool *pool, const struct fa_actor *actor, const char *name,
                          uint64_t now_ns, struct fa_error *error, uint64_t *ret_id);

/* Takes back all tokens from @tokens on. -EINVAL; -EBUSY steps are appending to it. */
int fa_pool_sequence_truncate(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              uint64_t tokens, struct fa_error *error);

/*
 * Drops the pages that have no token from @first on; what was dropped before stays so.
 * Returns 0 and the first token that is left. -EINVAL @first beyond the length.
 */
int fa_pool_sequence_drop(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                          uint64_t first, struct fa_error *error, uint64_t *ret_first);

/* Its session, its tenant if it has a name, or an admin may. */
int fa_pool_sequence_remove(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                            struct fa_error *error);

/* With the right to read. */
int fa_pool_sequence_get_info(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              struct fa_error *error, struct fa_pool_sequence_info *ret_info);

/* One after another, from *cursor = 0 on; false: that was all. */
bool fa_pool_sequence_each(const struct fa_pool *pool, uint32_t *cursor,
                           struct fa_pool_sequence_info *ret_info);
