/* A small pool on a fake device, with actors. A few hundred tokens fill cells and chunks. */
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

/* Anna and Bob are sessions of one tenant, of uid 1000. */
enum scene_actor {
	SCENE_ANNA,
	SCENE_BOB,
	SCENE_CLAIRE, /* Anna's uid, another cgroup */
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

/* Pages have 16 tokens and 512 bytes. */
extern const struct fa_cache_geometry scene_geometry;

/* With @n_chunks chunks of memory. */
void scene_init(struct scene *scene, uint32_t n_chunks);
void scene_deinit(struct scene *scene);

/* Opens the state as a new process would; nothing may be reported. */
void scene_reopen(struct scene *scene);
/* Takes a reference to each tenant, as resumed sessions do. */
void scene_hold_tenants(struct scene *scene);

uint64_t scene_cache(struct scene *scene, enum scene_actor actor, const char *name, uint32_t mode);
uint64_t scene_sequence(struct scene *scene, enum scene_actor actor, uint64_t cache);

struct fa_pool_step *scene_plan(struct scene *scene, enum scene_actor actor, uint64_t sequence,
                                uint32_t n_tokens);
void scene_plan_fails(struct scene *scene, enum scene_actor actor, uint64_t sequence,
                      uint32_t n_tokens, int code);
/* Every new token becomes @base + its position. */
void scene_write(struct scene *scene, struct fa_pool_step *step, uint32_t base);
void scene_commit(struct scene *scene, struct fa_pool_step *step);
void scene_abort(struct scene *scene, struct fa_pool_step *step);

/* A whole step. */
void scene_append(struct scene *scene, enum scene_actor actor, uint64_t sequence, uint32_t n_tokens,
                  uint32_t base);

/* Durable tokens in [begin, end) must be @base + their position. */
void scene_check(struct scene *scene, uint64_t sequence, uint64_t begin, uint64_t end,
                 uint32_t base);

struct fa_pool_sequence_info scene_info(struct scene *scene, uint64_t sequence);
struct fa_pool_cache_info scene_cache_info(struct scene *scene, uint64_t cache);
uint64_t scene_tenant_bytes(struct scene *scene, enum scene_actor actor);

/* All counts must follow from the page lists, and nothing be in flight. */
void scene_check_counts(struct scene *scene);

void scene_check_same(const struct fa_pool_info *before, const struct fa_pool_info *after);

/* The call must fail with @code, and @part in the error's text. */
#define SCENE_FAILS(scene, code, part, call)                                                       \
	do {                                                                                       \
		(scene)->error.text[0] = '\0';                                                     \
		fa_check_eq(call, code);                                                           \
		fa_check_contains((scene)->error.text, part);                                      \
	} while (0)
