/*
 * Recovery trusts no byte of the state: it checks all before use, drops what is inconsistent, and
 * derives the rest. Whatever the tables hold, it ends and touches no other memory.
 */
#include "daemon/pool/recover.h"

#include "common/cleanup.h"
#include "daemon/pool/cache_private.h"
#include "daemon/pool/chunk.h"
#include "daemon/pool/id.h"
#include "daemon/pool/page.h"
#include "daemon/pool/prefix_index.h"
#include "daemon/pool/report.h"
#include "daemon/pool/state_store.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void check_tenants(struct fa_recovery *recovery)
{
	struct fa_pool *pool = recovery->pool;

	for (uint32_t i = 0; i < pool->header->high_tenants; i++) {
		struct fa_state_tenant *record = &pool->tenant_records[i];

		if (record->state == FA_STATE_FREE)
			continue;
		if (record->state != FA_STATE_USED || record->tag % FA_STATE_TENANTS != i ||
		    record->tag < FA_STATE_TENANTS ||
		    !memchr(record->cgroup, '\0', sizeof(record->cgroup))) {
			fa_pool_report_add(recovery->report,
			                   "tenant %" PRIu32 " is damaged: dropped", i);
			record->state = FA_STATE_FREE;
			continue;
		}
		pool->n_tenants++;
	}
}

static const char *cache_fault(const struct fa_pool *pool, uint32_t index)
{
	const struct fa_state_cache *record = &pool->cache_records[index];

	if (record->state != FA_STATE_USED)
		return "its state is unknown";
	if (!record->generation)
		return "it has no generation";
	if (!fa_id_possible(&record->origin, record->generation))
		return "its id is damaged";
	if (!fa_tenant_known(pool, record->tenant))
		return "its tenant is unknown";
	if (!memchr(record->name, '\0', sizeof(record->name)))
		return "its name has no end";
	if (record->v_in_k > 1)
		return "its geometry is damaged";
	if (record->token_scales > 1)
		return "its scales are damaged";
	if (record->store && !record->token_scales &&
	    ((uint64_t)record->layers * record->kv_heads > FA_STATE_SCALES ||
	     !fa_pool_cache_scales_good(pool->scale_records[index].k,
	                                (size_t)record->layers * record->kv_heads) ||
	     !fa_pool_cache_scales_good(pool->scale_records[index].v,
	                                (size_t)record->layers * record->kv_heads)))
		return "its scales are damaged";
	for (uint32_t i = 0; record->name[0] && i < index; i++)
		if (pool->caches[i] && !strcmp(pool->cache_records[i].name, record->name) &&
		    fa_tenant_record(pool, pool->cache_records[i].tenant)->uid ==
		            fa_tenant_record(pool, record->tenant)->uid)
			return "another has its name";
	return NULL;
}

static int check_caches(struct fa_recovery *recovery)
{
	struct fa_pool *pool = recovery->pool;

	for (uint32_t i = 0; i < pool->header->max_caches; i++) {
		struct fa_state_cache *record = &pool->cache_records[i];
		struct fa_error reason;
		const char *fault;
		int r;

		if (record->state == FA_STATE_FREE)
			continue;
		if (record->state == FA_STATE_REMOVED) {
			record->state = FA_STATE_FREE;
			continue;
		}
		fault = cache_fault(pool, i);
		if (!fault) {
			r = fa_pool_cache_load(pool, i, &reason);
			if (r == -ENOMEM)
				return fa_fail(recovery->error, r, "there is no memory for caches");
			if (r == 0)
				continue;
			fault = reason.text;
		}
		fa_pool_report_add(recovery->report, "cache %" PRIu32 " is dropped: %s", i, fault);
		record->state = FA_STATE_FREE;
	}
	return 0;
}

/* Unpublishes the pages: the chunk's next owner must not have them. */
static void empty_chunk(struct fa_pool *pool, uint32_t chunk)
{
	struct fa_state_page *records = &pool->page_records[chunk << pool->page_shift];

	for (uint32_t i = 0; i < 1u << pool->page_shift; i++)
		if (records[i].state)
			records[i].state = 0;
}

static void check_chunks(struct fa_recovery *recovery)
{
	struct fa_pool *pool = recovery->pool;

	for (uint32_t i = 0; i < pool->header->max_chunks; i++) {
		struct fa_chunk *chunk = &pool->chunks[i];
		uint32_t *owner = &pool->chunk_records[i].owner;
		struct fa_pool_cache *cache;

		fa_list_init(&chunk->link);
		if (*owner == FA_STATE_CHUNK_ABSENT)
			continue;
		if (recovery->present && !recovery->present(recovery->userdata, i)) {
			fa_pool_report_add(recovery->report,
			                   "chunk %" PRIu32
			                   " has no memory any more: what was in it "
			                   "is dropped",
			                   i);
			empty_chunk(pool, i);
			fa_state_store(owner, FA_STATE_CHUNK_ABSENT);
			continue;
		}
		pool->n_chunks++;
		if (*owner == FA_STATE_CHUNK_QUARANTINED)
			continue;
		if (*owner != FA_STATE_CHUNK_FREE &&
		    *owner - FA_STATE_CHUNK_CACHE >= pool->header->max_caches) {
			fa_pool_report_add(recovery->report,
			                   "chunk %" PRIu32 " belongs to nobody known: freed", i);
			*owner = FA_STATE_CHUNK_FREE;
		}
		if (*owner == FA_STATE_CHUNK_FREE) {
			pool->n_free_chunks++;
			continue;
		}
		cache = pool->caches[*owner - FA_STATE_CHUNK_CACHE];
		if (!cache) {
			/* Its cache was removed, or dropped and reported. */
			empty_chunk(pool, i);
			fa_state_store(owner, FA_STATE_CHUNK_QUARANTINED);
		}
	}
}

static bool is_run(const struct fa_pool *pool, const struct fa_pool_cache *cache, uint32_t first)
{
	const uint32_t n = 1u << cache->run_shift;

	if (pool->header->max_chunks - first < n)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (pool->chunk_records[first + i].owner != FA_STATE_CHUNK_CACHE + cache->index)
			return false;
	return true;
}

/* Finds the caches' runs. If a run lacks chunks the daemon died while it was assigned or released,
 * or a chunk lost its memory: nobody used it. */
static void check_runs(struct fa_recovery *recovery)
{
	struct fa_pool *pool = recovery->pool;

	for (uint32_t i = 0; i < pool->header->max_chunks; i++) {
		struct fa_pool_cache *cache = fa_chunk_cache(pool, i);
		uint32_t first = cache ? fa_chunk_first(cache, i) : i;

		if (!cache)
			continue;
		if (first == i && is_run(pool, cache, i)) {
			pool->chunks[i].fresh_begin = cache->layout.pages_per_chunk;
			cache->n_chunks += 1u << cache->run_shift;
		} else if (!pool->chunks[first].fresh_begin) {
			empty_chunk(pool, i);
			fa_state_store(&pool->chunk_records[i].owner, FA_STATE_CHUNK_QUARANTINED);
		}
	}
}

static void check_published(struct fa_recovery *recovery, struct fa_pool_cache *cache,
                            uint32_t index)
{
	struct fa_pool *pool = recovery->pool;
	struct fa_state_page *record = &pool->page_records[index];
	const char *fault = NULL;

	if (!record->state)
		return;
	if (record->state != FA_STATE_PAGE_PUBLISHED)
		fault = "its state is unknown";
	else if (!fa_tenant_known(pool, record->tenant))
		fault = "its publisher is unknown";
	else if (!fa_prefix_index_add(pool, index))
		fault = "another has its content";
	if (fault) {
		fa_pool_report_add(recovery->report,
		                   "page %" PRIu32 " of cache %" PRIu32 " is published no more: %s",
		                   fa_page_slot(pool, cache, index), cache->index, fault);
		record->state = 0;
		return;
	}
	/* A full page, so no step was appending, even if a sequence ends in it. */
	pool->pages[index].flags &= ~FA_PAGE_SUSPECT;
	pool->pages[index].flags |= FA_PAGE_PUBLISHED;
	pool->pages[index].tenant = record->tenant;
}

static int check_pages(struct fa_recovery *recovery)
{
	struct fa_pool *pool = recovery->pool;
	uint64_t n_pages = 0;

	for (uint32_t i = 0; i < pool->header->max_chunks; i++)
		n_pages += pool->chunks[i].fresh_begin;
	if (fa_prefix_index_prepare(pool, n_pages) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < pool->header->max_chunks; i++) {
		uint32_t owner = pool->chunk_records[i].owner, first = i << pool->page_shift;
		struct fa_pool_cache *cache;

		if (owner < FA_STATE_CHUNK_CACHE || owner == FA_STATE_CHUNK_QUARANTINED)
			continue;
		cache = pool->caches[owner - FA_STATE_CHUNK_CACHE];
		for (uint32_t j = 0; j < pool->chunks[i].fresh_begin; j++) {
			check_published(recovery, cache, first + j);
			fa_page_load(pool, cache, first + j);
		}
	}
	return 0;
}

static void settle_tenants(struct fa_pool *pool)
{
	for (uint32_t i = 0; i < pool->header->high_tenants; i++)
		if (pool->tenant_records[i].state == FA_STATE_USED)
			fa_tenant_try_free(pool, pool->tenant_records[i].tag);
}

static int init(struct fa_recovery *recovery)
{
	const struct fa_state_header *header = recovery->pool->header;
	void *numbers;

	recovery->cells_used = calloc((size_t)header->high_cells + 1, 1);
	recovery->numbers_bytes = ((uint64_t)header->max_chunks << header->page_shift) *
	                          sizeof(*recovery->numbers);
	numbers = mmap(NULL, recovery->numbers_bytes, PROT_READ | PROT_WRITE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (numbers == MAP_FAILED || !recovery->cells_used)
		return -ENOMEM;
	recovery->numbers = numbers;
	return 0;
}

static void deinit(struct fa_recovery *recovery)
{
	free(recovery->cells_used);
	free(recovery->slots);
	free(recovery->cells);
	if (recovery->numbers)
		munmap(recovery->numbers, recovery->numbers_bytes);
}

int fa_pool_recover(struct fa_pool *pool, fa_pool_chunk_present_fn *present, void *userdata,
                    struct fa_pool_report *report, struct fa_error *error)
{
	_fa_cleanup_(deinit) struct fa_recovery recovery = { .pool = pool,
		                                             .present = present,
		                                             .userdata = userdata,
		                                             .report = report,
		                                             .error = error };
	int r;

	/* The dead daemon's device may write to pages until fa_pool_quarantine_end(). */
	pool->quarantine = true;
	r = init(&recovery);
	if (r < 0)
		return fa_fail(error, r, "there is no memory to check the pool");
	check_tenants(&recovery);
	r = check_caches(&recovery);
	if (r < 0)
		return r;
	check_chunks(&recovery);
	check_runs(&recovery);
	r = fa_recover_sequences(&recovery);
	if (r >= 0)
		r = check_pages(&recovery);
	if (r < 0)
		return fa_fail(error, r, "there is no memory to check the pool");
	settle_tenants(pool);
	return 0;
}

void fa_pool_quarantine_end(struct fa_pool *pool)
{
	if (!pool->quarantine)
		return;
	pool->quarantine = false;
	for (uint32_t i = 0; i < pool->header->max_chunks; i++) {
		struct fa_pool_cache *cache = fa_chunk_cache(pool, i);
		uint32_t first = i << pool->page_shift;

		if (pool->chunk_records[i].owner == FA_STATE_CHUNK_QUARANTINED) {
			fa_state_store(&pool->chunk_records[i].owner, FA_STATE_CHUNK_FREE);
			pool->n_free_chunks++;
		}
		for (uint32_t j = 0; cache && j < pool->chunks[i].fresh_begin; j++) {
			struct fa_page *page = &pool->pages[first + j];

			if (page->flags & FA_PAGE_QUARANTINED)
				fa_chunk_put_free_page(pool, cache, first + j);
			page->flags &= ~(FA_PAGE_SUSPECT | FA_PAGE_QUARANTINED);
		}
		pool->chunks[i].n_quarantined = 0;
	}
	pool->n_quarantined = 0;
	for (uint32_t i = 0; i < pool->header->max_caches; i++)
		if (pool->caches[i])
			fa_pool_cache_try_free(pool, pool->caches[i]);
}
