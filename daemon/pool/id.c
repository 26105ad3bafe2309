#include "daemon/pool/id.h"

#include "daemon/pool/hash.h"
#include "daemon/pool/objects.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>

#define KIND_SHIFT 56
#define INDEX_BITS 24
#define HALF_BITS 28
#define HALF_MASK ((1u << HALF_BITS) - 1)
#define ROUNDS 6u

static_assert(1u << INDEX_BITS >= FA_STATE_CACHES, "indices of caches fit into an id");

static const char *name_of(enum fa_id_kind kind)
{
	return kind == FA_ID_CACHE ? "cache" : "sequence";
}

static uint32_t scramble(const struct fa_pool *pool, enum fa_id_kind kind, uint32_t round,
                         uint32_t half)
{
	const uint32_t message[2] = { half, (uint32_t)kind << 8 | round };

	return (uint32_t)fa_pool_hash_short(pool->header->secret, message, sizeof(message)) &
	       HALF_MASK;
}

/* A Feistel network over 56 bits. */
static uint64_t encrypt(const struct fa_pool *pool, enum fa_id_kind kind, uint64_t plain)
{
	uint32_t left = (uint32_t)(plain >> HALF_BITS), right = (uint32_t)plain & HALF_MASK;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t next = left ^ scramble(pool, kind, round, right);

		left = right;
		right = next;
	}
	return (uint64_t)left << HALF_BITS | right;
}

static uint64_t decrypt(const struct fa_pool *pool, enum fa_id_kind kind, uint64_t secret)
{
	uint32_t left = (uint32_t)(secret >> HALF_BITS) & HALF_MASK;
	uint32_t right = (uint32_t)secret & HALF_MASK;

	for (uint32_t round = ROUNDS; round-- > 0;) {
		uint32_t previous = right ^ scramble(pool, kind, round, left);

		right = left;
		left = previous;
	}
	return (uint64_t)left << HALF_BITS | right;
}

bool fa_id_possible(const struct fa_state_origin *origin, uint32_t generation)
{
	return origin->id_form == FA_STATE_ID_SECRET ||
	       (origin->id_form == FA_STATE_ID_PLAIN && !(generation >> 31));
}

uint64_t fa_id_write(const struct fa_pool *pool, enum fa_id_kind kind, const struct fa_id *id)
{
	const uint64_t plain = (uint64_t)id->generation << INDEX_BITS | id->index;

	if (id->form == FA_STATE_ID_PLAIN)
		return (uint64_t)id->generation << 32 | id->index;
	return (uint64_t)kind << KIND_SHIFT | encrypt(pool, kind, plain);
}

int fa_id_check_kind(enum fa_id_kind kind, uint64_t id, struct fa_error *error)
{
	const enum fa_id_kind other = kind == FA_ID_CACHE ? FA_ID_SEQUENCE : FA_ID_CACHE;

	if (id >> KIND_SHIFT != other)
		return 0;
	return fa_fail(error, -EINVAL, "0x%" PRIx64 " is a %s; expected a %s", id, name_of(other),
	               name_of(kind));
}

int fa_id_read(const struct fa_pool *pool, enum fa_id_kind kind, uint64_t id,
               struct fa_error *error, struct fa_id *ret_id)
{
	uint64_t plain;
	int r;

	if (id >> KIND_SHIFT != kind) {
		r = fa_id_check_kind(kind, id, error);
		if (r < 0)
			return r;
		if (id >> 63)
			return fa_id_hidden(kind, error);
		*ret_id = (struct fa_id){ .form = FA_STATE_ID_PLAIN,
			                  .generation = (uint32_t)(id >> 32),
			                  .index = (uint32_t)id };
		return 0;
	}
	plain = decrypt(pool, kind, id);
	*ret_id = (struct fa_id){ .form = FA_STATE_ID_SECRET,
		                  .generation = (uint32_t)(plain >> INDEX_BITS),
		                  .index = (uint32_t)plain & ((1u << INDEX_BITS) - 1) };
	return 0;
}

int fa_id_hidden(enum fa_id_kind kind, struct fa_error *error)
{
	return fa_fail(error, -ENOENT, "there is no such %s", name_of(kind));
}

int fa_id_missing(const struct fa_pool *pool, enum fa_id_kind kind, const struct fa_id *id,
                  const struct fa_actor *actor, uint32_t generation,
                  const struct fa_state_origin *origin, struct fa_error *error)
{
	const bool was = id->form == FA_STATE_ID_SECRET && origin->id_form == id->form &&
	                 id->generation >= pool->generation_base && id->generation <= generation;
	const bool own = origin->uid == fa_tenant_record(pool, actor->tenant)->uid &&
	                 (id->generation == generation || !origin->others);

	if (was && (own || actor->admin))
		return fa_fail(error, -ESTALE, "the %s was removed", name_of(kind));
	return fa_id_hidden(kind, error);
}

struct fa_state_origin fa_id_next_origin(const struct fa_state_origin *last,
                                         uint32_t last_generation, uint32_t uid)
{
	return (struct fa_state_origin){
		.id_form = FA_STATE_ID_SECRET,
		.uid = uid,
		.others = last_generation &&
		          (last->others || last->uid != uid || last->id_form != FA_STATE_ID_SECRET),
	};
}
