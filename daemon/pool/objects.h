/*
 * Structs of an open pool, which recovery derives from the state. `record`: an object's part in the
 * state.
 *
 * A page has a *slot* (cache_layout.h), for lists and tables; an *index*, chunk << page_shift |
 * place in the chunk, for arrays; and in a sequence a *number*, token / page_tokens. Links are an
 * index plus one; 0 ends a list.
 */
#pragma once

#include "common/list.h"
#include "daemon/pool/cache_layout.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/state.h"

#define FA_PAGE_PUBLISHED 1u
#define FA_PAGE_TAINTED 2u     /* contents of an unknown tenant: clear before use */
#define FA_PAGE_SUSPECT 4u     /* the dead daemon's device may still write to it */
#define FA_PAGE_QUARANTINED 8u /* suspect, unused, in no free list */

struct fa_page {
	uint32_t tenant;     /* tag of the payer or, if free, the last payer; 0: never used */
	uint32_t next, prev; /* free: next; idle: by last use */
	uint32_t tenant_next, tenant_prev; /* idle, with the same payer */
	uint32_t hash_next;                /* published */
	uint32_t flags;
};

struct fa_chunk {
	struct fa_list link;  /* open_chunks, with free pages */
	uint32_t free_head;   /* without fresh pages */
	uint32_t fresh_begin; /* from here on never used */
	uint32_t n_used, n_idle, n_free, n_quarantined;
	bool zeroed;         /* fresh pages are zero */
	uint64_t idle_clock; /* of the newest idle page */
	uint64_t empty_ns;   /* since when without used and idle pages */
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
	bool removed; /* freed once nothing is in flight or quarantined */

	/* for the step being planned */
	uint64_t need_pages;
	uint32_t n_items;
	struct fa_pool_cache *next_planned;
};

struct fa_tenant_account {
	uint32_t n_held;
	uint32_t n_sequences, n_caches;
	uint64_t bytes, idle_bytes;
	uint32_t oldest, newest; /* idle pages */
	uint64_t n_cells;

	/* for the step being planned */
	uint64_t need_bytes, need_cells;
	struct fa_tenant_account *next_planned;
};

struct fa_deferred_page {
	uint64_t serial; /* of the last step */
	uint32_t slot;
};

struct fa_pool_sequence {
	struct fa_list owner_link, cache_link;
	struct fa_state_sequence *record;
	struct fa_pool_cache *cache;
	uint32_t index, name_next;
	uint64_t length, planned, first; /* tokens */
	bool removed;                    /* freed once nothing is in flight */

	uint32_t *pages; /* slots from token first to the planned length */
	uint32_t n_pages, pages_size;
	uint32_t *cells; /* of the same pages */
	uint32_t n_cells, cells_size;

	/* A step writes to a copy of the page in which the durable length ends: pages has the copy,
	 * the state the original. */
	bool copied, copy_aborted;
	uint32_t copied_number, copied_slot; /* of the original */

	/* Steps up to the serial may read the page's truncated tokens. */
	bool truncated;
	uint32_t truncated_slot;
	uint64_t truncated_serial;

	struct fa_list in_flight; /* parts, oldest first */
	uint32_t n_in_flight, n_appending;
	uint32_t n_cancelled; /* after an aborted part */
	uint64_t appender;    /* session */
	bool keep_pending;    /* by the last part */
	uint64_t plan_serial; /* of the last plan: finds duplicates */
	struct fa_deferred_page *deferred;
	uint32_t n_deferred, deferred_size;
};

struct fa_pool_step_part {
	struct fa_list link; /* the sequence's in_flight */
	struct fa_pool_sequence *sequence;
	uint64_t serial;
	uint64_t after;  /* planned length */
	uint64_t length; /* to commit; less than after by fa_pool_step_keep() */
	uint32_t n_tokens;
	bool appends; /* else reads what was planned before */
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

	uint32_t page_shift, slot_shift; /* log2 of the number in a chunk */
	uint32_t generation_base;
	uint32_t *refs; /* by page index; sparse; separate, as forks touch only these */
	struct fa_page *pages;
	struct fa_chunk *chunks;
	struct fa_pool_cache *caches[FA_STATE_CACHES];
	struct fa_tenant_account *tenants;           /* [max_tenants] */
	struct fa_list owned[FA_POOL_OWNER_BUCKETS]; /* by session */
	struct fa_pool_sequence **sequences;         /* [max_sequences] */
	uint32_t free_sequence;                      /* links: free_sequences */
	uint32_t *free_sequences;
	uint32_t free_cell; /* links: in the cells */
	uint64_t n_free_cells;

	uint32_t n_chunks, n_free_chunks;
	uint32_t n_sequences, n_tenants, n_steps;
	uint64_t n_quarantined, n_evicted;
	bool quarantine;
	uint64_t now_ns;
	uint64_t clock;  /* of idle pages */
	uint64_t serial; /* of steps */

	uint32_t *buckets; /* of published pages */
	uint64_t n_buckets, n_published;
	uint32_t *names; /* buckets of named sequences */
	uint32_t n_names, n_name_buckets;

	fa_pool_quota_fn *quota;
	void *quota_userdata;
	fa_pool_grow_fn *grow;
	void *grow_userdata;
	const char *exhausted_hint;
	uint32_t exhausted_hint_chunks;
};

/* A record's generation after @generation (0: none). Each pool starts elsewhere, so that ids of a
 * dropped pool are invalid in the next. */
static inline uint32_t fa_pool_next_generation(const struct fa_pool *pool, uint32_t generation)
{
	return generation ? generation + 1 : pool->generation_base;
}
