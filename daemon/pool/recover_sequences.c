#include "daemon/pool/id.h"
#include "daemon/pool/name_index.h"
#include "daemon/pool/page.h"
#include "daemon/pool/page_list.h"
#include "daemon/pool/recover.h"
#include "daemon/pool/report.h"
#include "daemon/pool/sequence.h"
#include "daemon/pool/sequence_private.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int grow(uint32_t **array, uint32_t *size, uint32_t n)
{
	uint32_t *larger;

	if (n < *size)
		return 0;
	larger = reallocarray(*array, n * 2 + 16, sizeof(**array));
	if (!larger)
		return -ENOMEM;
	*array = larger;
	*size = n * 2 + 16;
	return 0;
}

static bool find_page(const struct fa_pool *pool, const struct fa_pool_cache *cache, uint32_t slot,
                      uint32_t *ret_index)
{
	uint32_t chunk = slot >> pool->slot_shift;
	uint32_t place = slot & ((1u << (pool->slot_shift + cache->run_shift)) - 1);

	if (chunk >= pool->header->max_chunks ||
	    pool->chunk_records[chunk].owner != FA_STATE_CHUNK_CACHE + cache->index ||
	    place % cache->layout.page_slots ||
	    place / cache->layout.page_slots >= cache->layout.pages_per_chunk)
		return false;
	*ret_index = fa_page_index(pool, cache, slot);
	return true;
}

static const char *sequence_fault(const struct fa_pool *pool, uint32_t index)
{
	const struct fa_state_sequence *record = &pool->sequence_records[index];
	const struct fa_state_commit *body;
	const struct fa_pool_cache *cache;

	if (record->state == FA_STATE_SUSPECT)
		return "a kernel of its last step went wrong";
	if (record->state != FA_STATE_USED)
		return "its state is unknown";
	if (!record->generation)
		return "it has no generation";
	if (!fa_id_possible(&record->origin, record->generation))
		return "its id is damaged";
	if (!fa_tenant_known(pool, record->tenant))
		return "its tenant is unknown";
	if (record->current > 1)
		return "neither of its commits counts";
	if (record->cache >= pool->header->max_caches || !pool->caches[record->cache])
		return "its cache is unknown";
	if (!memchr(record->name, '\0', sizeof(record->name)))
		return "its name has no end";
	if (record->name[0] &&
	    fa_name_index_find(pool, fa_tenant_record(pool, record->tenant)->uid, record->name))
		return "another has its name";
	cache = pool->caches[record->cache];
	body = &record->commits[record->current];
	if (body->length > FA_POOL_SEQUENCE_TOKENS_MAX || body->first > body->length ||
	    body->first % cache->layout.page_tokens)
		return "its length is damaged";
	return NULL;
}

/*
 * Reads the list of pages into recovery->slots and recovery->cells. No other list may have its
 * cells; its pages must be the cache's, and have the same number in all lists.
 */
static int read_list(struct fa_recovery *recovery, uint32_t index, uint32_t *ret_pages,
                     uint32_t *ret_cells, const char **ret_fault)
{
	struct fa_pool *pool = recovery->pool;
	const struct fa_state_sequence *record = &pool->sequence_records[index];
	const struct fa_state_commit *body = &record->commits[record->current];
	const struct fa_pool_cache *cache = pool->caches[record->cache];
	uint32_t first = (uint32_t)(body->first / cache->layout.page_tokens);
	uint32_t end = fa_pages_of(cache, body->length), next = body->head;

	*ret_fault = NULL;
	*ret_pages = *ret_cells = 0;
	for (uint32_t number = first; number < end; number++) {
		uint32_t page;

		if (!*ret_cells || number % FA_STATE_CELL_PAGES == 0) {
			if (!next || next > pool->header->high_cells ||
			    recovery->cells_used[next - 1]) {
				*ret_fault = "its list of pages is broken";
				break;
			}
			if (grow(&recovery->cells, &recovery->cells_size, *ret_cells) < 0)
				return -ENOMEM;
			recovery->cells_used[next - 1] = 1;
			recovery->cells[(*ret_cells)++] = next - 1;
			next = pool->cells[next - 1].next;
		}
		if (grow(&recovery->slots, &recovery->slots_size, *ret_pages) < 0)
			return -ENOMEM;
		recovery->slots[*ret_pages] = pool->cells[recovery->cells[*ret_cells - 1]]
		                                      .slots[number % FA_STATE_CELL_PAGES];
		if (!find_page(pool, cache, recovery->slots[(*ret_pages)++], &page)) {
			*ret_fault = "a page of it is not its cache's";
			break;
		}
		if (recovery->numbers[page] && recovery->numbers[page] != number + 1) {
			*ret_fault = "a page of it is at another place too";
			break;
		}
		recovery->numbers[page] = number + 1;
	}
	if (!*ret_fault)
		return 0;
	for (uint32_t i = 0; i < *ret_pages; i++) {
		uint32_t page;

		if (find_page(pool, cache, recovery->slots[i], &page) && !pool->refs[page])
			recovery->numbers[page] = 0;
	}
	while (*ret_cells)
		recovery->cells_used[recovery->cells[--*ret_cells]] = 0;
	return 0;
}

static int load_sequence(struct fa_recovery *recovery, uint32_t index, uint32_t n_pages,
                         uint32_t n_cells)
{
	struct fa_pool *pool = recovery->pool;
	struct fa_state_sequence *record = &pool->sequence_records[index];
	const struct fa_state_commit *body = &record->commits[record->current];
	struct fa_pool_cache *cache = pool->caches[record->cache];
	uint32_t first = (uint32_t)(body->first / cache->layout.page_tokens);
	struct fa_pool_sequence *sequence = fa_pool_sequence_alloc(pool, cache, index);
	int r;

	if (!sequence)
		return -ENOMEM;
	/* The daemon died between storing the mode and the name. Nobody but the owner has rights
	 * yet. */
	if (!record->name[0])
		record->mode = 0;
	fa_pool_sequence_load_id(pool, sequence);
	pool->sequences[index] = sequence;
	sequence->length = sequence->planned = body->length;
	sequence->first = body->first;
	r = fa_page_list_prepare(sequence, first + n_pages, 0);
	if (r < 0)
		return r;
	sequence->n_pages = n_pages;
	sequence->n_cells = n_cells;
	if (n_pages) {
		memcpy(sequence->pages, recovery->slots, n_pages * sizeof(*recovery->slots));
		memcpy(sequence->cells, recovery->cells, n_cells * sizeof(*recovery->cells));
	}
	for (uint32_t i = 0; i < n_pages; i++) {
		uint32_t page = fa_page_index(pool, cache, recovery->slots[i]);

		/* The tenant of the first sequence pays for the page. */
		if (!pool->refs[page]++)
			pool->pages[page].tenant = record->tenant;
		/* The page is not full, so a step may have been appending to it. */
		if ((first + i + 1) * (uint64_t)cache->layout.page_tokens > body->length)
			pool->pages[page].flags |= FA_PAGE_SUSPECT;
	}
	if (record->name[0]) {
		r = fa_name_index_prepare(pool);
		if (r < 0)
			return r;
		fa_name_index_add(pool, sequence);
	}
	fa_pool_sequence_link(pool, sequence);
	pool->n_sequences++;
	cache->n_sequences++;
	fa_tenant_account(pool, record->tenant)->n_sequences++;
	fa_tenant_account(pool, record->tenant)->n_cells += n_cells;
	return 0;
}

int fa_recover_sequences(struct fa_recovery *recovery)
{
	struct fa_pool *pool = recovery->pool;

	for (uint32_t i = 0; i < pool->header->high_sequences; i++) {
		struct fa_state_sequence *record = &pool->sequence_records[i];
		const char *fault;
		uint32_t n_pages, n_cells;
		int r;

		if (record->state == FA_STATE_FREE)
			continue;
		fault = sequence_fault(pool, i);
		if (!fault) {
			r = read_list(recovery, i, &n_pages, &n_cells, &fault);
			if (r < 0)
				return r;
		}
		if (!fault) {
			r = load_sequence(recovery, i, n_pages, n_cells);
			if (r < 0)
				return r;
			continue;
		}
		/* A sequence whose cache was dropped is not reported. */
		if (record->cache >= pool->header->max_caches || pool->caches[record->cache] ||
		    record->state != FA_STATE_USED)
			fa_pool_report_add(recovery->report, "sequence %" PRIu32 " is dropped: %s",
			                   i, fault);
		record->state = FA_STATE_FREE;
	}
	/* Go downwards, so that low indices are used first. */
	for (uint32_t i = pool->header->high_sequences; i-- > 0;)
		if (!pool->sequences[i] && pool->sequence_records[i].generation < UINT32_MAX) {
			pool->free_sequences[i] = pool->free_sequence;
			pool->free_sequence = i + 1;
		}
	for (uint32_t i = pool->header->high_cells; i-- > 0;)
		if (!recovery->cells_used[i])
			fa_page_list_free_cell(pool, i);
	return 0;
}
