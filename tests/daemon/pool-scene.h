/*
 * A small pool with a pretended device, and some who use it. Pages are small, so that a few
 * hundred tokens fill lists and chunks.
 */
#pragma once

#include "daemon/pool/cache.h"
#include "daemon/pool/sequence.h"
#include "daemon/pool/step.h"
#include "tests/daemon/pool-calls.h"
#include "tests/daemon/pool-device.h"

#define SCENE_CHUNK_BYTES 8192u
#define SCENE_CHUNKS 8u
#define SCENE_CHUNK_PAGES 16u /* of scene_geometry */
#define SCENE_PAGE_TOKENS 16u
#define SCENE_SEQUENCES 64u

/* Tenants: two of uid 1000, one of uid 2000; anna and bob are sessions of the first. */
enum scene_actor {
	SCENE_ANNA,
	SCENE_BOB,
	SCENE_CLAIRE, /* same uid, another cgroup */
	SCENE_DAVID,  /* another uid */
	SCENE_ADMIN,
	SCENE_ACTORS,
};

struct scene {
	int fd;
	struct fa_pool *pool;
	struct device device;
	struct fa_actor actors[SCENE_ACTORS];
	struct fa_error error;
	uint64_t now_ns, number;
};

/* 16 tokens, 512 bytes a page. */
extern const struct fa_cache_geometry scene_geometry;

/* A pool with @n_chunks chunks of memory. */
void scene_init(struct scene *scene, uint32_t n_chunks);
void scene_deinit(struct scene *scene);

/* The process dies and the next one opens the state: nothing may be found wrong with it. */
void scene_reopen(struct scene *scene);
/* Holds the tenants, as sessions that were resumed would. */
void scene_hold_tenants(struct scene *scene);

uint64_t scene_cache(struct scene *scene, enum scene_actor actor, const char *name, uint32_t mode);
uint64_t scene_sequence(struct scene *scene, enum scene_actor actor, uint64_t cache);

struct fa_pool_step *scene_plan(struct scene *scene, enum scene_actor actor, uint64_t sequence,
                                uint32_t n_tokens);
/* Fails with @code, and a sentence. */
void scene_plan_fails(struct scene *scene, enum scene_actor actor, uint64_t sequence,
                      uint32_t n_tokens, int code);
/* Writes token number p as @base + p, for every new token of the step. */
void scene_write(struct scene *scene, struct fa_pool_step *step, uint32_t base);
void scene_commit(struct scene *scene, struct fa_pool_step *step);
void scene_abort(struct scene *scene, struct fa_pool_step *step);

/* All of that for one sequence. */
void scene_append(struct scene *scene, enum scene_actor actor, uint64_t sequence, uint32_t n_tokens,
                  uint32_t base);

/* Durable tokens [begin, end) are @base + their position. */
void scene_check(struct scene *scene, uint64_t sequence, uint64_t begin, uint64_t end,
                 uint32_t base);

struct fa_pool_sequence_info scene_info(struct scene *scene, uint64_t sequence);
struct fa_pool_cache_info scene_cache_info(struct scene *scene, uint64_t cache);
uint64_t scene_tenant_bytes(struct scene *scene, enum scene_actor actor);

/* Every count is what follows from the lists of the sequences; nothing is in flight. */
void scene_check_counts(struct scene *scene);

/* Nothing has changed. */
void scene_check_same(const struct fa_pool_info *before, const struct fa_pool_info *after);

/* A call fails with @code and a sentence that contains @part. */
#define SCENE_FAILS(scene, code, part, call)                                                       \
	do {                                                                                       \
		(scene)->error.text[0] = '\0';                                                     \
		fa_check_eq(call, code);                                                           \
		fa_check_contains((scene)->error.text, part);                                      \
	} while (0)
