/*
 * Structs of an open pool, derived from the state by recovery. `record`: an object's part in the
 * state.
 *
 * A page has a *slot* (cache_layout.h), for lists and tables; an *index*, first chunk of the run <<
 * page_shift | place in the run, for arrays; and in a sequence a *number*, token / page_tokens.
 * Links are an index plus one; 0 ends a list.
 */
#pragma once

#include "common/list.h"
#include "daemon/pool/cache_layout.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/state.h"

#define FA_PAGE_PUBLISHED 1u
#define FA_PAGE_TAINTED 2u     /* its contents are of an unknown tenant: clear before use */
#define FA_PAGE_SUSPECT 4u     /* a dead daemon's device may still write to it */
#define FA_PAGE_QUARANTINED 8u /* suspect and unused; it is in no free list */

struct fa_page {
	uint32_t tenant; /* tag of its payer, if free the last one; 0: never used */
	/* next in the free list; both in the list of idle pages, by last use */
	uint32_t next, prev;
	uint32_t tenant_next, tenant_prev; /* in the payer's list of idle pages */
	uint32_t hash_next;                /* in the table of published pages */
	uint32_t flags;
};

/* A run of chunks is kept in its first one. */
struct fa_chunk {
	struct fa_list link;  /* in open_chunks, if pages are free */
	uint32_t free_head;   /* free pages that were used before */
	uint32_t fresh_begin; /* pages from here on were never used */
	uint32_t n_used, n_idle, n_free, n_quarantined;
	bool zeroed;
	uint64_t idle_clock; /* clock of the newest idle page */
	uint64_t empty_ns;   /* when the last used or idle page left */
};

struct fa_pool_cache {
	struct fa_state_cache *record;
	uint64_t id;
	uint32_t index;
	struct fa_cache_geometry geometry;
	struct fa_cache_layout layout;
	uint32_t run_shift;
	uint32_t checkpoint_pages; /* 0: no states */
	struct fa_list open_chunks;
	struct fa_list sequences;
	uint32_t oldest, newest; /* of the list of idle pages */
	uint32_t n_chunks, n_sequences;
	uint64_t n_used, n_idle, n_free;
	bool removed; /* freed once nothing is in flight or quarantined */

	/* Needs of the step that is being planned. */
	uint64_t need_pages;
	uint32_t n_items;
	struct fa_pool_cache *next_planned;
};

struct fa_tenant_account {
	uint32_t n_held;
	uint32_t n_sequences, n_caches;
	uint64_t bytes, idle_bytes;
	uint32_t oldest, newest; /* of the list of idle pages */
	uint64_t n_cells;

	/* Needs of the step that is being planned. */
	uint64_t need_bytes, need_cells;
	struct fa_tenant_account *next_planned;
};

struct fa_deferred_page {
	uint64_t serial; /* of the last step */
	uint32_t slot;
};

struct fa_pool_checkpoint {
	struct fa_pool_checkpoint *older;
	uint64_t length;
	uint32_t n_cells;
	uint32_t *slots;  /* [checkpoint_pages of the cache] */
	uint32_t cells[]; /* [n_cells]; then the slots */
};

struct fa_pool_sequence {
	struct fa_list owner_link, cache_link;
	struct fa_state_sequence *record;
	struct fa_pool_cache *cache;
	uint64_t id;
	uint32_t index, name_next;
	uint64_t length, planned, first;
	bool removed; /* freed once nothing is in flight */

	uint32_t *pages; /* slots from token first to the planned length */
	uint32_t n_pages, pages_size;
	uint32_t *cells; /* of the same pages */
	uint32_t n_cells, cells_size;

	struct fa_pool_checkpoint *checkpoints; /* newest first */
	uint32_t n_checkpoints;
	uint32_t n_planned_checkpoints;

	/* A step writes to a copy of the page in which the durable length ends: the original is in
	 * the state. */
	bool copied, copy_aborted;
	uint32_t copied_number, copied_slot; /* its number, and the original's slot */

	/* Steps in flight up to this serial may read truncated tokens of the last page. */
	bool truncated;
	uint32_t truncated_slot;
	uint64_t truncated_serial;

	struct fa_list in_flight; /* parts of steps in flight, oldest first */
	uint32_t n_in_flight, n_appending;
	uint32_t n_cancelled; /* parts behind an aborted one */
	uint64_t appender;    /* session that appends */
	bool keep_pending;    /* the last part keeps some of its tokens */
	uint64_t plan_serial; /* of the last plan, to find duplicates */
	struct fa_deferred_page *deferred;
	uint32_t n_deferred, deferred_size;
};

struct fa_pool_step_part {
	struct fa_list link;
	struct fa_pool_sequence *sequence;
	uint64_t serial;
	uint64_t after;  /* planned length */
	uint64_t length; /* length to commit, of fa_pool_step_keep() if it was called */
	uint32_t n_tokens;
	bool appends; /* otherwise it reads what was planned before */
	bool copies;
	bool cancelled;
	uint32_t *from;                        /* result of fa_pool_step_keep() */
	struct fa_pool_checkpoint *checkpoint; /* NULL: the step writes none */
};

#define FA_POOL_OWNER_BUCKETS 1024u

/* Recently found sequences by the low bits of their ids. May be out of date. */
#define FA_POOL_RECENT_SETS 4096u
#define FA_POOL_RECENT_WAYS 4u

struct fa_pool {
	unsigned char *map;
	struct fa_state_header *header;
	struct fa_state_chunk *chunk_records;
	struct fa_state_cache *cache_records;
	struct fa_state_tenant *tenant_records;
	struct fa_state_sequence *sequence_records;
	struct fa_state_cell *cells;
	struct fa_state_page *page_records;
	struct fa_state_scales *scale_records;

	uint32_t page_shift, slot_shift; /* log2 of the pages, slots in a chunk */
	uint32_t generation_base;
	uint32_t *refs; /* by page index; sparse; apart, as forks touch only these */
	struct fa_page *pages;
	struct fa_chunk *chunks;
	struct fa_pool_cache *caches[FA_STATE_CACHES];
	struct fa_tenant_account *tenants;           /* [max_tenants] */
	struct fa_list owned[FA_POOL_OWNER_BUCKETS]; /* by session */
	struct fa_pool_sequence **sequences;         /* [max_sequences] */
	/* The first free one; free_sequences has the links. */
	uint32_t free_sequence;
	uint32_t *free_sequences;
	uint32_t free_cell; /* the first; cells have the links */
	uint64_t n_free_cells;

	uint32_t n_chunks, n_free_chunks;
	uint32_t n_sequences, n_tenants, n_steps;
	uint64_t n_quarantined, n_evicted;
	uint64_t n_shared; /* pages with several references */
	bool quarantine;
	uint64_t now_ns;
	uint64_t clock;  /* of idle pages */
	uint64_t serial; /* of the last step */

	uint32_t *buckets; /* of published pages */
	uint64_t n_buckets, n_published;
	uint32_t *names; /* of named sequences */
	uint32_t n_names, n_name_buckets;

	fa_pool_quota_fn *quota;
	void *quota_userdata;
	fa_pool_grow_fn *grow;
	void *grow_userdata;
	const char *exhausted_hint;
	uint32_t exhausted_hint_chunks;
	uint32_t (*recent)[FA_POOL_RECENT_WAYS]; /* [FA_POOL_RECENT_SETS] */
};

/* Generations of each pool start elsewhere, so ids of a dropped pool are invalid in the next. 0:
 * none. */
static inline uint32_t fa_pool_next_generation(const struct fa_pool *pool, uint32_t generation)
{
	return generation ? generation + 1 : pool->generation_base;
}
