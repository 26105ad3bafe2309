/*
 * A model of a pool, in which a sequence is an array of tokens. An operation is a value: chosen
 * from the model, run on a real pool, compared with the model's answer, and applied to the model. A
 * journal of operations leads another model to the same state.
 */
#pragma once

#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#define MODEL_TOKENS 640u
#define MODEL_STEPS 8u
#define MODEL_ITEMS 4u
#define MODEL_CACHES 3u
#define MODEL_ROWS (2 * SCENE_SEQUENCES)
#define MODEL_CHUNK_BYTES 16384u
#define MODEL_CHUNKS 16u

enum op_kind {
	OP_PLAN,
	OP_KEEP,
	OP_COMMIT,
	OP_ABORT,
	OP_SUSPECT,
	OP_NEW,
	OP_FORK,
	OP_TRUNCATE,
	OP_DROP,
	OP_REMOVE,
	OP_PUBLISH,
	OP_ATTACH,
	OP_NAME,
	OP_FIND,
	OP_RELEASE_OWNER,
	OP_CACHE_NEW,
	OP_CACHE_REMOVE,
	OP_CHUNK_ADD,
	OP_CHUNK_REMOVE,
	OP_EVICT,
	OP_QUARANTINE_END,
	OPS,
};

struct op_item {
	uint64_t sequence;
	uint32_t n_tokens;
	uint32_t text, base; /* of the new tokens */
};

/* An operation: its arguments, then its results. */
struct op {
	enum op_kind kind;
	enum scene_actor actor;
	enum scene_actor of; /* whose names are looked up */
	uint64_t sequence;
	uint32_t cache; /* row */
	uint32_t step;  /* row */
	uint32_t n_items;
	struct op_item items[MODEL_ITEMS];
	uint64_t tokens; /* to fork, truncate, drop, publish or attach */
	uint64_t source; /* sequence whose tokens are looked up */
	uint64_t wrong;  /* position of a changed token; UINT64_MAX: none */
	uint64_t kept;   /* mask of new tokens */
	uint32_t name, mode, chunk;
	bool shared;

	int result;
	uint64_t ret_id, ret_tokens;
	bool done;
};

struct model_sequence {
	uint64_t id;  /* 0: free row */
	bool removed; /* removed, with steps in flight */
	uint32_t cache;
	enum scene_actor tenant; /* named by its first actor */
	uint64_t owner;
	uint32_t name; /* 0: none */
	uint32_t mode;
	uint64_t length, first, step;
	uint32_t tokens[MODEL_TOKENS];
};

struct model_part {
	uint64_t sequence;
	uint64_t before, after;
	struct op_item item;
	uint64_t kept; /* mask of tokens, if @keeps */
	bool appends, cancelled, keeps;
};

struct model_step {
	uint64_t serial; /* 0: free row */
	uint64_t owner;
	uint32_t n_parts;
	struct model_part parts[MODEL_ITEMS];
};

struct model_cache {
	uint64_t id; /* 0: none */
	enum scene_actor tenant;
	uint32_t page_tokens;
};

struct model {
	struct model_sequence sequences[MODEL_ROWS];
	struct model_step steps[MODEL_STEPS];
	struct model_cache caches[MODEL_CACHES];
	uint64_t owners[SCENE_ACTORS];
	uint64_t serial, n_owners;
	uint32_t unique; /* next unused token */
};

enum scene_actor model_tenant(enum scene_actor actor);
uint32_t model_uid(enum scene_actor tenant);
struct model_sequence *model_find(struct model *model, uint64_t id);

/* Length of the sequence with all planned steps. */
uint64_t model_planned(struct model *model, uint64_t id, bool *ret_in_flight);

/* What @op should return if there is memory. */
int model_expect(struct model *model, const struct op *op);
void model_apply(struct model *model, const struct op *op);
/* The token at @position that a lookup asks for. */
uint32_t model_lookup_token(struct model *model, const struct op *op, uint64_t position);
void model_drop_in_flight(struct model *model);

/* The upper four bits of a token say which tenants may see it. */
uint32_t model_token(const struct model_sequence *sequence, const struct op_item *item,
                     uint64_t before, uint64_t position);
bool model_may_see(enum scene_actor tenant, uint32_t token);
