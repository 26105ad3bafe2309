#include "daemon/pool/sequence.h"

#include "common/cleanup.h"
#include "daemon/pool/access.h"
#include "daemon/pool/cache_private.h"
#include "daemon/pool/checkpoint.h"
#include "daemon/pool/id.h"
#include "daemon/pool/name_index.h"
#include "daemon/pool/page.h"
#include "daemon/pool/page_list.h"
#include "daemon/pool/sequence_private.h"
#include "daemon/pool/state_store.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define PREFETCH 16 /* pages ahead of the current one that are prefetched */

uint64_t fa_pool_sequence_id(const struct fa_pool_sequence *sequence)
{
	return sequence->id;
}

/* ---- finding by id */

static struct fa_pool_sequence *find_recent(const struct fa_pool *pool, uint64_t id)
{
	const uint32_t *ways = pool->recent[id % FA_POOL_RECENT_SETS];

	for (uint32_t i = 0; i < FA_POOL_RECENT_WAYS; i++) {
		struct fa_pool_sequence *sequence = pool->sequences[ways[i]];

		if (sequence && sequence->id == id && !sequence->removed)
			return sequence;
	}
	return NULL;
}

static void make_recent(const struct fa_pool *pool, const struct fa_pool_sequence *sequence)
{
	uint32_t *ways = pool->recent[sequence->id % FA_POOL_RECENT_SETS];

	memmove(ways + 1, ways, (FA_POOL_RECENT_WAYS - 1) * sizeof(*ways));
	ways[0] = sequence->index;
}

static int find(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                struct fa_error *error, struct fa_pool_sequence **ret_sequence)
{
	const struct fa_state_sequence *record;
	struct fa_pool_sequence *sequence;
	struct fa_id read;
	int r;

	r = fa_id_read(pool, FA_ID_SEQUENCE, id, error, &read);
	if (r < 0)
		return r;
	if (read.index >= pool->header->high_sequences)
		return fa_id_hidden(FA_ID_SEQUENCE, error);
	sequence = pool->sequences[read.index];
	record = &pool->sequence_records[read.index];
	if (!sequence || sequence->removed || sequence->id != id)
		return fa_id_missing(pool, FA_ID_SEQUENCE, &read, actor, record->generation,
		                     &record->origin, error);
	make_recent(pool, sequence);
	*ret_sequence = sequence;
	return 0;
}

int fa_pool_sequence_get(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                         enum fa_right right, struct fa_error *error,
                         struct fa_pool_sequence **ret_sequence)
{
	static const char *const what[] = { "read", "append to", "fork" };
	struct fa_pool_sequence *sequence = find_recent(pool, id);
	const struct fa_state_sequence *record;
	int r;

	if (!sequence) {
		r = find(pool, actor, id, error, &sequence);
		if (r < 0)
			return r;
	}
	record = sequence->record;
	if (!record->name[0]) {
		if (!actor->admin && record->owner != actor->owner)
			return fa_id_hidden(FA_ID_SEQUENCE, error);
	} else if (!fa_access_allows(pool, record->tenant, record->mode, actor, right)) {
		if (!fa_access_shows(pool, record->tenant, record->mode, actor))
			return fa_id_hidden(FA_ID_SEQUENCE, error);
		return fa_fail(error, -EACCES,
		               "the sequence '%s' is another tenant's, who does not let you %s it",
		               record->name, what[right]);
	}
	*ret_sequence = sequence;
	return 0;
}

void fa_pool_sequence_load_id(const struct fa_pool *pool, struct fa_pool_sequence *sequence)
{
	const struct fa_id id = { .form = sequence->record->origin.id_form,
		                  .generation = sequence->record->generation,
		                  .index = sequence->index };

	sequence->id = fa_id_write(pool, FA_ID_SEQUENCE, &id);
}

struct fa_pool_sequence *fa_pool_sequence_alloc(struct fa_pool *pool, struct fa_pool_cache *cache,
                                                uint32_t index)
{
	struct fa_pool_sequence *sequence = fa_new(struct fa_pool_sequence);

	if (!sequence)
		return NULL;
	sequence->record = &pool->sequence_records[index];
	sequence->cache = cache;
	sequence->index = index;
	fa_list_init(&sequence->in_flight);
	fa_list_init(&sequence->owner_link);
	fa_list_init(&sequence->cache_link);
	return sequence;
}

void fa_pool_sequence_link(struct fa_pool *pool, struct fa_pool_sequence *sequence)
{
	const uint64_t owner = sequence->record->owner;

	fa_list_append(&sequence->cache->sequences, &sequence->cache_link);
	if (owner)
		fa_list_append(&pool->owned[owner % FA_POOL_OWNER_BUCKETS], &sequence->owner_link);
}

void fa_pool_sequence_dealloc(struct fa_pool_sequence *sequence)
{
	if (!sequence)
		return;
	fa_checkpoint_free_list(sequence->checkpoints);
	free(sequence->pages);
	free(sequence->cells);
	free(sequence->deferred);
	free(sequence);
}

static void sequence_deallocp(struct fa_pool_sequence **sequence)
{
	fa_pool_sequence_dealloc(*sequence);
}

static int take_index(struct fa_pool *pool, const struct fa_actor *actor, struct fa_error *error,
                      uint32_t *ret_index)
{
	const struct fa_pool_more more = { .sequences = 1 };
	int r;

	r = fa_tenant_check_quota(pool, actor->tenant, &more, error);
	if (r < 0)
		return r;
	if (pool->free_sequence) {
		*ret_index = pool->free_sequence - 1;
		return 0;
	}
	if (pool->header->high_sequences == pool->header->max_sequences)
		return fa_fail(error, -ENOSPC,
		               "there are %" PRIu32 " sequences, and no more can be",
		               pool->n_sequences);
	*ret_index = pool->header->high_sequences;
	return 0;
}

static void begin_record(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                         const struct fa_actor *actor)
{
	struct fa_state_sequence *record = sequence->record;

	if (pool->free_sequence)
		pool->free_sequence = pool->free_sequences[sequence->index];
	else
		fa_state_store(&pool->header->high_sequences, sequence->index + 1);
	*record = (struct fa_state_sequence){
		.generation = fa_pool_next_generation(pool, record->generation),
		.cache = sequence->cache->index,
		.tenant = actor->tenant,
		.owner = actor->owner,
		.used_ns = pool->now_ns,
		.origin = fa_id_next_origin(&record->origin, record->generation,
		                            fa_tenant_record(pool, actor->tenant)->uid),
	};
	fa_pool_sequence_load_id(pool, sequence);
	make_recent(pool, sequence);
}

static void add(struct fa_pool *pool, struct fa_pool_sequence *sequence)
{
	fa_state_store(&sequence->record->state, FA_STATE_USED);
	pool->sequences[sequence->index] = sequence;
	fa_pool_sequence_link(pool, sequence);
	pool->n_sequences++;
	sequence->cache->n_sequences++;
	sequence->cache->record->used_ns = pool->now_ns;
	fa_tenant_account(pool, sequence->record->tenant)->n_sequences++;
}

int fa_pool_sequence_new(struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache_id,
                         struct fa_error *error, uint64_t *ret_id)
{
	_fa_cleanup_(sequence_deallocp) struct fa_pool_sequence *sequence = NULL;
	struct fa_pool_cache *cache = NULL;
	uint32_t index = 0;
	int r;

	r = fa_pool_cache_get(pool, actor, cache_id, FA_RIGHT_APPEND, error, &cache);
	if (r < 0)
		return r;
	r = take_index(pool, actor, error, &index);
	if (r < 0)
		return r;
	sequence = fa_pool_sequence_alloc(pool, cache, index);
	if (!sequence)
		return fa_fail(error, -ENOMEM, "there is no memory for another sequence");
	begin_record(pool, sequence, actor);
	*ret_id = fa_pool_sequence_id(sequence);
	add(pool, fa_steal_ptr(sequence));
	return 0;
}

/* Makes a fork's checkpoints: the parent's up to @tokens, oldest first. -ENOMEM. */
static int copy_checkpoints(const struct fa_pool_sequence *parent, uint64_t tokens,
                            struct fa_pool_checkpoint **ret_list, uint32_t *ret_n)
{
	const struct fa_pool_checkpoint *from = fa_checkpoint_find(parent, tokens);
	struct fa_pool_checkpoint *list = NULL;
	uint32_t n = 0;

	for (; from; from = from->older) {
		struct fa_pool_checkpoint *checkpoint = fa_checkpoint_new(parent->cache,
		                                                          from->length);

		if (!checkpoint) {
			fa_checkpoint_free_list(list);
			return -ENOMEM;
		}
		memcpy(checkpoint->slots, from->slots,
		       parent->cache->checkpoint_pages * sizeof(*from->slots));
		checkpoint->older = list;
		list = checkpoint;
		n++;
	}
	*ret_list = list;
	*ret_n = n;
	return 0;
}

static void share_checkpoints(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                              struct fa_pool_checkpoint *list)
{
	while (list) {
		struct fa_pool_checkpoint *checkpoint = list;

		list = checkpoint->older;
		fa_checkpoint_share(pool, sequence, checkpoint, checkpoint->slots);
		(void)fa_checkpoint_push(pool, sequence, checkpoint);
	}
}

int fa_pool_sequence_fork(struct fa_pool *pool, const struct fa_actor *actor, uint64_t parent_id,
                          uint64_t tokens, struct fa_error *error, uint64_t *ret_id)
{
	_fa_cleanup_(sequence_deallocp) struct fa_pool_sequence *child = NULL;
	struct fa_pool_sequence *parent = NULL;
	struct fa_pool_checkpoint *checkpoints = NULL;
	uint32_t index = 0, begin, end, n_checkpoints, n_cells;
	int r;

	r = fa_pool_sequence_get(pool, actor, parent_id, FA_RIGHT_FORK, error, &parent);
	if (r < 0)
		return r;
	if (tokens == UINT64_MAX)
		tokens = parent->length;
	if (tokens > parent->length || tokens < parent->first)
		return fa_fail(error, -EINVAL,
		               "%" PRIu64 " tokens are to be forked; expected %" PRIu64
		               " to %" PRIu64 ", what the sequence has",
		               tokens, parent->first, parent->length);
	r = fa_checkpoint_cut_at(parent, tokens, error, &tokens);
	if (r < 0)
		return r;
	begin = fa_pool_sequence_first_page(parent);
	end = fa_pages_of(parent->cache, tokens);
	r = take_index(pool, actor, error, &index);
	if (r < 0)
		return r;
	child = fa_pool_sequence_alloc(pool, parent->cache, index);
	if (!child)
		return fa_fail(error, -ENOMEM, "there is no memory for another sequence");
	child->first = parent->first;
	r = fa_page_list_prepare(child, end, 0);
	if (r < 0)
		return fa_fail(error, r, "there is no memory for the list of %" PRIu32 " pages",
		               end - begin);
	r = copy_checkpoints(parent, tokens, &checkpoints, &n_checkpoints);
	if (r < 0)
		return fa_fail(error, r, "there is no memory for a list of checkpoints");
	n_cells = fa_page_list_missing(child, end) +
	          n_checkpoints * fa_checkpoint_cells(parent->cache);
	r = fa_page_list_check_cells(pool, n_cells, error);
	if (r == 0)
		r = fa_tenant_check_cells(pool, actor->tenant, n_cells, error);
	if (r < 0) {
		fa_checkpoint_free_list(checkpoints);
		return r;
	}

	fa_pool_sequence_touch(pool, parent);
	begin_record(pool, child, actor);
	fa_page_list_append(pool, child, parent->pages, end - begin);
	if (parent->copied && parent->copied_number < end) {
		child->pages[parent->copied_number - begin] = parent->copied_slot;
		fa_page_list_replace(pool, child, parent->copied_number, parent->copied_slot);
	}
	for (uint32_t i = 0; i < child->n_pages; i++) {
		if (i + PREFETCH < child->n_pages)
			fa_page_prefetch(pool, child->cache, child->pages[i + PREFETCH]);
		fa_page_ref(pool, child->cache, fa_page_index(pool, child->cache, child->pages[i]));
	}
	share_checkpoints(pool, child, checkpoints);
	child->planned = tokens;
	fa_page_list_commit(pool, child, tokens, child->first,
	                    fa_pool_sequence_durable(parent)->step);
	*ret_id = fa_pool_sequence_id(child);
	add(pool, fa_steal_ptr(child));
	return 0;
}

static void end(struct fa_pool *pool, struct fa_pool_sequence *sequence)
{
	struct fa_pool_cache *cache = sequence->cache;
	uint32_t tenant = sequence->record->tenant;

	/* The checkpoints go first: without their pages they must not be found. */
	fa_checkpoint_put_list(pool, sequence, fa_steal_ptr(sequence->checkpoints), false);
	sequence->planned = 0;
	fa_page_list_trim(pool, sequence, false);
	pool->sequences[sequence->index] = NULL;
	fa_list_remove(&sequence->owner_link);
	fa_list_remove(&sequence->cache_link);
	if (sequence->record->generation < UINT32_MAX) {
		pool->free_sequences[sequence->index] = pool->free_sequence;
		pool->free_sequence = sequence->index + 1;
	}
	pool->n_sequences--;
	cache->n_sequences--;
	cache->record->used_ns = pool->now_ns;
	fa_tenant_account(pool, tenant)->n_sequences--;
	fa_tenant_try_free(pool, tenant);
	fa_pool_sequence_dealloc(sequence);
	fa_pool_cache_try_free(pool, cache);
}

void fa_pool_sequence_destroy(struct fa_pool *pool, struct fa_pool_sequence *sequence)
{
	fa_state_store(&sequence->record->state, FA_STATE_FREE);
	if (sequence->record->name[0])
		fa_name_index_remove(pool, sequence);
	sequence->removed = true;
	fa_pool_sequence_reap(pool, sequence);
}

static void undo_copy(struct fa_pool *pool, struct fa_pool_sequence *sequence)
{
	uint32_t *slot =
		&sequence->pages[sequence->copied_number - fa_pool_sequence_first_page(sequence)];

	fa_page_unref(pool, sequence->cache, fa_page_index(pool, sequence->cache, *slot));
	*slot = sequence->copied_slot;
	sequence->copied = sequence->copy_aborted = false;
}

void fa_pool_sequence_reap(struct fa_pool *pool, struct fa_pool_sequence *sequence)
{
	uint64_t oldest = UINT64_MAX;
	uint32_t n = 0;

	if (sequence->n_in_flight)
		oldest = fa_container_of(sequence->in_flight.next, struct fa_pool_step_part, link)
		                 ->serial;
	for (uint32_t i = 0; i < sequence->n_deferred; i++) {
		if (sequence->deferred[i].serial < oldest)
			fa_page_unref(
				pool, sequence->cache,
				fa_page_index(pool, sequence->cache, sequence->deferred[i].slot));
		else
			sequence->deferred[n++] = sequence->deferred[i];
	}
	sequence->n_deferred = n;

	/* If parts were cancelled or the sequence was removed, what earlier parts reserved
	 * stays. */
	if (!sequence->n_cancelled && !(sequence->removed && sequence->n_in_flight)) {
		struct fa_list *pos;

		if (sequence->copy_aborted)
			undo_copy(pool, sequence);
		sequence->planned = sequence->length;
		fa_list_for_each(pos, &sequence->in_flight) {
			const struct fa_pool_step_part *part = fa_container_of(
				pos, struct fa_pool_step_part, link);

			if (part->appends)
				sequence->planned = part->after;
		}
		fa_page_list_trim(pool, sequence, false);
	}
	if (sequence->removed && !sequence->n_in_flight)
		end(pool, sequence);
}

static int prepare_deferred(struct fa_pool_sequence *sequence, struct fa_error *error)
{
	/* Commits of steps in flight release pages, too. */
	const uint32_t n = sequence->n_pages +
	                   (sequence->n_checkpoints + sequence->n_planned_checkpoints) *
	                           sequence->cache->checkpoint_pages;

	if (!sequence->n_in_flight ||
	    !fa_page_list_prepare(sequence, fa_pages_of(sequence->cache, sequence->planned), n))
		return 0;
	return fa_fail(error, -ENOMEM, "there is no memory to remember %" PRIu32 " pages", n);
}

int fa_pool_sequence_truncate(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              uint64_t tokens, struct fa_error *error)
{
	struct fa_pool_sequence *sequence = NULL;
	struct fa_pool_checkpoint *cut;
	int r;

	r = fa_pool_sequence_get(pool, actor, id, FA_RIGHT_APPEND, error, &sequence);
	if (r < 0)
		return r;
	if (sequence->n_appending)
		return fa_fail(
			error, -EBUSY,
			"steps are appending to the sequence; end them before truncating it");
	if (tokens > sequence->length || tokens < sequence->first)
		return fa_fail(error, -EINVAL,
		               "the sequence is to have %" PRIu64 " tokens; expected %" PRIu64
		               " to %" PRIu64 ", what it has",
		               tokens, sequence->first, sequence->length);
	r = fa_checkpoint_cut_at(sequence, tokens, error, &tokens);
	if (r < 0)
		return r;
	r = prepare_deferred(sequence, error);
	if (r < 0)
		return r;
	if (sequence->n_in_flight && tokens < sequence->length &&
	    tokens % sequence->cache->layout.page_tokens) {
		sequence->truncated = true;
		sequence->truncated_slot = fa_pool_sequence_slot(
			sequence, (uint32_t)(tokens / sequence->cache->layout.page_tokens));
		sequence->truncated_serial = fa_container_of(sequence->in_flight.prev,
		                                             struct fa_pool_step_part, link)
		                                     ->serial;
	}
	fa_pool_sequence_touch(pool, sequence);
	cut = fa_checkpoint_cut(sequence, tokens);
	fa_page_list_commit(pool, sequence, tokens, sequence->first,
	                    fa_pool_sequence_durable(sequence)->step);
	fa_checkpoint_put_list(pool, sequence, cut, true);
	sequence->planned = tokens;
	fa_page_list_trim(pool, sequence, true);
	return 0;
}

int fa_pool_sequence_drop(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                          uint64_t first, struct fa_error *error, uint64_t *ret_first)
{
	struct fa_pool_sequence *sequence = NULL;
	struct fa_pool_checkpoint *dropped;
	int r;

	r = fa_pool_sequence_get(pool, actor, id, FA_RIGHT_APPEND, error, &sequence);
	if (r < 0)
		return r;
	if (first > sequence->length)
		return fa_fail(error, -EINVAL,
		               "the tokens before %" PRIu64 " are to be dropped; expected at most "
		               "%" PRIu64 ", the sequence's length",
		               first, sequence->length);
	fa_pool_sequence_touch(pool, sequence);
	first -= first % sequence->cache->layout.page_tokens;
	if (first > sequence->first) {
		r = prepare_deferred(sequence, error);
		if (r < 0)
			return r;
		dropped = fa_checkpoint_drop(sequence, first);
		fa_page_list_commit(pool, sequence, sequence->length, first,
		                    fa_pool_sequence_durable(sequence)->step);
		fa_checkpoint_seal(pool, sequence);
		fa_checkpoint_put_list(pool, sequence, dropped, true);
		fa_page_list_drop_before(pool, sequence, first);
	}
	*ret_first = sequence->first;
	return 0;
}

int fa_pool_sequence_remove(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                            struct fa_error *error)
{
	struct fa_pool_sequence *sequence = NULL;
	int r;

	r = fa_pool_sequence_get(pool, actor, id, FA_RIGHT_READ, error, &sequence);
	if (r < 0)
		return r;
	if (sequence->record->name[0] && !actor->admin && actor->tenant != sequence->record->tenant)
		return fa_fail(error, -EACCES,
		               "the sequence '%s' is another tenant's; only that can free it",
		               sequence->record->name);
	fa_pool_sequence_destroy(pool, sequence);
	return 0;
}

static void describe(const struct fa_pool *pool, const struct fa_pool_sequence *sequence,
                     struct fa_pool_sequence_info *info)
{
	const struct fa_state_sequence *record = sequence->record;

	*info = (struct fa_pool_sequence_info){
		.id = fa_pool_sequence_id(sequence),
		.cache = fa_pool_cache_id(sequence->cache),
		.length = sequence->length,
		.planned = sequence->planned,
		.first = sequence->first,
		.step = fa_pool_sequence_durable(sequence)->step,
		.name = record->name,
		.mode = record->mode,
		.tenant = record->tenant,
		.uid = fa_tenant_record(pool, record->tenant)->uid,
		.owner = record->owner,
		.ttl_ns = record->ttl_ns,
		.in_flight = sequence->n_in_flight,
		.checkpoint = sequence->checkpoints ? sequence->checkpoints->length : 0,
		.n_checkpoints = sequence->n_checkpoints,
	};
}

int fa_pool_sequence_get_info(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              struct fa_error *error, struct fa_pool_sequence_info *ret_info)
{
	struct fa_pool_sequence *sequence = NULL;
	int r;

	r = fa_pool_sequence_get(pool, actor, id, FA_RIGHT_READ, error, &sequence);
	if (r < 0)
		return r;
	describe(pool, sequence, ret_info);
	return 0;
}

int fa_pool_sequence_checkpoint(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                                uint64_t tokens, struct fa_error *error, uint64_t *ret_length,
                                const uint32_t **ret_slots)
{
	const struct fa_pool_checkpoint *found;
	struct fa_pool_sequence *sequence = NULL;
	int r;

	r = fa_pool_sequence_get(pool, actor, id, FA_RIGHT_READ, error, &sequence);
	if (r < 0)
		return r;
	found = fa_checkpoint_find(sequence, tokens);
	if (!found && tokens == UINT64_MAX)
		return fa_fail(error, -ENOENT, "the sequence has no checkpoint");
	if (!found || (tokens != UINT64_MAX && found->length != tokens))
		return fa_fail(error, -ENOENT,
		               "the sequence has no checkpoint at token %" PRIu64
		               "; the last one before it is at %" PRIu64,
		               tokens, found ? found->length : 0);
	*ret_length = found->length;
	*ret_slots = found->slots;
	return 0;
}

bool fa_pool_sequence_each(const struct fa_pool *pool, uint32_t *cursor,
                           struct fa_pool_sequence_info *ret_info)
{
	while (*cursor < pool->header->high_sequences) {
		const struct fa_pool_sequence *sequence = pool->sequences[(*cursor)++];

		if (!sequence || sequence->removed)
			continue;
		describe(pool, sequence, ret_info);
		return true;
	}
	return false;
}
