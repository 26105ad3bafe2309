/*
 * A simple picture of a pool: each sequence a plain array of tokens. Operations are values:
 * they are chosen by looking at the picture, done to a real pool, and then done to the
 * picture, which says what should have come out. What was done can be done again from a
 * list of them, to know what a process that died had reached.
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
	OP_FREE,
	OP_PUBLISH,
	OP_ATTACH,
	OP_NAME,
	OP_FIND,
	OP_OWNER_GONE,
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
	uint32_t text, base; /* what the new tokens are */
};

/* What is asked, and below what came out. */
struct op {
	enum op_kind kind;
	enum scene_actor actor;
	uint64_t sequence; /* id */
	uint32_t cache;    /* place */
	uint32_t step;     /* place */
	uint32_t n_items;
	struct op_item items[MODEL_ITEMS];
	uint64_t tokens; /* to fork, truncate, drop, publish, look up */
	uint64_t source; /* id: whose tokens are looked up */
	uint64_t wrong;  /* one of them that is changed; UINT64_MAX: none */
	uint64_t kept;   /* mask of new tokens */
	uint32_t name, mode, chunk;
	bool shared;

	int result;
	uint64_t ret_id, ret_tokens;
	bool done;
};

struct model_sequence {
	uint64_t id; /* 0: this row is free */
	bool dead;   /* but in flight */
	uint32_t cache;
	enum scene_actor tenant; /* the first actor of it */
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
	uint64_t kept; /* mask, if it keeps some of its tokens */
	bool appends, cancelled, keeps;
};

struct model_step {
	uint64_t serial; /* 0: this row is free */
	uint64_t owner;
	uint32_t n_parts;
	struct model_part parts[MODEL_ITEMS];
};

struct model_cache {
	uint64_t id; /* 0: there is none */
	enum scene_actor tenant;
	uint32_t page_tokens;
};

struct model {
	struct model_sequence sequences[MODEL_ROWS];
	struct model_step steps[MODEL_STEPS];
	struct model_cache caches[MODEL_CACHES];
	uint64_t owners[SCENE_ACTORS];
	uint64_t serial, n_owners;
	uint32_t unique; /* tokens that were never used */
};

enum scene_actor model_tenant(enum scene_actor actor);
struct model_sequence *model_find(struct model *model, uint64_t id);

/* Tokens of a sequence with what is planned, and whether anything is in flight. */
uint64_t model_planned(struct model *model, uint64_t id, bool *ret_in_flight);

/* What the pool should say, if there is memory. */
int model_expect(struct model *model, const struct op *op);
/* Does it, as it came out. */
void model_apply(struct model *model, const struct op *op);
/* What looking up means: the token at @position that @op asks for. */
uint32_t model_asked(struct model *model, const struct op *op, uint64_t position);
/* The process died: nothing is in flight. */
void model_die(struct model *model);

/* A token: whose it may be seen by is in its upper four bits. */
uint32_t model_token(const struct model_sequence *sequence, const struct op_item *item,
                     uint64_t before, uint64_t position);
bool model_may_see(enum scene_actor tenant, uint32_t token);
