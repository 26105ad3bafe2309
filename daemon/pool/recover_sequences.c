#include "common/cleanup.h"
#include "daemon/pool/checkpoint.h"
#include "daemon/pool/id.h"
#include "daemon/pool/name_index.h"
#include "daemon/pool/page.h"
#include "daemon/pool/page_list.h"
#include "daemon/pool/recover.h"
#include "daemon/pool/report.h"
#include "daemon/pool/sequence.h"
#include "daemon/pool/sequence_private.h"
#include "daemon/pool/state_store.h"
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

static void unread_list(struct fa_recovery *recovery, const struct fa_pool_cache *cache,
                        uint32_t n_pages, uint32_t n_cells)
{
	const struct fa_pool *pool = recovery->pool;
	uint32_t page;

	for (uint32_t i = 0; i < n_pages; i++)
		if (find_page(pool, cache, recovery->slots[i], &page) && !pool->refs[page])
			recovery->numbers[page] = 0;
	while (n_cells)
		recovery->cells_used[recovery->cells[--n_cells]] = 0;
}

/*
 * Reads a list of pages into recovery->slots and ->cells. No other list may have its cells; its
 * pages are the cache's, with the same number in all lists.
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
	if (*ret_fault)
		unread_list(recovery, cache, *ret_pages, *ret_cells);
	return 0;
}

/* No page of tokens has such a number. */
static uint32_t checkpoint_number(uint32_t place)
{
	return UINT32_MAX - place;
}

/* False: its cells are broken. */
static bool read_word(struct fa_recovery *recovery, uint32_t word, uint32_t *next,
                      struct fa_pool_checkpoint *checkpoint, uint32_t *ret_word)
{
	const struct fa_pool *pool = recovery->pool;
	const uint32_t i = word / FA_STATE_CELL_PAGES;

	if (word % FA_STATE_CELL_PAGES == 0) {
		if (!*next || *next > pool->header->high_cells || recovery->cells_used[*next - 1])
			return false;
		recovery->cells_used[*next - 1] = 1;
		checkpoint->cells[i] = *next - 1;
		checkpoint->n_cells = i + 1;
		*next = pool->cells[*next - 1].next;
	}
	*ret_word = pool->cells[checkpoint->cells[i]].slots[word % FA_STATE_CELL_PAGES];
	return true;
}

/* The length was read. Returns how many slots are good, and marks these. */
static uint32_t read_slots(struct fa_recovery *recovery, const struct fa_pool_cache *cache,
                           uint32_t *next, struct fa_pool_checkpoint *checkpoint)
{
	uint32_t i, page;

	for (i = 0; i < cache->checkpoint_pages; i++) {
		if (!read_word(recovery, i + 1, next, checkpoint, &checkpoint->slots[i]) ||
		    !find_page(recovery->pool, cache, checkpoint->slots[i], &page) ||
		    (recovery->numbers[page] && recovery->numbers[page] != checkpoint_number(i)))
			break;
		recovery->numbers[page] = checkpoint_number(i);
	}
	return i;
}

static void unread_checkpoint(struct fa_recovery *recovery, const struct fa_pool_cache *cache,
                              struct fa_pool_checkpoint *checkpoint, uint32_t n_slots)
{
	while (n_slots) {
		const uint32_t page = fa_page_index(recovery->pool, cache,
		                                    checkpoint->slots[--n_slots]);

		if (!recovery->pool->refs[page])
			recovery->numbers[page] = 0;
	}
	for (uint32_t i = 0; i < checkpoint->n_cells; i++)
		recovery->cells_used[checkpoint->cells[i]] = 0;
	fa_checkpoint_free(checkpoint);
}

static void unread_checkpoints(struct fa_recovery *recovery, const struct fa_pool_cache *cache,
                               struct fa_pool_checkpoint *list)
{
	while (list) {
		struct fa_pool_checkpoint *older = list->older;

		unread_checkpoint(recovery, cache, list, cache->checkpoint_pages);
		list = older;
	}
}

/* Reads the next older checkpoint, of less than @below tokens. *ret_good is false if it is broken;
 * *ret_checkpoint is NULL at the list's end. */
static int read_checkpoint(struct fa_recovery *recovery, const struct fa_pool_cache *cache,
                           const struct fa_state_commit *body, uint64_t below, uint32_t *next,
                           struct fa_pool_checkpoint **ret_checkpoint, bool *ret_good)
{
	struct fa_pool_checkpoint *checkpoint = fa_checkpoint_new(cache, 0);
	uint32_t length = 0, n_slots = 0, first = *next;

	*ret_good = true;
	*ret_checkpoint = NULL;
	if (!checkpoint)
		return -ENOMEM;
	checkpoint->n_cells = 0;
	/* Only the newest may be between two multiples of checkpoint_tokens. */
	if (!read_word(recovery, 0, next, checkpoint, &length) || !length || length >= below ||
	    (below <= body->length && !fa_checkpoint_stays(cache, length))) {
		*ret_good = false;
	} else if (length < body->first) {
		/* The daemon died while it dropped this one and older ones. */
		*next = first;
	} else {
		n_slots = read_slots(recovery, cache, next, checkpoint);
		*ret_good = n_slots == cache->checkpoint_pages;
		checkpoint->length = length;
		if (*ret_good)
			*ret_checkpoint = fa_steal_ptr(checkpoint);
	}
	if (checkpoint)
		unread_checkpoint(recovery, cache, checkpoint, n_slots);
	return 0;
}

static int read_checkpoints(struct fa_recovery *recovery, uint32_t index,
                            struct fa_pool_checkpoint **ret_list, const char **ret_fault)
{
	const struct fa_state_sequence *record = &recovery->pool->sequence_records[index];
	const struct fa_state_commit *body = &record->commits[record->current];
	const struct fa_pool_cache *cache = recovery->pool->caches[record->cache];
	struct fa_pool_checkpoint *list = NULL, **link = &list;
	uint32_t next = cache->checkpoint_pages ? body->checkpoint : 0;
	uint64_t below = body->length + 1;
	bool good = true;
	int r = 0;

	while (next && good && r == 0) {
		r = read_checkpoint(recovery, cache, body, below, &next, link, &good);
		if (!*link)
			break;
		below = (*link)->length;
		link = &(*link)->older;
	}
	if (r < 0 || !good) {
		unread_checkpoints(recovery, cache, list);
		*ret_fault = "its list of checkpoints is broken";
		return r;
	}
	*ret_list = list;
	return 0;
}

static void load_checkpoints(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                             struct fa_pool_checkpoint *list)
{
	struct fa_pool_cache *cache = sequence->cache;

	sequence->checkpoints = list;
	for (; list; list = list->older) {
		for (uint32_t i = 0; i < cache->checkpoint_pages; i++) {
			const uint32_t page = fa_page_index(pool, cache, list->slots[i]);

			if (!pool->refs[page]++)
				pool->pages[page].tenant = sequence->record->tenant;
		}
		sequence->n_checkpoints++;
		fa_tenant_account(pool, sequence->record->tenant)->n_cells += list->n_cells;
	}
	/* Older ones may have been dropped half. */
	fa_checkpoint_seal(pool, sequence);
}

static int load_sequence(struct fa_recovery *recovery, uint32_t index, uint32_t n_pages,
                         uint32_t n_cells, struct fa_pool_checkpoint *checkpoints)
{
	struct fa_pool *pool = recovery->pool;
	struct fa_state_sequence *record = &pool->sequence_records[index];
	const struct fa_state_commit *body = &record->commits[record->current];
	struct fa_pool_cache *cache = pool->caches[record->cache];
	uint32_t first = (uint32_t)(body->first / cache->layout.page_tokens);
	struct fa_pool_sequence *sequence = fa_pool_sequence_alloc(pool, cache, index);
	int r;

	if (!sequence) {
		fa_checkpoint_free_list(checkpoints);
		return -ENOMEM;
	}
	load_checkpoints(pool, sequence, checkpoints);
	/* The daemon died between storing mode and name: only the owner has rights yet. */
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

		/* The first sequence's tenant pays. */
		if (!pool->refs[page]++)
			pool->pages[page].tenant = record->tenant;
		/* A step may have been appending to it. */
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
		struct fa_pool_checkpoint *checkpoints = NULL;
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
			r = read_checkpoints(recovery, i, &checkpoints, &fault);
			if (r < 0)
				return r;
			if (fault)
				unread_list(recovery, pool->caches[record->cache], n_pages,
				            n_cells);
		}
		if (!fault) {
			r = load_sequence(recovery, i, n_pages, n_cells, checkpoints);
			if (r < 0)
				return r;
			continue;
		}
		/* A dropped cache was reported already. */
		if (record->cache >= pool->header->max_caches || pool->caches[record->cache] ||
		    record->state != FA_STATE_USED)
			fa_pool_report_add(recovery->report, "sequence %" PRIu32 " is dropped: %s",
			                   i, fault);
		record->state = FA_STATE_FREE;
	}
	/* Downwards, so that low indices are used first. */
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
