/*
 * The KV pool: a range of chunks whose memory is the caller's, and the state, in a memfd,
 * that says what lies where. Knows no device. Loop thread only.
 *
 * What survives the daemon is in the state (pool/state.h) and is right after every store;
 * reference counts, free lists, the index of published pages and all that belongs to steps
 * in flight live in this process and are derived again by fa_pool_open().
 *
 * A page in use belongs to the sequences that list it and is paid for, once, by the tenant
 * for whom it was allocated, or who published it, until it is free. A page that is published
 * and in no sequence is *idle*: it is evicted, least recently used first, before anyone is
 * told -ENOMEM. Chunks go to caches as these need them, and empty ones to others.
 *
 * Every failure leaves everything as it was and says why in @error.
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
#define FA_POOL_BYTES_MAX ((uint64_t)1 << 40) /* what slots of 32 bits reach */

/* Fixed for the life of a state. 0 stands for the default. */
struct fa_pool_config {
	uint64_t chunk_bytes; /* a power of two from 4096 */
	uint32_t max_chunks;  /* the pool may grow to so many; no default */
	uint32_t
		page_bytes_min; /* a power of two; pages smaller than that leave room unused (4096) */
	uint32_t max_sequences; /* 262144 */
};

/*
 * Makes an empty state, in a sealed memfd. It is sparse: it costs what is used of it.
 * -EINVAL, -ENOMEM and what memfd_create() says.
 */
int fa_pool_format(const struct fa_pool_config *config, struct fa_error *error, int *ret_fd);

/* What fa_pool_open() found wrong, in sentences. Zeroed: empty. */
struct fa_pool_report {
	char **lines;
	size_t n_lines; /* kept, at most FA_POOL_REPORT_LINES */
	size_t n_found; /* in all */
};

#define FA_POOL_REPORT_LINES 64

void fa_pool_report_deinit(struct fa_pool_report *report);

/*
 * Maps the state in @fd (which stays the caller's, and can be closed), checks all of it,
 * repairs or drops what does not fit together, telling @report (may be NULL), and raises the
 * generation. Steps that were in flight never happened. The pages they may have written to
 * are *quarantined*, not used for anything, until fa_pool_quarantine_end().
 *
 * -EPROTONOSUPPORT another version; -EBADMSG this is no state of a pool, or its header is
 * damaged; -ENOMEM.
 */
int fa_pool_open(int fd, struct fa_pool_report *report, struct fa_error *error,
                 struct fa_pool **ret_pool);

/*
 * The same of a pool that has lost the memory of some chunks, of which @has says false: they are
 * absent then, and what had pages in them is dropped.
 */
typedef bool fa_pool_chunk_present_fn(void *userdata, uint32_t chunk);
int fa_pool_open_partial(int fd, fa_pool_chunk_present_fn *has, void *userdata,
                         struct fa_pool_report *report, struct fa_error *error,
                         struct fa_pool **ret_pool);

/* Forgets everything of this process; the state stays. No step is left. NULL is fine. */
struct fa_pool *fa_pool_free(struct fa_pool *pool);

static inline void fa_pool_freep(struct fa_pool **pool)
{
	*pool = fa_pool_free(*pool);
}

/* The context of the daemon that died is gone: nothing writes to its pages any more. */
void fa_pool_quarantine_end(struct fa_pool *pool);

/* ---- Chunks. Chunk i is [i, i + 1) * chunk_bytes of the pool. */

enum fa_chunk_state {
	FA_CHUNK_ABSENT,
	FA_CHUNK_FREE,
	FA_CHUNK_CACHE, /* belongs to a cache, and may be empty */
};

uint64_t fa_pool_chunk_bytes(const struct fa_pool *pool);
uint32_t fa_pool_max_chunks(const struct fa_pool *pool);
enum fa_chunk_state fa_pool_chunk_state(const struct fa_pool *pool, uint32_t chunk);

/* There is memory at @chunk now; @zeroed: it holds nothing of anybody. -EINVAL, -EEXIST. */
int fa_pool_chunk_add(struct fa_pool *pool, uint32_t chunk, bool zeroed, struct fa_error *error);

/*
 * Gives up one chunk of which no page is used, evicting its idle pages: the highest.
 * Its memory is the caller's to release. -EBUSY if there is none.
 */
int fa_pool_chunk_remove(struct fa_pool *pool, struct fa_error *error, uint32_t *ret_chunk);

/* The same, of one that nothing, not even an idle page, was in since @since_ns. */
bool fa_pool_chunk_remove_empty(struct fa_pool *pool, uint64_t since_ns, uint32_t *ret_chunk);

/*
 * Called when a step cannot have its pages from what there is without evicting any: adds a
 * chunk by fa_pool_chunk_add() and returns true, or false if there can be no more. NULL.
 */
typedef bool fa_pool_grow_fn(void *userdata);
void fa_pool_set_grow(struct fa_pool *pool, fa_pool_grow_fn *grow, void *userdata);

/*
 * What helps if the pool is exhausted with @chunks or more: said then, behind what is needed and
 * what there is. @remedy stays the caller's and has to live; NULL: nothing.
 */
void fa_pool_set_exhausted_hint(struct fa_pool *pool, uint32_t chunks, const char *remedy);

/* ---- Tenants. */

struct fa_pool_tenant_info {
	uint32_t tag, uid;
	const char *cgroup; /* good until the tenant is gone */
	uint64_t bytes;     /* of the pages it pays for */
	/* Of those, published alone: evicted before it, or another of the uid, is told -EDQUOT. */
	uint64_t idle_bytes;
	uint32_t n_sequences, n_caches;
	/* For a quota: what all tenants of the uid have together, and a step that is planned needs
	 * for the others of them; of uid 0, which has cgroups for others, what this one has. */
	struct fa_pool_user_held {
		uint64_t bytes;
		uint32_t n_sequences, n_caches;
	} user;
};

/* What a tenant wants to have besides. */
struct fa_pool_more {
	uint64_t bytes;
	uint32_t sequences, caches;
};

/*
 * Says whether a tenant that has what @held says may have @more: 0, or -EDQUOT with a
 * sentence. NULL: everybody may.
 */
typedef int fa_pool_quota_fn(void *userdata, const struct fa_pool_tenant_info *held,
                             const struct fa_pool_more *more, struct fa_error *error);
void fa_pool_set_quota(struct fa_pool *pool, fa_pool_quota_fn *quota, void *userdata);

/*
 * Finds or makes the tenant (uid, cgroup) and holds it; it exists until it was put as often
 * and owns and pays for nothing. Its tag is not 0 and is never another tenant's while
 * anything of it can be left in a page. -ENAMETOOLONG, -ENOSPC too many tenants, -EDQUOT too
 * many of the uid.
 */
int fa_pool_tenant_get(struct fa_pool *pool, uint32_t uid, const char *cgroup,
                       struct fa_error *error, uint32_t *ret_tag);
void fa_pool_tenant_put(struct fa_pool *pool, uint32_t tag);

/* One after another, from *cursor = 0 on; false: that was all. */
bool fa_pool_tenant_each(const struct fa_pool *pool, uint32_t *cursor,
                         struct fa_pool_tenant_info *ret_info);

/* ---- The whole. */

/* What time it is, by CLOCK_BOOTTIME, for all that does not say so itself. */
void fa_pool_set_time(struct fa_pool *pool, uint64_t now_ns);

/*
 * A session is over for good: its sequences and caches without a name are freed (what is in
 * flight keeps its pages until it ends); those with one have no owner any more.
 */
void fa_pool_release_owner(struct fa_pool *pool, uint64_t owner);

/* Whether anything belongs to the session @owner: after a restart, who may come back. */
bool fa_pool_owner_each(const struct fa_pool *pool, uint32_t *cursor, uint64_t *ret_owner);

/*
 * Frees named sequences, and then named caches without sequences, that were not used for
 * their time to live and have nothing in flight. Times are CLOCK_BOOTTIME's. Returns how many.
 */
size_t fa_pool_expire(struct fa_pool *pool, uint64_t now_ns);

struct fa_pool_info {
	uint64_t chunk_bytes;
	uint32_t chunks, chunks_free; /* that have memory; that belong to no cache */
	uint32_t chunks_held_back;    /* of removed caches, but something may write to them */
	uint32_t caches, sequences, tenants, steps;
	uint64_t generation;
	uint64_t used_bytes, idle_bytes; /* pages of sequences and steps; published alone */
	uint64_t quarantined_pages;
	uint64_t evicted_pages; /* since it was opened */
};

void fa_pool_get_info(const struct fa_pool *pool, struct fa_pool_info *ret_info);
