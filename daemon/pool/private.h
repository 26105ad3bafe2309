/*
 * What the files of the pool share. Nobody else includes it but their tests and benchmark.
 *
 * A page has three names: its *slot* (pool/cache_layout.h), which is in lists and tables; its
 * *index*, chunk << page_shift | place in the chunk, by which the arrays of pages are
 * addressed; and, within a sequence, its *number*, token / page_tokens. In links an index
 * is stored plus one, so that 0 is none.
 */
#pragma once

#include "common/cleanup.h"
#include "common/list.h"
#include "daemon/pool/cache.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/prefix.h"
#include "daemon/pool/sequence.h"
#include "daemon/pool/state.h"
#include "daemon/pool/step.h"

#define FA_PAGE_PUBLISHED 1u
#define FA_PAGE_TAINTED 2u     /* may hold what belongs to nobody knows whom */
#define FA_PAGE_SUSPECT 4u     /* the dead daemon's device may still write to it */
#define FA_PAGE_QUARANTINED 8u /* suspect and free, and in no free list */

struct fa_page {
	uint32_t tenant; /* tag of who pays for it or, if it is free, paid last; 0: never used */
	uint32_t next, prev;               /* free: next; idle: both, in the order of use */
	uint32_t tenant_next, tenant_prev; /* idle: of the tenant's, in all caches */
	uint32_t hash_next;                /* published: next of its bucket */
	uint32_t flags;
};

struct fa_chunk {
	struct fa_list link;  /* its cache's open_chunks, if it has a free page */
	uint32_t free_head;   /* first of its free pages */
	uint32_t fresh_begin; /* pages from here on were not used since the cache has it */
	uint32_t n_used, n_idle, n_free, n_quarantined;
	bool zeroed; /* fresh pages hold nothing */
	uint64_t idle_clock;
	uint64_t empty_ns; /* since when nothing is in it, if so */
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
	bool removed;

	/* while a step is planned */
	uint64_t need_pages;
	uint32_t n_items;
	struct fa_pool_cache *next_planned;
};

struct fa_tenant_account {
	uint32_t n_held; /* by sessions */
	uint32_t n_sequences, n_caches;
	uint64_t bytes, idle_bytes;
	uint32_t oldest, newest; /* idle pages */
	uint64_t n_cells;        /* of the lists of its sequences */
	uint64_t need_bytes;     /* while a step is planned */
	uint64_t need_cells;
	struct fa_tenant_account *next_planned;
};

/* A page that left its sequence while steps that were planned with it are in flight. */
struct fa_deferred_page {
	uint64_t serial; /* of the newest of them */
	uint32_t slot;
};

struct fa_pool_sequence {
	struct fa_list owner_link; /* one of the pool's owned */
	struct fa_list cache_link; /* its cache's sequences */
	struct fa_state_sequence *record;
	struct fa_pool_cache *cache;
	uint32_t index;
	uint64_t length, planned, first; /* tokens; length and first as in the state */
	/* Pages first / page_tokens up to the planned length. */
	uint32_t *pages;
	uint32_t n_pages, pages_size;
	/* Their cells, from that of the first page on. */
	uint32_t *cells;
	uint32_t n_cells, cells_size;
	/* The page with the durable length's end was copied for a step; here is the old one. */
	bool copied, copy_aborted;
	uint32_t copied_number, copied_slot;

	/* Of this page tokens were taken back that steps up to that one may be reading. */
	bool truncated;
	uint32_t truncated_slot;
	uint64_t truncated_serial;

	struct fa_list in_flight; /* struct fa_pool_step_part, oldest first */
	uint32_t n_in_flight, n_appending;
	uint32_t n_cancelled; /* of those: behind one that was aborted */
	uint64_t appender;    /* session */
	bool keep_pending;    /* the last of them ends elsewhere than planned */
	bool removed;         /* freed, but for what is in flight */
	struct fa_deferred_page *deferred;
	uint32_t n_deferred, deferred_size;
	uint64_t plan_serial; /* serial of the step that was planned last, to see twins */
	uint32_t name_next;
};

/* A sequence's part in a step. */
struct fa_pool_step_part {
	struct fa_list link; /* the sequence's in_flight */
	struct fa_pool_sequence *sequence;
	uint64_t serial;
	uint64_t after;  /* planned */
	uint64_t length; /* to be committed: after, or what fa_pool_step_keep() left of it */
	uint32_t n_tokens;
	bool appends; /* or reads what is planned */
	bool copies;
	bool cancelled;
	uint32_t *from; /* fa_pool_step_keep()'s */
};

struct fa_pool_step_private {
	struct fa_pool_step step;
	uint64_t serial;
	bool ended;
	struct fa_pool_step_part *parts; /* one for each entry */
	uint32_t *arrays;                /* all that the groups point to */
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

	uint32_t page_shift, slot_shift; /* log2 of the pages, and the slots, of a chunk */
	uint32_t generation_base;
	/* Sparse, as large as page_records. The references, of sequences and of steps that will
	 * give the page to one, lie apart: forks touch nothing else. */
	uint32_t *refs;
	struct fa_page *pages;
	struct fa_chunk *chunks;
	struct fa_pool_cache *caches[FA_STATE_CACHES];
	struct fa_tenant_account *tenants; /* [max_tenants] */
	/* Sequences of sessions that may end, by their numbers. */
	struct fa_list owned[FA_POOL_OWNER_BUCKETS];
	struct fa_pool_sequence **sequences; /* [max_sequences] */
	uint32_t free_sequence;              /* chained in free_sequences */
	uint32_t *free_sequences;
	uint32_t free_cell; /* chained in the cells themselves */
	uint64_t n_free_cells;

	uint32_t n_chunks, n_free_chunks;
	uint32_t n_sequences, n_tenants, n_steps;
	uint64_t n_quarantined, n_evicted;
	bool quarantine;
	uint64_t now_ns; /* as last heard */
	uint64_t clock;  /* counts up with every use of idle pages */
	uint64_t serial; /* of steps */

	uint32_t *buckets; /* of published pages, by hash */
	uint64_t n_buckets, n_published;
	uint32_t *names; /* buckets of named sequences */
	uint32_t n_names, n_name_buckets;

	fa_pool_quota_fn *quota;
	void *quota_userdata;
	fa_pool_grow_fn *grow;
	void *grow_userdata;
	const char *remedy;
	uint32_t remedy_chunks;
};

static inline void fa_state_fault_point(void)
{
	if (__builtin_expect(fa_state_fault_hook != NULL, 0))
		fa_state_fault_hook();
}

/*
 * A store that takes effect. Everything written before it in the program is in the state
 * before it, everything after it later: to a process that was killed, program order is all
 * that counts, so it is the compiler that has to be held.
 */
static inline void fa_state_store(uint32_t *at, uint32_t value)
{
	fa_state_fault_point();
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	fa_state_fault_point();
}

/* ---- pool/page.c */

static inline uint32_t fa_page_index(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                                     uint32_t slot)
{
	return (slot >> pool->slot_shift) << pool->page_shift |
	       fa_cache_page_place(&cache->layout, slot & ((1u << pool->slot_shift) - 1));
}

static inline uint32_t fa_page_slot(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                                    uint32_t index)
{
	return ((index >> pool->page_shift) << pool->slot_shift) +
	       (index & ((1u << pool->page_shift) - 1)) * cache->layout.page_slots;
}

/*
 * Sees to it that every cache of the list (by touched) can have its need_pages from its free
 * and idle pages. -ENOMEM, with nothing changed.
 */
int fa_reclaim_pages(struct fa_pool *pool, struct fa_pool_cache *caches, struct fa_error *error);

/* A page, with one reference; there is one, as fa_reclaim_pages() saw to. */
uint32_t fa_page_take(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t tenant,
                      bool *ret_clear);
void fa_page_ref(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
void fa_page_unref(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
void fa_page_charge(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index,
                    uint32_t tenant);
/* Evicts the idle page. */
void fa_page_evict(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
/* Takes up a page of a state that was opened: used, idle, or free and quarantined. */
void fa_page_load(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
uint64_t fa_reclaim_cache(struct fa_pool *pool, struct fa_pool_cache *cache);
/* Evicts idle pages that the tenant pays for, if there are any, until they were @bytes. */
void fa_pages_evict_of(struct fa_pool *pool, uint32_t tenant, uint64_t bytes);

/* ---- pool/chunk.c */

/* Whose it is, or NULL. */
struct fa_pool_cache *fa_chunk_cache(const struct fa_pool *pool, uint32_t chunk);
/* What a free page of the chunk is added to or taken from. */
void fa_chunk_put_free(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index);
uint32_t fa_chunk_take_free(struct fa_pool *pool, struct fa_pool_cache *cache);
void fa_chunk_assign(struct fa_pool *pool, uint32_t chunk, struct fa_pool_cache *cache);
/* Of chunks without used pages; idle ones are evicted. */
void fa_reclaim_chunk(struct fa_pool *pool, uint32_t chunk);
bool fa_chunk_is_reclaimable(const struct fa_pool *pool, uint32_t chunk);
/* The quiet chunk, of any cache whose need_pages is 0, that is missed least; UINT32_MAX. */
uint32_t fa_chunk_find_quiet(const struct fa_pool *pool);
uint32_t fa_chunk_find_free(const struct fa_pool *pool);

/* ---- pool/tenant.c */

static inline struct fa_tenant_account *fa_tenant_account(const struct fa_pool *pool, uint32_t tag)
{
	return &pool->tenants[tag % FA_STATE_TENANTS];
}

/* Whether the tag is that of a tenant that exists. */
bool fa_tenant_known(const struct fa_pool *pool, uint32_t tag);
/* -EDQUOT; if it is not, fa_reclaim_quota() evicts what is to go for that. */
int fa_tenant_check_quota(const struct fa_pool *pool, uint32_t tag, const struct fa_pool_more *more,
                          struct fa_error *error);
void fa_reclaim_quota(struct fa_pool *pool, uint32_t tag, uint64_t more_bytes);
/* Cells of the lists of all that the tenant's user has, and of what a step that is planned needs
 * for its other tenants; of uid 0, of the tenant's. */
uint64_t fa_tenant_cells(const struct fa_pool *pool, uint32_t tag);
/* Frees the tenant if it has nothing left. */
void fa_tenant_try_free(struct fa_pool *pool, uint32_t tag);
/* Whether an object of @tenant with @mode admits @actor to @right. */
bool fa_access_allows(const struct fa_pool *pool, uint32_t tenant, uint32_t mode,
                      const struct fa_actor *actor, enum fa_right right);
int fa_access_check_name(const char *name, struct fa_error *error);
int fa_access_check_mode(uint32_t mode, struct fa_error *error);

/* ---- pool/cache.c */

int fa_pool_cache_get(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                      enum fa_right right, struct fa_error *error,
                      struct fa_pool_cache **ret_cache);
uint64_t fa_pool_cache_id(const struct fa_pool_cache *cache);
/* Makes what is known of a cache from its record. */
int fa_pool_cache_load(struct fa_pool *pool, uint32_t index, struct fa_error *error);
/* Whether all @n numbers can be scales of heads. */
bool fa_pool_cache_scales_good(const float *scales, size_t n);
/* Frees a leaving cache of which nothing is left. */
void fa_pool_cache_try_free(struct fa_pool *pool, struct fa_pool_cache *cache);
/* Removes it, whoever may. */
void fa_pool_cache_destroy(struct fa_pool *pool, struct fa_pool_cache *cache);

/* ---- pool/sequence.c, pool/sequence_list.c, pool/sequence_name.c */

/* Finds it, for a right; -ENOENT also if it is another session's own. */
int fa_pool_sequence_get(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                         enum fa_right right, struct fa_error *error,
                         struct fa_pool_sequence **ret_sequence);
uint64_t fa_pool_sequence_id(const struct fa_pool_sequence *sequence);
/* Frees it, whoever may. */
void fa_pool_sequence_destroy(struct fa_pool *pool, struct fa_pool_sequence *sequence);
/* An object for a record, in no list yet. */
struct fa_pool_sequence *fa_pool_sequence_alloc(struct fa_pool *pool, struct fa_pool_cache *cache,
                                                uint32_t index);
/* It is in the lists of its cache and of its session, if that is not gone. */
void fa_pool_sequence_link(struct fa_pool *pool, struct fa_pool_sequence *sequence);
void fa_pool_sequence_dealloc(struct fa_pool_sequence *sequence);
/* Called when a step's part has left in_flight: lets go what waited for that. */
void fa_pool_sequence_reap(struct fa_pool *pool, struct fa_pool_sequence *sequence);

static inline struct fa_state_commit *
fa_pool_sequence_durable(const struct fa_pool_sequence *sequence)
{
	return &sequence->record->commits[sequence->record->current];
}

/* It does not expire yet: somebody has used it. */
static inline void fa_pool_sequence_touch(const struct fa_pool *pool,
                                          struct fa_pool_sequence *sequence)
{
	sequence->record->used_ns = pool->now_ns;
}

/* Pages up to @tokens, counted from the beginning. */
static inline uint32_t fa_pages_of(const struct fa_pool_cache *cache, uint64_t tokens)
{
	return (uint32_t)((tokens + cache->layout.page_tokens - 1) >> cache->layout.token_shift);
}

static inline uint32_t fa_pool_sequence_first_page(const struct fa_pool_sequence *sequence)
{
	return (uint32_t)(sequence->first >> sequence->cache->layout.token_shift);
}

/* A page that will be looked at soon. */
static inline void fa_page_prefetch(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                                    uint32_t slot)
{
	__builtin_prefetch(&pool->refs[fa_page_index(pool, cache, slot)], 1);
}

/* The durable page of a number. */
static inline uint32_t fa_pool_sequence_slot(const struct fa_pool_sequence *sequence,
                                             uint32_t number)
{
	return sequence->copied && number == sequence->copied_number
	               ? sequence->copied_slot
	               : sequence->pages[number - fa_pool_sequence_first_page(sequence)];
}

/* Cells that @sequence lacks to have pages up to number @end. */
uint32_t fa_page_list_missing(const struct fa_pool_sequence *sequence, uint32_t end);
/* Room for pages up to number @end, and @n_deferred more deferred pages. -ENOMEM. */
int fa_page_list_prepare(struct fa_pool_sequence *sequence, uint32_t end, uint32_t n_deferred);
int fa_page_list_check_cells(const struct fa_pool *pool, uint64_t n, struct fa_error *error);
/* Whether one tenant may have @n more. -EDQUOT. */
int fa_tenant_check_cells(const struct fa_pool *pool, uint32_t tag, uint64_t n,
                          struct fa_error *error);
/* Adds the pages with the next numbers, as they are planned; prepared, and there are cells. */
void fa_page_list_append(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                         const uint32_t *slots, uint32_t n);
/* Changes the list in the state where it counts already. */
void fa_page_list_replace(struct fa_pool *pool, struct fa_pool_sequence *sequence, uint32_t number,
                          uint32_t slot);
/* Makes @length, @first and @step durable, at once. */
void fa_page_list_commit(struct fa_pool *pool, struct fa_pool_sequence *sequence, uint64_t length,
                         uint64_t first, uint64_t step);
/*
 * Lets go of the pages behind the planned length, which others may be reading if they were
 * @durable; of those before @first.
 */
void fa_page_list_trim(struct fa_pool *pool, struct fa_pool_sequence *sequence, bool durable);
void fa_page_list_drop_before(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                              uint64_t first);
/* Gives the page back, now or when all steps in flight have ended; prepared. */
void fa_page_list_release(struct fa_pool *pool, struct fa_pool_sequence *sequence, uint32_t slot);
void fa_page_list_free_cell(struct fa_pool *pool, uint32_t cell);

struct fa_pool_sequence *fa_name_index_find(const struct fa_pool *pool, const char *name);
/* Room for one more. -ENOMEM. */
int fa_name_index_prepare(struct fa_pool *pool);
void fa_name_index_add(struct fa_pool *pool, struct fa_pool_sequence *sequence);
void fa_name_index_remove(struct fa_pool *pool, struct fa_pool_sequence *sequence);

/* ---- pool/prefix.c, pool/prefix_hash.c */

/* The hash is in the page's record; true: it is in the index now, false: it was known. */
bool fa_prefix_index_add(struct fa_pool *pool, uint32_t index);
void fa_prefix_index_remove(struct fa_pool *pool, uint32_t index);
int fa_prefix_index_prepare(struct fa_pool *pool, uint64_t n_more);

/* The loader of the library; -ENOSYS. Once, before all others. */
int fa_pool_hash_init(void);
void fa_pool_hash_new_secret(uint8_t secret[32]);
/* Fast, for tables and checks. */
uint64_t fa_pool_hash_short(const uint8_t secret[32], const void *data, size_t bytes);
/* The hash before the first page. */
void fa_pool_hash_prefix_begin(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                               uint32_t tenant, const struct fa_prefix_key *key,
                               uint8_t hash[FA_STATE_HASH_BYTES]);
/* From the hash of a page to that of the next. */
void fa_pool_hash_prefix_next(const uint32_t *tokens, uint32_t n_tokens,
                              uint8_t hash[FA_STATE_HASH_BYTES]);

/* Of the next to use a record, after the one with @generation; 0: nobody has used it. Each
 * pool begins elsewhere, so that ids of a pool that is gone are not those of others. */
static inline uint32_t fa_pool_next_generation(const struct fa_pool *pool, uint32_t generation)
{
	return generation ? generation + 1 : pool->generation_base;
}

/* ---- pool/pool.c, pool/check.c */

/* Where the tables lie; sets the offsets and bytes of @header from its sizes. -EINVAL. */
int fa_state_lay_out(struct fa_state_header *header, struct fa_error *error);
void fa_pool_report_add(struct fa_pool_report *report, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
int fa_pool_recover(struct fa_pool *pool, fa_pool_chunk_present_fn *has, void *userdata,
                    struct fa_pool_report *report, struct fa_error *error);
