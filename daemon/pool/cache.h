/*
 * Caches: pages of one shape, and the sequences in them. Loop thread only.
 */
#pragma once

#include "daemon/pool/cache_layout.h"
#include "daemon/pool/pool.h"

struct fa_pool_cache_config {
	struct fa_cache_geometry geometry;
	const char *name;   /* NULL: the session's own */
	uint32_t mode;      /* FA_MODE() */
	uint64_t ttl_ns;    /* 0: for ever; only with a name */
	uint64_t max_pages; /* that all its sequences may use together; 0: as many as there are */
	/* Of heads, [layers][kv_heads], if the geometry wants them. */
	const float *k_scales, *v_scales;
	size_t n_k_scales, n_v_scales;
};

struct fa_pool_cache_info {
	uint64_t id;
	struct fa_cache_geometry geometry;
	struct fa_cache_layout layout;
	/* Of heads, [layers][kv_heads], or NULL; good until the cache is gone. */
	const float *k_scales, *v_scales;
	const char *name; /* "" if it has none; good until the cache is gone */
	uint32_t mode;
	uint32_t tenant; /* tag */
	uint64_t owner;
	uint64_t ttl_ns, max_pages;
	uint32_t chunks, sequences;
	uint64_t used_pages, idle_pages, free_pages; /* free: of the chunks it has */
};

/*
 * Ids are never reused. -EINVAL, -ENOTSUP, -ENAMETOOLONG, -EEXIST the name is taken,
 * -EDQUOT too many of the tenant's, -ENOSPC too many caches.
 */
int fa_pool_cache_new(struct fa_pool *pool, const struct fa_actor *actor,
                      const struct fa_pool_cache_config *config, uint64_t now_ns,
                      struct fa_error *error, uint64_t *ret_id);

/* By name. -ENOENT, -EACCES. */
int fa_pool_cache_find(struct fa_pool *pool, const struct fa_actor *actor, const char *name,
                       uint64_t now_ns, struct fa_error *error, uint64_t *ret_id);

/*
 * Frees all its sequences and evicts all its pages; what is in flight ends first. Only its
 * session, its tenant if it has a name, or an admin may. -ENOENT, -ESTALE, -EACCES.
 */
int fa_pool_cache_remove(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                         struct fa_error *error);

/* -ENOENT, -ESTALE, -EACCES without the right to read. */
int fa_pool_cache_get_info(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                           struct fa_error *error, struct fa_pool_cache_info *ret_info);

/* One after another, from *cursor = 0 on; false: that was all. */
bool fa_pool_cache_each(const struct fa_pool *pool, uint32_t *cursor,
                        struct fa_pool_cache_info *ret_info);
