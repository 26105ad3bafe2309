/*
 * The KV pool's bookkeeping, for a range of chunks of memory. Knows no device. Loop thread only.
 * The state, a memfd (state.h), survives the daemon and is consistent after every store.
 * fa_pool_open() derives the rest from it.
 *
 * The tenant that allocated or published a page pays until it is free. A published page in no
 * sequence is *idle*; idle pages are evicted, least recently used first, before a call fails with
 * -ENOMEM.
 *
 * A failed call changes nothing and says why in @error. Calls that take an id can fail with
 * -ENOENT, -ESTALE (removed) or -EACCES, calls that make something with -ENOMEM; other errors are
 * listed. _each() functions iterate from *cursor = 0 until they return false.
 */
#pragma once

#include "common/error.h"
#include "daemon/pool/actor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_pool;

#define FA_POOL_CHUNK_BYTES_DEFAULT ((uint64_t)256 << 20)
#define FA_POOL_CHUNK_BYTES_MAX ((uint64_t)4 << 30)
#define FA_POOL_RUN_SHIFT_MAX 8u
#define FA_POOL_BYTES_MAX ((uint64_t)1 << 40) /* the most that 32-bit slots can address */

struct fa_pool_config {
	uint64_t chunk_bytes;    /* a power of two from 4096 */
	uint32_t max_chunks;     /* must be given */
	uint32_t page_bytes_min; /* a power of two, by default 4096 */
	uint32_t max_sequences;  /* default: 262144 */
	/* A cache whose pages fit badly into a chunk has *runs* of 2, 4, 8... adjacent chunks, at
	 * most this large. Default: a chunk. */
	uint64_t run_bytes_max;
};

/* Makes an empty state in a sealed, sparse memfd. -EINVAL, errors of memfd_create(). */
int fa_pool_format(const struct fa_pool_config *config, struct fa_error *error, int *ret_fd);

/* What fa_pool_open() found wrong; starts zeroed. */
struct fa_pool_report {
	char **lines;
	size_t n_lines; /* kept, at most FA_POOL_REPORT_LINES */
	size_t n_found; /* in all */
};

#define FA_POOL_REPORT_LINES 64

void fa_pool_report_deinit(struct fa_pool_report *report);

/*
 * Maps the state in @fd, which may then be closed. Drops inconsistent objects and reports them in
 * @report (may be NULL). Steps in flight are forgotten; pages they may have written are
 * *quarantined*, unused until fa_pool_quarantine_end(). -EPROTONOSUPPORT another version; -EBADMSG
 * no state, or a damaged header.
 */
int fa_pool_open(int fd, struct fa_pool_report *report, struct fa_error *error,
                 struct fa_pool **ret_pool);

/* Chunks for which @present returns false become absent; objects with pages there are dropped. */
typedef bool fa_pool_chunk_present_fn(void *userdata, uint32_t chunk);
int fa_pool_open_partial(int fd, fa_pool_chunk_present_fn *present, void *userdata,
                         struct fa_pool_report *report, struct fa_error *error,
                         struct fa_pool **ret_pool);

/* All steps must have ended. */
struct fa_pool *fa_pool_free(struct fa_pool *pool);

static inline void fa_pool_freep(struct fa_pool **pool)
{
	*pool = fa_pool_free(*pool);
}

/* Called when the dead daemon's device no longer writes to the pool. */
void fa_pool_quarantine_end(struct fa_pool *pool);

/* ---- Chunks. Chunk i is [i, i + 1) * chunk_bytes of the pool. */

enum fa_chunk_state {
	FA_CHUNK_ABSENT,
	FA_CHUNK_FREE,
	FA_CHUNK_CACHE,
};

uint64_t fa_pool_chunk_bytes(const struct fa_pool *pool);
uint32_t fa_pool_max_chunks(const struct fa_pool *pool);
enum fa_chunk_state fa_pool_chunk_state(const struct fa_pool *pool, uint32_t chunk);

/* @zeroed: its memory is all zeros. -EINVAL, -EEXIST. */
int fa_pool_chunk_add(struct fa_pool *pool, uint32_t chunk, bool zeroed, struct fa_error *error);

/* Removes a chunk without used pages; the caller releases its memory. -EBUSY: there is none. */
int fa_pool_chunk_remove(struct fa_pool *pool, struct fa_error *error, uint32_t *ret_chunk);

/* False: no chunk was empty since @since_ns. */
bool fa_pool_chunk_remove_empty(struct fa_pool *pool, uint64_t since_ns, uint32_t *ret_chunk);

/* Called for a step that lacks free pages: adds a chunk or returns false. May be NULL. */
typedef bool fa_pool_grow_fn(void *userdata);
void fa_pool_set_grow(struct fa_pool *pool, fa_pool_grow_fn *grow, void *userdata);

/* Appends @hint to the error of an exhausted pool of at least @chunks chunks. Not copied; may be
 * NULL. */
void fa_pool_set_exhausted_hint(struct fa_pool *pool, uint32_t chunks, const char *hint);

/* ---- Tenants. */

struct fa_pool_tenant_info {
	uint32_t tag, uid;
	const char *cgroup; /* valid until the tenant is gone */
	uint64_t bytes;
	uint64_t idle_bytes; /* of them idle, evicted before -EDQUOT */
	uint32_t n_sequences, n_caches;
	/* What the tenants of a uid hold together, with the step being planned. For uid 0, which
	 * makes cgroups for others, only this tenant. */
	struct fa_pool_user_held {
		uint64_t bytes;
		uint32_t n_sequences, n_caches;
	} user;
};

struct fa_pool_more {
	uint64_t bytes;
	uint32_t sequences, caches;
};

/* Returns -EDQUOT if the tenant may not have @more than @held, else 0. May be NULL. */
typedef int fa_pool_quota_fn(void *userdata, const struct fa_pool_tenant_info *held,
                             const struct fa_pool_more *more, struct fa_error *error);
void fa_pool_set_quota(struct fa_pool *pool, fa_pool_quota_fn *quota, void *userdata);

/*
 * Finds or makes a tenant and references it. It lives while it is referenced, owns or pays for
 * something. Tags are above 0, never reused. -ENAMETOOLONG, -ENOSPC, -EDQUOT too many of the uid.
 */
int fa_pool_tenant_get(struct fa_pool *pool, uint32_t uid, const char *cgroup,
                       struct fa_error *error, uint32_t *ret_tag);
void fa_pool_tenant_put(struct fa_pool *pool, uint32_t tag);

bool fa_pool_tenant_each(const struct fa_pool *pool, uint32_t *cursor,
                         struct fa_pool_tenant_info *ret_info);

/* ---- The whole. */

/* The time is CLOCK_BOOTTIME, for calls without a time parameter. */
void fa_pool_set_time(struct fa_pool *pool, uint64_t now_ns);

/* Call it at a session's end: removes its unnamed objects; others lose their owner. */
void fa_pool_release_owner(struct fa_pool *pool, uint64_t owner);

/* May return an owner repeatedly. */
bool fa_pool_owner_each(const struct fa_pool *pool, uint32_t *cursor, uint64_t *ret_owner);

/*
 * Removes named sequences, and named caches without sequences, that were unused for their time to
 * live and have nothing in flight. Returns their number.
 */
size_t fa_pool_expire(struct fa_pool *pool, uint64_t now_ns);

struct fa_pool_info {
	uint64_t chunk_bytes;
	uint32_t chunks, chunks_free; /* with memory; of these, without a cache */
	uint32_t chunks_held_back;    /* of removed caches, not yet free */
	uint32_t caches, sequences, tenants, steps;
	uint64_t generation;
	uint64_t used_bytes, idle_bytes;
	uint64_t quarantined_pages;
	uint64_t shared_pages;  /* used by several sequences or steps */
	uint64_t evicted_pages; /* since fa_pool_open() */
};

void fa_pool_get_info(const struct fa_pool *pool, struct fa_pool_info *ret_info);
