/*
 * The ids of caches and sequences. The top byte is the object's kind. The rest is the record's
 * index and generation, encrypted with the pool's secret: an id cannot be guessed and tells nothing
 * about other objects. Records of older daemons keep plain ids, generation << 32 | index, until
 * their objects are removed. Loop thread only.
 */
#pragma once

#include "common/error.h"
#include "daemon/pool/actor.h"
#include "daemon/pool/state.h"

struct fa_pool;

/* Above 0x7f, so that no id looks like a plain one. */
enum fa_id_kind {
	FA_ID_CACHE = 0xc1,
	FA_ID_SEQUENCE = 0xc2,
};

struct fa_id {
	uint32_t form; /* FA_STATE_ID_PLAIN or FA_STATE_ID_SECRET */
	uint32_t generation, index;
};

/* True: a record with such an origin and generation can have an id. */
bool fa_id_possible(const struct fa_state_origin *origin, uint32_t generation);

uint64_t fa_id_write(const struct fa_pool *pool, enum fa_id_kind kind, const struct fa_id *id);

/* -EINVAL: it is another kind's; -ENOENT: it never was an id. */
int fa_id_read(const struct fa_pool *pool, enum fa_id_kind kind, uint64_t id,
               struct fa_error *error, struct fa_id *ret_id);

/* -EINVAL: it is another kind's. */
int fa_id_check_kind(enum fa_id_kind kind, uint64_t id, struct fa_error *error);

/* Returns the error for an id without an object: -ESTALE if the actor's user had it, else -ENOENT,
 * as for ids that never existed. @generation and @origin: the record's. */
int fa_id_missing(const struct fa_pool *pool, enum fa_id_kind kind, const struct fa_id *id,
                  const struct fa_actor *actor, uint32_t generation,
                  const struct fa_state_origin *origin, struct fa_error *error);

/* Returns the error for an object that the actor must not know of: -ENOENT. */
int fa_id_hidden(enum fa_id_kind kind, struct fa_error *error);

/* Returns the origin to store when @uid uses a record of origin @last next. */
struct fa_state_origin fa_id_next_origin(const struct fa_state_origin *last,
                                         uint32_t last_generation, uint32_t uid);
