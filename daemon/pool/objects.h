/*
 * The structs of an open pool. All of it is derived from the state by recovery and private to
 * the process; `record` points to the part of an object that is in the state.
 *
 * A page is named in three ways: by its *slot* (cache_layout.h) in lists and tables; by its
 * *index*, chunk << page_shift | place in the chunk, in arrays; and, within a sequence, by its
 * *number*, token / page_tokens. Links store an index plus one; 0 ends a list.
 */
#pragma once

#include "common/list.h"
#include "daemon/pool/cache_layout.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/state.h"

#define FA_PAGE_PUBLISHED 1u
#define FA_PAGE_TAINTED 2u     /* contents are of an unknown tenant: clear before use */
#define FA_PAGE_SUSPECT 4u     /* the device of the dead daemon may still write to it */
#define FA_PAGE_QUARANTINED 8u /* suspect and unused: in no free list */

/* A used page is in a sequence or step; an idle one is only published; others are free. */
struct fa_page {
	uint32_t tenant;     /* tag of who pays; free: of who paid last; 0: never used */
	uint32_t next, prev; /* free: next; idle: the cache's, by last use */
	uint32_t tenant_next, tenant_prev; /* idle: the tenant's, in all caches */
	uint32_t hash_next;                /* published: next of the bucket */
	uint32_t flags;
};

struct fa_chunk {
	struct fa_list link;  /* the cache's open_chunks, if a page is free */
	uint32_t free_head;   /* free pages that were used before */
	uint32_t fresh_begin; /* pages from here on are free and were never used by the cache */
	uint32_t n_used, n_idle, n_free, n_quarantined;
	bool zeroed;         /* fresh pages are zero */
	uint64_t idle_clock; /* when a page became idle last */
	uint64_t empty_ns;   /* if no page is used or idle: since when */
};

struct fa_pool_cache {
	struct fa_state_cache *record;
	uint32_t index;
	struct fa_cache_geometry geometry;
	struct fa_cache_layout layout;
	struct fa_list open_chunks;
	struct fa_list sequences;
	uint32_t oldest, newest; /* idle pages */
	uint32_t n_chunks, n_sequences;
	uint64_t n_used, n_idle, n_free;
	bool removed; /* freed once nothing of it is in flight or quarantined */

	/* Of the step that is being planned. */
	uint64_t need_pages;
	uint32_t n_items;
	struct fa_pool_cache *next_planned;
};

/* What a tenant has and pays for. */
struct fa_tenant_account {
	uint32_t n_held; /* references of sessions */
	uint32_t n_sequences, n_caches;
	uint64_t bytes, idle_bytes;
	uint32_t oldest, newest; /* idle pages */
	uint64_t n_cells;        /* of its sequences' page lists */

	/* Of the step that is being planned. */
	uint64_t need_bytes, need_cells;
	struct fa_tenant_account *next_planned;
};

/* A page that left its sequence while steps in flight may use it. */
struct fa_deferred_page {
	uint64_t serial; /* of the newest such step */
	uint32_t slot;
};

struct fa_pool_sequence {
	struct fa_list owner_link; /* the pool's owned */
	struct fa_list cache_link; /* the cache's sequences */
	struct fa_state_sequence *record;
	struct fa_pool_cache *cache;
	uint32_t index, name_next;
	uint64_t length, planned, first; /* tokens; length and first as in the state */
	bool removed;                    /* freed once nothing of it is in flight */

	/* Slots of the pages from the one with token first to the planned length. */
	uint32_t *pages;
	uint32_t n_pages, pages_size;
	/* Cells of the state that list them. */
	uint32_t *cells;
	uint32_t n_cells, cells_size;

	/* A step writes to a copy of the page in which the durable length ends: pages has the
	 * copy, the state the original. */
	bool copied, copy_aborted;
	uint32_t copied_number, copied_slot; /* of the original */

	/* Steps up to this serial may read tokens of the page that were truncated. */
	bool truncated;
	uint32_t truncated_slot;
	uint64_t truncated_serial;

	struct fa_list in_flight; /* struct fa_pool_step_part, oldest first */
	uint32_t n_in_flight, n_appending;
	uint32_t n_cancelled; /* parts planned after one that was aborted */
	uint64_t appender;    /* session */
	bool keep_pending;    /* fa_pool_step_keep() changed the end of the last part */
	uint64_t plan_serial; /* of the step planned last, to detect duplicates */
	struct fa_deferred_page *deferred;
	uint32_t n_deferred, deferred_size;
};

/* A sequence's part in a step. */
struct fa_pool_step_part {
	struct fa_list link; /* the sequence's in_flight */
	struct fa_pool_sequence *sequence;
	uint64_t serial;
	uint64_t after;  /* planned length */
	uint64_t length; /* to commit: after, or less by fa_pool_step_keep() */
	uint32_t n_tokens;
	bool appends; /* appends, or reads what was planned before */
	bool copies;
	bool cancelled;
	uint32_t *from; /* fa_pool_step_keep()'s result */
};

#define FA_POOL_OWNER_BUCKETS 1024u

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

	uint32_t page_shift, slot_shift; /* log2 of pages and of slots in a chunk */
	uint32_t generation_base;
	/* By page index, sparse. References of sequences and of steps are apart from the pages:
	 * a fork touches nothing else. */
	uint32_t *refs;
	struct fa_page *pages;
	struct fa_chunk *chunks;
	struct fa_pool_cache *caches[FA_STATE_CACHES];
	struct fa_tenant_account *tenants;           /* [max_tenants] */
	struct fa_list owned[FA_POOL_OWNER_BUCKETS]; /* sequences, by session */
	struct fa_pool_sequence **sequences;         /* [max_sequences] */
	uint32_t free_sequence;                      /* linked by free_sequences */
	uint32_t *free_sequences;
	uint32_t free_cell; /* linked by the cells themselves */
	uint64_t n_free_cells;

	uint32_t n_chunks, n_free_chunks;
	uint32_t n_sequences, n_tenants, n_steps;
	uint64_t n_quarantined, n_evicted;
	bool quarantine;
	uint64_t now_ns; /* fa_pool_set_time()'s */
	uint64_t clock;  /* counts pages that became idle */
	uint64_t serial; /* counts steps */

	uint32_t *buckets; /* published pages, by hash */
	uint64_t n_buckets, n_published;
	uint32_t *names; /* named sequences, by hash */
	uint32_t n_names, n_name_buckets;

	fa_pool_quota_fn *quota;
	void *quota_userdata;
	fa_pool_grow_fn *grow;
	void *grow_userdata;
	const char *exhausted_hint;
	uint32_t exhausted_hint_chunks;
};

/* The generation for the next use of a record; @generation is the last, 0: never used. It
 * starts elsewhere in each pool, so that ids of a dropped pool are not valid in the next. */
static inline uint32_t fa_pool_next_generation(const struct fa_pool *pool, uint32_t generation)
{
	return generation ? generation + 1 : pool->generation_base;
}
