/*
 * Caches: pages of one geometry, and the sequences made of them. Loop thread only.
 */
#pragma once

#include "daemon/pool/cache_layout.h"
#include "daemon/pool/pool.h"

struct fa_pool_cache_config {
	struct fa_cache_geometry geometry;
	const char *name;   /* NULL: the cache belongs to the session alone */
	uint32_t mode;      /* FA_MODE() */
	uint64_t ttl_ns;    /* 0: unlimited; only with a name */
	uint64_t max_pages; /* most pages in use; 0: no limit */
	/* [layers][kv_heads]; only for codes without token_scales. */
	const float *k_scales, *v_scales;
	size_t n_k_scales, n_v_scales;
	/* Bytes of each state of linear layers, which checkpoints hold; 0: none. */
	const uint32_t *state_bytes;
	size_t n_states;
	/* Checkpoints at multiples of it are kept; a multiple of page_tokens; 0: only a sequence's
	 * last one is. */
	uint32_t checkpoint_tokens;
};

struct fa_pool_cache_info {
	uint64_t id;
	struct fa_cache_geometry geometry;
	struct fa_cache_layout layout;
	/* [layers][kv_heads], or NULL; valid until the cache is gone */
	const float *k_scales, *v_scales;
	const uint32_t *state_bytes; /* [n_states]; valid until the cache is gone */
	uint32_t n_states, checkpoint_tokens;
	uint32_t checkpoint_pages; /* of one checkpoint */
	const char *name;          /* "": none; valid until the cache is gone */
	uint32_t mode;
	uint32_t tenant, uid;
	uint64_t owner;
	uint64_t ttl_ns, max_pages;
	uint32_t chunks, sequences;
	uint64_t used_pages, idle_pages, free_pages; /* free_pages: in the cache's chunks */
};

/* A state has at most this many bytes. In a checkpoint each begins at a multiple of
 * FA_SLOT_BYTES. */
#define FA_POOL_STATE_BYTES_MAX ((uint32_t)1 << 30)

/* Makes a cache. -EINVAL, -ENOTSUP, -ENAMETOOLONG, -EEXIST name taken, -EDQUOT, -ENOSPC too
 * many. */
int fa_pool_cache_new(struct fa_pool *pool, const struct fa_actor *actor,
                      const struct fa_pool_cache_config *config, uint64_t now_ns,
                      struct fa_error *error, uint64_t *ret_id);

/* Finds a cache of a user (FA_UID_OWN). -ENOENT, -EACCES. */
int fa_pool_cache_find(struct fa_pool *pool, const struct fa_actor *actor, const char *name,
                       uint32_t uid, uint64_t now_ns, struct fa_error *error, uint64_t *ret_id);

/* Removes a cache with its sequences. Frees pages once nothing is in flight. Its session, admins
 * and, if it is named, its tenant may call this. */
int fa_pool_cache_remove(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                         struct fa_error *error);

int fa_pool_cache_get_info(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                           struct fa_error *error, struct fa_pool_cache_info *ret_info);

bool fa_pool_cache_each(const struct fa_pool *pool, uint32_t *cursor,
                        struct fa_pool_cache_info *ret_info);
