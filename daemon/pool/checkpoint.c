#include "daemon/pool/checkpoint.h"

#include "daemon/pool/page.h"
#include "daemon/pool/page_list.h"
#include "daemon/pool/state_store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct fa_pool_checkpoint *fa_checkpoint_new(const struct fa_pool_cache *cache, uint64_t length)
{
	const uint32_t n_cells = fa_checkpoint_cells(cache);
	struct fa_pool_checkpoint *checkpoint = calloc(
		1, sizeof(*checkpoint) +
			   ((size_t)n_cells + cache->checkpoint_pages) * sizeof(uint32_t));

	if (!checkpoint)
		return NULL;
	checkpoint->length = length;
	checkpoint->n_cells = n_cells;
	checkpoint->slots = checkpoint->cells + n_cells;
	return checkpoint;
}

void fa_checkpoint_free(struct fa_pool_checkpoint *checkpoint)
{
	free(checkpoint);
}

void fa_checkpoint_free_list(struct fa_pool_checkpoint *list)
{
	while (list) {
		struct fa_pool_checkpoint *older = list->older;

		free(list);
		list = older;
	}
}

/* Nothing reads the cells before a commit names the first of them. */
static void write_cells(struct fa_pool *pool, const struct fa_pool_sequence *sequence,
                        struct fa_pool_checkpoint *checkpoint)
{
	const uint32_t n = sequence->cache->checkpoint_pages;

	for (uint32_t i = 0; i < checkpoint->n_cells; i++)
		checkpoint->cells[i] = fa_page_list_take_cell(pool, sequence);
	for (uint32_t i = 0; i < checkpoint->n_cells; i++) {
		struct fa_state_cell *cell = &pool->cells[checkpoint->cells[i]];

		cell->next = i + 1 < checkpoint->n_cells ? checkpoint->cells[i + 1] + 1 : 0;
		fa_state_fault_point();
		for (uint32_t j = 0; j < FA_STATE_CELL_PAGES; j++) {
			const uint32_t word = i * FA_STATE_CELL_PAGES + j;

			cell->slots[j] = !word       ? (uint32_t)checkpoint->length
			                 : word <= n ? checkpoint->slots[word - 1]
			                             : 0;
		}
	}
}

void fa_checkpoint_take(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                        struct fa_pool_checkpoint *checkpoint, uint32_t **clears)
{
	struct fa_pool_cache *cache = sequence->cache;

	for (uint32_t i = 0; i < cache->checkpoint_pages; i++) {
		bool clear;
		const uint32_t index = fa_page_take(pool, cache, sequence->record->tenant, &clear);

		checkpoint->slots[i] = fa_page_slot(pool, cache, index);
		if (clear)
			*(*clears)++ = checkpoint->slots[i];
	}
	write_cells(pool, sequence, checkpoint);
}

void fa_checkpoint_share(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                         struct fa_pool_checkpoint *checkpoint, const uint32_t *slots)
{
	struct fa_pool_cache *cache = sequence->cache;

	if (slots != checkpoint->slots)
		memcpy(checkpoint->slots, slots, cache->checkpoint_pages * sizeof(*slots));
	for (uint32_t i = 0; i < cache->checkpoint_pages; i++)
		fa_page_ref(pool, cache, fa_page_index(pool, cache, slots[i]));
	write_cells(pool, sequence, checkpoint);
}

void fa_checkpoint_put(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                       struct fa_pool_checkpoint *checkpoint, bool deferred)
{
	struct fa_pool_cache *cache = sequence->cache;

	if (!checkpoint)
		return;
	for (uint32_t i = 0; i < checkpoint->n_cells; i++)
		fa_page_list_give_cell(pool, sequence, checkpoint->cells[i]);
	for (uint32_t i = 0; i < cache->checkpoint_pages; i++)
		if (deferred)
			fa_page_list_release(pool, sequence, checkpoint->slots[i]);
		else
			fa_page_unref(pool, cache,
			              fa_page_index(pool, cache, checkpoint->slots[i]));
	free(checkpoint);
}

void fa_checkpoint_put_list(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                            struct fa_pool_checkpoint *list, bool deferred)
{
	while (list) {
		struct fa_pool_checkpoint *older = list->older;

		fa_checkpoint_put(pool, sequence, list, deferred);
		list = older;
	}
}

static uint32_t *last_next(const struct fa_pool *pool, const struct fa_pool_checkpoint *checkpoint)
{
	return &pool->cells[checkpoint->cells[checkpoint->n_cells - 1]].next;
}

struct fa_pool_checkpoint *fa_checkpoint_push(struct fa_pool *pool,
                                              struct fa_pool_sequence *sequence,
                                              struct fa_pool_checkpoint *checkpoint)
{
	struct fa_pool_checkpoint *newest = sequence->checkpoints, *replaced = NULL;

	if (newest && (newest->length == checkpoint->length ||
	               !fa_checkpoint_stays(sequence->cache, newest->length))) {
		replaced = newest;
		newest = newest->older;
		replaced->older = NULL;
		sequence->n_checkpoints--;
	}
	checkpoint->older = newest;
	fa_state_store(last_next(pool, checkpoint), newest ? newest->cells[0] + 1 : 0);
	sequence->checkpoints = checkpoint;
	sequence->n_checkpoints++;
	return replaced;
}

struct fa_pool_checkpoint *fa_checkpoint_cut(struct fa_pool_sequence *sequence, uint64_t length)
{
	struct fa_pool_checkpoint *list = sequence->checkpoints, *last = NULL;

	while (sequence->checkpoints && sequence->checkpoints->length > length) {
		last = sequence->checkpoints;
		sequence->checkpoints = last->older;
		sequence->n_checkpoints--;
	}
	if (!last)
		return NULL;
	last->older = NULL;
	return list;
}

struct fa_pool_checkpoint *fa_checkpoint_drop(struct fa_pool_sequence *sequence, uint64_t first)
{
	struct fa_pool_checkpoint **link = &sequence->checkpoints, *list;

	while (*link && (*link)->length >= first)
		link = &(*link)->older;
	list = *link;
	*link = NULL;
	for (const struct fa_pool_checkpoint *i = list; i; i = i->older)
		sequence->n_checkpoints--;
	return list;
}

void fa_checkpoint_seal(struct fa_pool *pool, const struct fa_pool_sequence *sequence)
{
	const struct fa_pool_checkpoint *oldest = sequence->checkpoints;

	while (oldest && oldest->older)
		oldest = oldest->older;
	if (oldest && *last_next(pool, oldest))
		fa_state_store(last_next(pool, oldest), 0);
}

const struct fa_pool_checkpoint *fa_checkpoint_find(const struct fa_pool_sequence *sequence,
                                                    uint64_t length)
{
	const struct fa_pool_checkpoint *checkpoint = sequence->checkpoints;

	while (checkpoint && checkpoint->length > length)
		checkpoint = checkpoint->older;
	return checkpoint;
}

int fa_checkpoint_cut_at(const struct fa_pool_sequence *sequence, uint64_t length,
                         struct fa_error *error, uint64_t *ret_length)
{
	const struct fa_pool_checkpoint *found = fa_checkpoint_find(sequence, length);

	if (!sequence->cache->checkpoint_pages) {
		*ret_length = length;
		return 0;
	}
	if (length && !found && !sequence->cache->record->checkpoint_tokens)
		return fa_fail(error, -ENOTSUP,
		               "the cache keeps no checkpoints of its states but each sequence's "
		               "last one, and this sequence has none at or before token %" PRIu64,
		               length);
	*ret_length = found ? found->length : 0;
	if (*ret_length < sequence->first)
		return fa_fail(error, -ENOTSUP,
		               "the sequence has no checkpoint of its states from token %" PRIu64
		               ", the first that was not dropped, to token %" PRIu64,
		               sequence->first, length);
	return 0;
}
