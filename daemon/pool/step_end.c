#include "common/cleanup.h"
#include "daemon/pool/checkpoint.h"
#include "daemon/pool/page.h"
#include "daemon/pool/page_list.h"
#include "daemon/pool/sequence_private.h"
#include "daemon/pool/state_store.h"
#include "daemon/pool/step_private.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static struct fa_pool_step_private *private_of(struct fa_pool_step *step)
{
	return fa_container_of(step, struct fa_pool_step_private, step);
}

struct fa_pool_step *fa_pool_step_free(struct fa_pool_step *step)
{
	struct fa_pool_step_private *private;

	if (!step)
		return NULL;
	private = private_of(step);
	assert(private->ended);
	for (uint32_t i = 0; private->parts && i < step->n_entries; i++)
		free(private->parts[i].from);
	free(private->parts);
	free(private->arrays);
	free(step->entries);
	free(step->groups);
	free(private);
	return NULL;
}

/* NULL: none follows. */
static struct fa_pool_step_part *next_appending(const struct fa_pool_sequence *sequence,
                                                const struct fa_list *from)
{
	struct fa_list *pos;

	for (pos = from->next; pos != &sequence->in_flight; pos = pos->next) {
		struct fa_pool_step_part *part = fa_container_of(pos, struct fa_pool_step_part,
		                                                 link);

		if (part->appends)
			return part;
	}
	return NULL;
}

static int check_positions(const struct fa_pool_step_part *part, const uint32_t *positions,
                           uint32_t n_positions, struct fa_error *error)
{
	for (uint32_t i = 0; i < n_positions; i++) {
		if (positions[i] >= part->n_tokens)
			return fa_fail(error, -EINVAL,
			               "position %" PRIu32 " is %" PRIu32
			               "; expected one below %" PRIu32 ", the new tokens",
			               i, positions[i], part->n_tokens);
		if (i && positions[i] <= positions[i - 1])
			return fa_fail(error, -EINVAL,
			               "position %" PRIu32 " is %" PRIu32
			               ", not above its predecessor %" PRIu32,
			               i, positions[i], positions[i - 1]);
	}
	return 0;
}

int fa_pool_step_keep(struct fa_pool *pool, struct fa_pool_step *step, uint32_t entry,
                      const uint32_t *positions, uint32_t n_positions, struct fa_error *error,
                      const uint32_t **ret_from, uint32_t *ret_n, uint32_t *ret_to)
{
	struct fa_pool_step_private *private = private_of(step);
	struct fa_pool_sequence *sequence;
	struct fa_pool_step_part *part;
	uint32_t before, in_place = 0;
	int r;

	if (entry >= step->n_entries)
		return fa_fail(error, -EINVAL, "the step has no entry %" PRIu32 ", only %" PRIu32,
		               entry, step->n_entries);
	part = &private->parts[entry];
	sequence = part->sequence;
	if (!part->n_tokens)
		return fa_fail(error, -EINVAL, "the step has no new tokens of the sequence");
	if (part->checkpoint && n_positions < part->n_tokens)
		return fa_fail(error, -EINVAL,
		               "the step writes a checkpoint of the sequence, after all its new "
		               "tokens; expected that all are kept");
	if (part->from)
		return fa_fail(error, -EINVAL,
		               "it was said already which tokens of the sequence are kept");
	r = check_positions(part, positions, n_positions, error);
	if (r < 0)
		return r;
	if (part->cancelled)
		return fa_fail(error, -ECANCELED, "a step before it was aborted");
	if (next_appending(sequence, &part->link))
		return fa_fail(error, -EBUSY,
		               "a later step of the sequence is planned behind all new tokens");
	part->from = calloc((size_t)n_positions + 1, sizeof(*part->from));
	if (!part->from)
		return fa_fail(error, -ENOMEM, "there is no memory for %" PRIu32 " moves",
		               n_positions);

	before = (uint32_t)(part->after - part->n_tokens);
	while (in_place < n_positions && positions[in_place] == in_place)
		in_place++;
	for (uint32_t i = in_place; i < n_positions; i++)
		part->from[i - in_place] = before + positions[i];
	part->length = before + n_positions;
	step->entries[entry].after = part->length;
	sequence->keep_pending = true;
	*ret_from = part->from;
	*ret_n = n_positions - in_place;
	*ret_to = before + in_place;
	return 0;
}

static void end_part(const struct fa_pool *pool, struct fa_pool_step_part *part)
{
	struct fa_pool_sequence *sequence = part->sequence;

	fa_pool_sequence_touch(pool, sequence);

	fa_list_remove(&part->link);
	sequence->n_in_flight--;
	if (part->appends)
		sequence->n_appending--;
	if (part->checkpoint)
		sequence->n_planned_checkpoints--;
	if (part->cancelled)
		sequence->n_cancelled--;
	if (part->from)
		sequence->keep_pending = false;
}

static void commit_part(struct fa_pool *pool, struct fa_pool_step_part *part, uint64_t number)
{
	struct fa_pool_checkpoint *checkpoint, *replaced = NULL;
	struct fa_pool_sequence *sequence = part->sequence;

	end_part(pool, part);
	checkpoint = fa_steal_ptr(part->checkpoint);
	if ((part->n_tokens || checkpoint) && !sequence->removed) {
		if (part->copies) {
			uint32_t first = fa_pool_sequence_first_page(sequence);

			fa_page_list_replace(pool, sequence, sequence->copied_number,
			                     sequence->pages[sequence->copied_number - first]);
			sequence->copied = false;
			fa_page_list_release(pool, sequence, sequence->copied_slot);
		}
		if (checkpoint)
			replaced = fa_checkpoint_push(pool, sequence, fa_steal_ptr(checkpoint));
		fa_page_list_commit(pool, sequence, part->length, sequence->first, number);
		fa_checkpoint_put(pool, sequence, replaced, true);
	} else if (part->copies) {
		sequence->copy_aborted = true;
	}
	fa_checkpoint_put(pool, sequence, checkpoint, false);
	fa_pool_sequence_reap(pool, sequence);
}

int fa_pool_step_commit(struct fa_pool *pool, struct fa_pool_step *step, struct fa_error *error)
{
	struct fa_pool_step_private *private = private_of(step);

	for (uint32_t i = 0; i < step->n_entries; i++) {
		const struct fa_pool_step_part *part = &private->parts[i];
		const struct fa_pool_sequence *sequence = part->sequence;

		if (part->cancelled)
			return fa_fail(error, -ECANCELED,
			               "a step before this one, with the sequence of item %" PRIu32
			               ", was aborted",
			               step->entries[i].item);
		if (part->appends && next_appending(sequence, &sequence->in_flight) != part)
			return fa_fail(error, -EBUSY,
			               "a step before this one, with the sequence of item %" PRIu32
			               ", has not ended",
			               step->entries[i].item);
	}
	for (uint32_t i = 0; i < step->n_entries; i++) {
		step->entries[i].stale = private->parts[i].sequence->removed;
		commit_part(pool, &private->parts[i], step->number);
	}
	private->ended = true;
	pool->n_steps--;
	return 0;
}

static void abort_part(struct fa_pool *pool, struct fa_pool_step_part *part)
{
	struct fa_pool_sequence *sequence = part->sequence;

	for (struct fa_pool_step_part *later = part; part->n_tokens;) {
		later = next_appending(sequence, &later->link);
		if (!later)
			break;
		if (!later->cancelled)
			sequence->n_cancelled++;
		later->cancelled = true;
	}
	if (part->copies)
		sequence->copy_aborted = true;
	end_part(pool, part);
	fa_checkpoint_put(pool, sequence, fa_steal_ptr(part->checkpoint), false);
	fa_pool_sequence_reap(pool, sequence);
}

/* An aborted step may not have cleared or copied them. */
static void taint(struct fa_pool *pool, const struct fa_pool_cache *cache, const uint32_t *slots,
                  uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		pool->pages[fa_page_index(pool, cache, slots[i])].flags |= FA_PAGE_TAINTED;
}

void fa_pool_step_abort(struct fa_pool *pool, struct fa_pool_step *step)
{
	struct fa_pool_step_private *private = private_of(step);

	for (uint32_t i = 0; i < step->n_groups; i++) {
		const struct fa_pool_step_group *group = &step->groups[i];
		const struct fa_pool_cache *cache = private->parts[group->begin].sequence->cache;

		taint(pool, cache, group->clears, group->n_clears);
		taint(pool, cache, group->copies_to, group->n_copies);
	}
	for (uint32_t i = 0; i < step->n_entries; i++)
		abort_part(pool, &private->parts[i]);
	private->ended = true;
	pool->n_steps--;
}

static bool writes(const struct fa_pool_step_part *part)
{
	return part->n_tokens || part->checkpoint;
}

uint32_t fa_pool_step_suspect(struct fa_pool *pool, struct fa_pool_step *step)
{
	struct fa_pool_step_private *private = private_of(step);
	uint32_t n = 0;

	/* Writes all states first, as this process may die at any moment. */
	for (uint32_t i = 0; i < step->n_entries; i++) {
		struct fa_pool_sequence *sequence = private->parts[i].sequence;

		if (writes(&private->parts[i]) && !sequence->removed)
			fa_state_store(&sequence->record->state, FA_STATE_SUSPECT);
	}
	for (uint32_t i = 0; i < step->n_entries; i++) {
		struct fa_pool_sequence *sequence = private->parts[i].sequence;

		if (!writes(&private->parts[i]) || sequence->removed)
			continue;
		fa_pool_sequence_destroy(pool, sequence);
		n++;
	}
	fa_pool_step_abort(pool, step);
	return n;
}
