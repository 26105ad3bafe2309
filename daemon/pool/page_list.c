/*
 * Planning writes cells behind the durable end, where nothing reads: so a commit is one store. Just
 * before it a copied page, with the same durable tokens, replaces its original.
 */
#include "daemon/pool/page_list.h"

#include "daemon/pool/page.h"
#include "daemon/pool/state_store.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint32_t cells_begin(const struct fa_pool_sequence *sequence)
{
	return fa_pool_sequence_first_page(sequence) / FA_STATE_CELL_PAGES * FA_STATE_CELL_PAGES;
}

static uint32_t cells_for(const struct fa_pool_sequence *sequence, uint32_t end)
{
	uint32_t begin = cells_begin(sequence);

	return end > fa_pool_sequence_first_page(sequence)
	               ? (end - begin + FA_STATE_CELL_PAGES - 1) / FA_STATE_CELL_PAGES
	               : 0;
}

uint32_t fa_page_list_missing(const struct fa_pool_sequence *sequence, uint32_t end)
{
	uint32_t n = cells_for(sequence, end);

	return n > sequence->n_cells ? n - sequence->n_cells : 0;
}

static int grow(void *array, uint32_t *size, uint64_t n, size_t element_bytes)
{
	void **pointer = array, *larger;
	uint64_t wanted = 2 * (uint64_t)*size;

	if (n <= *size)
		return 0;
	if (wanted < n)
		wanted = n;
	if (wanted < 8)
		wanted = 8;
	larger = reallocarray(*pointer, wanted, element_bytes);
	if (!larger)
		return -ENOMEM;
	*pointer = larger;
	*size = (uint32_t)wanted;
	return 0;
}

int fa_page_list_prepare(struct fa_pool_sequence *sequence, uint32_t end, uint32_t n_deferred)
{
	uint32_t first = fa_pool_sequence_first_page(sequence);
	int r;

	r = grow(&sequence->pages, &sequence->pages_size, end > first ? end - first : 0,
	         sizeof(*sequence->pages));
	if (r < 0)
		return r;
	r = grow(&sequence->cells, &sequence->cells_size, cells_for(sequence, end),
	         sizeof(*sequence->cells));
	if (r < 0)
		return r;
	/* Room for one more, because committing a copied page defers its original. */
	return grow(&sequence->deferred, &sequence->deferred_size,
	            (uint64_t)sequence->n_deferred + n_deferred + 1, sizeof(*sequence->deferred));
}

int fa_page_list_check_cells(const struct fa_pool *pool, uint64_t n, struct fa_error *error)
{
	uint64_t have = pool->n_free_cells + pool->header->max_cells - pool->header->high_cells;

	if (n <= have)
		return 0;
	return fa_fail(error, -ENOMEM,
	               "the pool's lists are full: %" PRIu64 " cells are needed, %" PRIu64
	               " are left",
	               n, have);
}

static uint32_t take_cell(struct fa_pool *pool)
{
	uint32_t cell = pool->free_cell;

	if (cell) {
		pool->free_cell = pool->cells[cell - 1].next;
		pool->n_free_cells--;
		return cell - 1;
	}
	cell = pool->header->high_cells;
	fa_state_store(&pool->header->high_cells, cell + 1);
	return cell;
}

void fa_page_list_free_cell(struct fa_pool *pool, uint32_t cell)
{
	pool->cells[cell].next = pool->free_cell;
	pool->free_cell = cell + 1;
	pool->n_free_cells++;
}

uint32_t fa_page_list_take_cell(struct fa_pool *pool, const struct fa_pool_sequence *sequence)
{
	fa_tenant_account(pool, sequence->record->tenant)->n_cells++;
	return take_cell(pool);
}

void fa_page_list_give_cell(struct fa_pool *pool, const struct fa_pool_sequence *sequence,
                            uint32_t cell)
{
	fa_page_list_free_cell(pool, cell);
	fa_tenant_account(pool, sequence->record->tenant)->n_cells--;
}

static struct fa_state_cell *cell_of(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                                     uint32_t place)
{
	if (place / FA_STATE_CELL_PAGES == sequence->n_cells) {
		uint32_t cell = fa_page_list_take_cell(pool, sequence);

		if (sequence->n_cells)
			fa_state_store(&pool->cells[sequence->cells[sequence->n_cells - 1]].next,
			               cell + 1);
		sequence->cells[sequence->n_cells++] = cell;
	}
	return &pool->cells[sequence->cells[place / FA_STATE_CELL_PAGES]];
}

void fa_page_list_append(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                         const uint32_t *slots, uint32_t n)
{
	uint32_t place = fa_pool_sequence_first_page(sequence) + sequence->n_pages -
	                 cells_begin(sequence);

	if (!n)
		return;
	memcpy(sequence->pages + sequence->n_pages, slots, n * sizeof(*slots));
	sequence->n_pages += n;
	while (n) {
		uint32_t begin = place % FA_STATE_CELL_PAGES, room = FA_STATE_CELL_PAGES - begin;
		struct fa_state_cell *cell = cell_of(pool, sequence, place);

		if (room > n)
			room = n;
		fa_state_fault_point();
		memcpy(cell->slots + begin, slots, room * sizeof(*slots));
		slots += room;
		place += room;
		n -= room;
	}
}

void fa_page_list_replace(struct fa_pool *pool, struct fa_pool_sequence *sequence, uint32_t number,
                          uint32_t slot)
{
	uint32_t place = number - cells_begin(sequence);

	fa_state_store(&cell_of(pool, sequence, place)->slots[place % FA_STATE_CELL_PAGES], slot);
}

void fa_page_list_commit(struct fa_pool *pool, struct fa_pool_sequence *sequence, uint64_t length,
                         uint64_t first, uint64_t step)
{
	struct fa_state_sequence *record = sequence->record;
	uint32_t skipped = (uint32_t)(first / sequence->cache->layout.page_tokens) -
	                   cells_begin(sequence);
	uint32_t cell = skipped / FA_STATE_CELL_PAGES;

	record->commits[!record->current] = (struct fa_state_commit){
		.length = length,
		.first = first,
		.step = step,
		.head = cell < sequence->n_cells ? sequence->cells[cell] + 1 : 0,
		.checkpoint = sequence->checkpoints ? sequence->checkpoints->cells[0] + 1 : 0,
	};
	fa_state_store(&record->current, !record->current);
	sequence->length = length;
}

void fa_page_list_release(struct fa_pool *pool, struct fa_pool_sequence *sequence, uint32_t slot)
{
	const struct fa_pool_step_part *newest;

	if (!sequence->n_in_flight) {
		fa_page_unref(pool, sequence->cache, fa_page_index(pool, sequence->cache, slot));
		return;
	}
	newest = fa_container_of(sequence->in_flight.prev, struct fa_pool_step_part, link);
	sequence->deferred[sequence->n_deferred++] =
		(struct fa_deferred_page){ .serial = newest->serial, .slot = slot };
}

void fa_page_list_trim(struct fa_pool *pool, struct fa_pool_sequence *sequence, bool durable)
{
	uint32_t end = fa_pages_of(sequence->cache, sequence->planned);
	uint32_t first = fa_pool_sequence_first_page(sequence);
	uint32_t n_pages = end > first ? end - first : 0, n_cells = cells_for(sequence, end);

	/* Backwards, so that a published prefix is evicted from its end. */
	while (sequence->n_pages > n_pages) {
		uint32_t slot = sequence->pages[--sequence->n_pages];

		if (durable)
			fa_page_list_release(pool, sequence, slot);
		else
			fa_page_unref(pool, sequence->cache,
			              fa_page_index(pool, sequence->cache, slot));
	}
	while (sequence->n_cells > n_cells)
		fa_page_list_give_cell(pool, sequence, sequence->cells[--sequence->n_cells]);
}

void fa_page_list_drop_before(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                              uint64_t first)
{
	uint32_t n_pages = (uint32_t)(first / sequence->cache->layout.page_tokens) -
	                   fa_pool_sequence_first_page(sequence);
	uint32_t begin = cells_begin(sequence), n_cells;

	for (uint32_t i = n_pages; i-- > 0;)
		fa_page_list_release(pool, sequence, sequence->pages[i]);
	sequence->n_pages -= n_pages;
	if (sequence->n_pages)
		memmove(sequence->pages, sequence->pages + n_pages,
		        sequence->n_pages * sizeof(*sequence->pages));

	sequence->first = first;
	n_cells = (cells_begin(sequence) - begin) / FA_STATE_CELL_PAGES;
	if (n_cells > sequence->n_cells)
		n_cells = sequence->n_cells;
	for (uint32_t i = 0; i < n_cells; i++)
		fa_page_list_give_cell(pool, sequence, sequence->cells[i]);
	sequence->n_cells -= n_cells;
	if (sequence->n_cells)
		memmove(sequence->cells, sequence->cells + n_cells,
		        sequence->n_cells * sizeof(*sequence->cells));
}
