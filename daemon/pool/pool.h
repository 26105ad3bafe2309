/*
 * The KV pool's bookkeeping, for a range of chunks of memory. Knows no device. Loop thread only.
 *
 * The state, a memfd (state.h), survives the daemon and is consistent after every store.
 * fa_pool_open() derives everything else from it.
 *
 * The tenant that allocated or published a page pays for it until it is free. A published page in
 * no sequence is *idle*; idle pages are evicted, least recently used first, before a call fails
 * with -ENOMEM. Caches get chunks on demand.
 *
 * A failed call changes nothing and says why in @error. Calls that take an id can fail with
 * -ENOENT, -ESTALE (removed) or -EACCES, calls that make something with -ENOMEM; the headers list
 * other errors. _each() functions iterate from *cursor = 0 and return false at the end.
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
#define FA_POOL_BYTES_MAX ((uint64_t)1 << 40) /* the most that slots of 32 bits can address */

/* Sizes of a pool. 0 stands for the default. */
struct fa_pool_config {
	uint64_t chunk_bytes;    /* a power of two from 4096 */
	uint32_t max_chunks;     /* must be given */
	uint32_t page_bytes_min; /* a power of two, by default 4096; smaller pages waste memory */
	uint32_t max_sequences;  /* default: 262144 */
	/* A cache whose pages do not fit well into a chunk has *runs* of 2, 4, 8... adjacent chunks
	 * instead, at most this large. Default: a chunk. */
	uint64_t run_bytes_max;
};

/* Makes an empty state in a sealed, sparse memfd. -EINVAL, errors of memfd_create(). */
int fa_pool_format(const struct fa_pool_config *config, struct fa_error *error, int *ret_fd);

/* What fa_pool_open() found wrong; starts zeroed. */
struct fa_pool_report {
	char **lines;
	size_t n_lines; /* lines kept, at most FA_POOL_REPORT_LINES */
	size_t n_found; /* lines found in all */
};

#define FA_POOL_REPORT_LINES 64

void fa_pool_report_deinit(struct fa_pool_report *report);

/*
 * Maps the state in @fd, which may then be closed. Drops inconsistent objects and reports them in
 * @report (may be NULL). Steps in flight are forgotten; pages they may have written are
 * *quarantined*, unused until fa_pool_quarantine_end().
 *
 * -EPROTONOSUPPORT another version; -EBADMSG no state, or a damaged header.
 */
int fa_pool_open(int fd, struct fa_pool_report *report, struct fa_error *error,
                 struct fa_pool **ret_pool);

/* Like fa_pool_open(), but chunks for which @present returns false become absent, and objects with
 * pages there are dropped. */
typedef bool fa_pool_chunk_present_fn(void *userdata, uint32_t chunk);
int fa_pool_open_partial(int fd, fa_pool_chunk_present_fn *present, void *userdata,
                         struct fa_pool_report *report, struct fa_error *error,
                         struct fa_pool **ret_pool);

/* Frees the pool, when all steps have ended. */
struct fa_pool *fa_pool_free(struct fa_pool *pool);

static inline void fa_pool_freep(struct fa_pool **pool)
{
	*pool = fa_pool_free(*pool);
}

/* Ends the quarantine, when the dead daemon's device no longer writes to the pool. */
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

/* Adds a chunk. @zeroed: its memory is all zeros. -EINVAL, -EEXIST. */
int fa_pool_chunk_add(struct fa_pool *pool, uint32_t chunk, bool zeroed, struct fa_error *error);

/* Removes a chunk without used pages; the caller releases its memory. -EBUSY: there is none. */
int fa_pool_chunk_remove(struct fa_pool *pool, struct fa_error *error, uint32_t *ret_chunk);

/* Removes a chunk without used or idle pages since @since_ns. Returns false if there is none. */
bool fa_pool_chunk_remove_empty(struct fa_pool *pool, uint64_t since_ns, uint32_t *ret_chunk);

/* Callback for a step that lacks free pages. It adds a chunk or returns false. May be NULL. */
typedef bool fa_pool_grow_fn(void *userdata);
void fa_pool_set_grow(struct fa_pool *pool, fa_pool_grow_fn *grow, void *userdata);

/* Sets a text that is appended to the error of an exhausted pool of at least @chunks chunks. The
 * text is not copied, and may be NULL. */
void fa_pool_set_exhausted_hint(struct fa_pool *pool, uint32_t chunks, const char *hint);

/* ---- Tenants. */

struct fa_pool_tenant_info {
	uint32_t tag, uid;
	const char *cgroup;  /* valid until the tenant is gone */
	uint64_t bytes;      /* bytes of the tenant's pages */
	uint64_t idle_bytes; /* those of its idle pages, which are evicted before -EDQUOT */
	uint32_t n_sequences, n_caches;
	/* What the tenants of a uid hold together, with the needs of the step being planned. For
	 * uid 0, which makes cgroups for other users, what this tenant holds. */
	struct fa_pool_user_held {
		uint64_t bytes;
		uint32_t n_sequences, n_caches;
	} user;
};

struct fa_pool_more {
	uint64_t bytes;
	uint32_t sequences, caches;
};

/* Checks a quota: returns -EDQUOT if the tenant may not have @more than @held, else 0. May be
 * NULL. */
typedef int fa_pool_quota_fn(void *userdata, const struct fa_pool_tenant_info *held,
                             const struct fa_pool_more *more, struct fa_error *error);
void fa_pool_set_quota(struct fa_pool *pool, fa_pool_quota_fn *quota, void *userdata);

/*
 * Finds or makes a tenant and references it. A tenant lives while it is referenced, owns or pays
 * for something. Tags are above 0, never reused. -ENAMETOOLONG, -ENOSPC, -EDQUOT too many of the
 * uid.
 */
int fa_pool_tenant_get(struct fa_pool *pool, uint32_t uid, const char *cgroup,
                       struct fa_error *error, uint32_t *ret_tag);
void fa_pool_tenant_put(struct fa_pool *pool, uint32_t tag);

bool fa_pool_tenant_each(const struct fa_pool *pool, uint32_t *cursor,
                         struct fa_pool_tenant_info *ret_info);

/* ---- The whole. */

/* Sets the time, of CLOCK_BOOTTIME, for calls without a time parameter. */
void fa_pool_set_time(struct fa_pool *pool, uint64_t now_ns);

/* Called at a session's end: removes its unnamed objects; others lose their owner. */
void fa_pool_release_owner(struct fa_pool *pool, uint64_t owner);

/* Iterates over the owners of objects; may return an owner repeatedly. */
bool fa_pool_owner_each(const struct fa_pool *pool, uint32_t *cursor, uint64_t *ret_owner);

/*
 * Removes named sequences, and named caches without sequences, unused for their time to live and
 * without anything in flight. Returns their number.
 */
size_t fa_pool_expire(struct fa_pool *pool, uint64_t now_ns);

struct fa_pool_info {
	uint64_t chunk_bytes;
	uint32_t chunks, chunks_free; /* chunks with memory; those of no cache */
	uint32_t chunks_held_back;    /* chunks of removed caches that are not yet free */
	uint32_t caches, sequences, tenants, steps;
	uint64_t generation;
	uint64_t used_bytes, idle_bytes; /* bytes of pages */
	uint64_t quarantined_pages;
	uint64_t shared_pages;  /* pages that several sequences or steps use */
	uint64_t evicted_pages; /* since fa_pool_open() */
};

void fa_pool_get_info(const struct fa_pool *pool, struct fa_pool_info *ret_info);
