/*
 * Caches: pages of one geometry, and the sequences made of them. Loop thread only.
 */
#pragma once

#include "daemon/pool/cache_layout.h"
#include "daemon/pool/pool.h"

struct fa_pool_cache_config {
	struct fa_cache_geometry geometry;
	const char *name;   /* NULL: private to the session */
	uint32_t mode;      /* FA_MODE() */
	uint64_t ttl_ns;    /* 0: unlimited; needs a name */
	uint64_t max_pages; /* of pages in use; 0: no limit */
	/* [layers][kv_heads]; only for codes without token_scales. */
	const float *k_scales, *v_scales;
	size_t n_k_scales, n_v_scales;
	/* Bytes of each state of linear layers; 0: none. */
	const uint32_t *state_bytes;
	size_t n_states;
	/* Distance of the checkpoints that are kept, a multiple of page_tokens; 0: only a
	 * sequence's last one is. */
	uint32_t checkpoint_tokens;
};

struct fa_pool_cache_info {
	uint64_t id;
	struct fa_cache_geometry geometry;
	struct fa_cache_layout layout;
	/* [layers][kv_heads], or NULL. Pointers are valid until the cache is gone. */
	const float *k_scales, *v_scales;
	const uint32_t *state_bytes; /* [n_states] */
	uint32_t n_states, checkpoint_tokens;
	uint32_t checkpoint_pages; /* of one checkpoint */
	const char *name;          /* "": none */
	uint32_t mode;
	uint32_t tenant, uid;
	uint64_t owner;
	uint64_t ttl_ns, max_pages;
	uint32_t chunks, sequences;
	uint64_t used_pages, idle_pages, free_pages; /* free_pages: in the cache's chunks */
};

/* In a checkpoint each state begins at a multiple of FA_SLOT_BYTES. */
#define FA_POOL_STATE_BYTES_MAX ((uint32_t)1 << 30)

/* -EINVAL, -ENOTSUP, -ENAMETOOLONG, -EEXIST name taken, -EDQUOT, -ENOSPC too many. */
int fa_pool_cache_new(struct fa_pool *pool, const struct fa_actor *actor,
                      const struct fa_pool_cache_config *config, uint64_t now_ns,
                      struct fa_error *error, uint64_t *ret_id);

/* -ENOENT, -EACCES. */
int fa_pool_cache_find(struct fa_pool *pool, const struct fa_actor *actor, const char *name,
                       uint32_t uid, uint64_t now_ns, struct fa_error *error, uint64_t *ret_id);

/* Removes a cache with its sequences. Pages are freed once nothing is in flight. For its session,
 * admins and, if it is named, its tenant. */
int fa_pool_cache_remove(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                         struct fa_error *error);

int fa_pool_cache_get_info(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                           struct fa_error *error, struct fa_pool_cache_info *ret_info);

bool fa_pool_cache_each(const struct fa_pool *pool, uint32_t *cursor,
                        struct fa_pool_cache_info *ret_info);
