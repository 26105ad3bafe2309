#include "daemon/kv/step.h"

#include "common/cleanup.h"
#include "daemon/kv/growth.h"
#include "daemon/kv/step_prepare.h"
#include "daemon/kv/store.h"
#include "daemon/pool/cache.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static void unlink_predecessor(struct fa_kv_step *step)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &step->session->kv.steps) {
		struct fa_kv_step *other = fa_container_of(pos, struct fa_kv_step, link);

		for (uint32_t i = 0; i < other->n_predecessors; ++i)
			if (other->predecessors[i] == step) {
				other->predecessors[i] =
					other->predecessors[--other->n_predecessors];
				break;
			}
	}
}

static void step_free(struct fa_kv_step *step)
{
	const struct fa_device_ops *ops = step->session->context->ops;

	if (step->id && !fa_list_empty(&step->link))
		--step->session->kv.n_steps;
	fa_list_remove(&step->link);
	unlink_predecessor(step);
	fa_pool_step_free(step->plan);
	free(step->groups);
	free(step->entry_of_item);
	free(step->tree_start);
	free(step->written);
	free(step->host_tables);
	if (step->tables)
		ops->tables_free(step->session->context->device, step->tables);
	free(step->ordered);
	free(step->predecessors);
	fa_charge_release(&step->charge);
	free(step);
}

static void abort_plan(struct fa_kv_step *step)
{
	struct fa_pool *pool = step->session->context->kv->pool;
	uint32_t n;

	if (step->closed)
		return;
	step->closed = true;
	if (!step->device_lost) {
		fa_pool_step_abort(pool, step->plan);
		return;
	}
	n = fa_pool_step_suspect(pool, step->plan);
	if (n)
		fa_log_about(&step->session->subject, FA_LOG_WARNING,
		             "%" PRIu32 " sequences are dropped: the device was lost while a step "
		             "wrote to them",
		             n);
}

static void free_if_idle(struct fa_kv_step *step)
{
	if (!fa_list_empty(&step->requests) || (!step->closed && !step->abandoned))
		return;
	abort_plan(step);
	step_free(step);
}

void fa_kv_step_abandon(struct fa_kv_step *step)
{
	step->abandoned = true;
	free_if_idle(step);
}

void fa_kv_step_abandon_all(struct fa_session *session)
{
	struct fa_list *pos, *tmp;

	fa_list_for_each_safe(pos, tmp, &session->kv.steps)
		fa_kv_step_abandon(fa_container_of(pos, struct fa_kv_step, link));
}

int fa_kv_step_find(struct fa_session *session, uint32_t id, struct fa_error *error,
                    struct fa_kv_step **ret_step)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &session->kv.steps) {
		struct fa_kv_step *step = fa_container_of(pos, struct fa_kv_step, link);

		if (id && step->id == id) {
			*ret_step = step;
			return 0;
		}
	}
	return fa_fail(error, -ENOENT, "there is no step %" PRIu32, id);
}

static void fail(struct fa_kv_step *step, const struct fa_request *request)
{
	if (step->failed)
		return;
	step->failed = true;
	if (request->layer == UINT32_MAX)
		(void)fa_fail(&step->cause, 0, "%s", request->job.error.text);
	else if (request->layer >= FA_KV_STATE_LAYER)
		(void)fa_fail(&step->cause, 0, "state %" PRIu32 ": %.220s",
		              request->layer - FA_KV_STATE_LAYER, request->job.error.text);
	else if (request->n_layers > 1)
		(void)fa_fail(&step->cause, 0, "%" PRIu32 " layers from %" PRIu32 " on: %.220s",
		              request->n_layers, request->layer, request->job.error.text);
	else
		(void)fa_fail(&step->cause, 0, "layer %" PRIu32 ": %.220s", request->layer,
		              request->job.error.text);
}

int fa_kv_step_refuse_failed(const struct fa_kv_step *step, struct fa_error *error)
{
	return fa_fail(error, -ECANCELED,
	               "a request of step %" PRIu32
	               " has failed, so that the step is aborted: %.180s",
	               step->id, step->cause.text);
}

static bool has_layer(const struct fa_request *request, uint32_t layer, uint32_t n_layers)
{
	const uint64_t n = request->n_layers ? request->n_layers : 1;

	return request->layer < (uint64_t)layer + n_layers && layer < request->layer + n;
}

static int wait_for_layers(struct fa_request *request, const struct fa_kv_step *step,
                           uint32_t layer, uint32_t n_layers, struct fa_error *error)
{
	struct fa_list *pos;
	int r;

	fa_list_for_each(pos, &step->requests) {
		const struct fa_request *other = fa_container_of(pos, struct fa_request, step_link);

		if (!has_layer(other, layer, n_layers) || other == step->end_request)
			continue;
		r = fa_request_wait(request, other->stream, other->job.value, error);
		if (r < 0)
			return r;
	}
	return 0;
}

int fa_kv_step_add(struct fa_kv_step *step, struct fa_request *request, uint32_t layer,
                   uint32_t n_layers, struct fa_error *error)
{
	int r = 0;

	if (step->end_requested)
		return fa_fail(error, -EINVAL, "step %" PRIu32 " was asked to end", step->id);
	if (step->failed)
		return fa_kv_step_refuse_failed(step, error);
	if (step->prepare_value)
		r = fa_request_wait(request, FA_SESSION_STREAM_OWN, step->prepare_value, error);
	if (r == 0)
		r = wait_for_layers(request, step, layer, n_layers, error);
	for (uint32_t i = 0; i < step->n_predecessors && r == 0; ++i) {
		if (step->predecessors[i]->prepare_value)
			r = fa_request_wait(request, FA_SESSION_STREAM_OWN,
			                    step->predecessors[i]->prepare_value, error);
		if (r == 0)
			r = wait_for_layers(request, step->predecessors[i], layer, n_layers, error);
	}
	if (r < 0)
		return r;
	request->step = step;
	request->layer = layer;
	request->n_layers = n_layers;
	fa_list_append(&step->requests, &request->step_link);
	return 0;
}

void fa_kv_step_request_ended(struct fa_request *request)
{
	struct fa_kv_step *step = request->step;

	if (!step || fa_list_empty(&request->step_link))
		return;
	fa_list_remove(&request->step_link);
	if (request->job.status < 0)
		fail(step, request);
	if (request->job.status == -ENODEV && request->job.started_ns)
		step->device_lost = true;
	free_if_idle(step);
}

void fa_kv_step_request_refused(struct fa_request *request)
{
	struct fa_kv_step *step = fa_steal_ptr(request->step);

	if (!step)
		return;
	fa_list_remove(&request->step_link);
	fail(step, request);
	free_if_idle(step);
}

static int check_tokens(const struct fa_pool_step_item *items, uint32_t n_items,
                        struct fa_error *error)
{
	uint64_t tokens = 0;

	for (uint32_t i = 0; i < n_items; ++i)
		tokens += items[i].n_tokens;
	if (tokens > FA_KV_STEP_TOKENS_MAX)
		return fa_fail(error, -EINVAL,
		               "the step has %" PRIu64 " new tokens; expected at most %u", tokens,
		               FA_KV_STEP_TOKENS_MAX);
	return 0;
}

static int check_trees(const struct fa_pool_step_item *items, uint32_t n_items, size_t n_tree,
                       const uint32_t *tree_start, struct fa_error *error)
{
	for (uint32_t i = 0; i < n_items; ++i) {
		uint64_t n = items[i].n_tokens, words = n * ((n + 31) / 32);

		if (tree_start[i] == FA_PAGED_NO_TREE)
			continue;
		if (tree_start[i] > n_tree || words > n_tree - tree_start[i])
			return fa_fail(error, -EINVAL,
			               "tree_start[%" PRIu32 "] is %" PRIu32 ", and its %" PRIu64
			               " tokens have masks of %" PRIu64 " words; tree has %zu",
			               i, tree_start[i], n, words, n_tree);
	}
	return 0;
}

static int fill_group(struct fa_kv_step *step, uint32_t i, struct fa_error *error)
{
	const struct fa_actor admin = { .admin = true };
	const struct fa_pool_step_group *from = &step->plan->groups[i];
	struct fa_kv_group *group = &step->groups[i];
	struct fa_kv *kv = step->session->context->kv;
	struct fa_pool_cache_info info;
	int r;

	r = fa_pool_cache_get_info(kv->pool, &admin, from->cache, error, &info);
	if (r < 0)
		return r;
	*group = (struct fa_kv_group){
		.cache_id = from->cache,
		.v_in_k = info.geometry.v_in_k,
		.n_states = info.n_states,
		.checkpoint_pages = info.checkpoint_pages,
		.state_bytes = info.state_bytes,
		.cache = {
			.pool = kv->base,
			.dtype = info.geometry.dtype,
			.layers = (int32_t)info.geometry.layers,
			.kv_heads = (int32_t)info.geometry.kv_heads,
			.head_dim = (int32_t)info.geometry.head_dim,
			.head_dim_v = (int32_t)info.geometry.head_dim_v,
			.page_tokens = (int32_t)info.geometry.page_tokens,
			.layer_stride = (int64_t)from->layout.layer_stride_bytes,
			.v_offset = (int64_t)from->layout.v_offset_bytes,
			.store = info.geometry.store,
			.k_scales = info.k_scales,
			.v_scales = info.v_scales,
		},
		.step = {
			.batch = (int32_t)(from->end - from->begin),
			.cu_new = from->cu_new,
			.lengths = from->lengths,
			.lengths_before = from->lengths_before,
			.first = from->first,
			.table = from->table,
			.table_start = from->table_start,
			.table_entries = from->table_entries,
			.host_table = from->table,
		},
	};
	return 0;
}

static size_t new_tokens(const struct fa_kv_group *group)
{
	return group->step.cu_new[group->step.batch];
}

static int tables_new(struct fa_kv_step *step, size_t n, struct fa_error *error,
                      uint32_t **ret_words)
{
	const struct fa_context *context = step->session->context;
	int r;

	if (context->ops->tables_new) {
		r = context->ops->tables_new(context->device, n * sizeof(uint32_t), error,
		                             &step->tables);
		if (r == 0)
			*ret_words = step->tables->data;
		return r;
	}
	*ret_words = step->host_tables = calloc(n + 1, sizeof(uint32_t));
	return step->host_tables ? 0
	                         : fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
}

/* The pool's tables are copied only if the device has its own memory for them. */
static int fill_tables(struct fa_kv_step *step, const uint32_t *tree, size_t n_tree,
                       const uint32_t *tree_start, struct fa_error *error)
{
	const bool copies = step->session->context->ops->tables_new != NULL;
	const struct fa_pool_step *plan = step->plan;
	uint32_t *words = NULL;
	size_t n = n_tree;
	int r;

	for (uint32_t i = 0; i < plan->n_groups; ++i) {
		n += tree_start ? new_tokens(&step->groups[i]) : 0;
		n += copies ? plan->groups[i].table_entries : 0;
		n += 2 * (size_t)plan->groups[i].n_copies;
	}
	if (!n)
		return 0;
	r = tables_new(step, n, error, &words);
	if (r < 0)
		return r;
	if (n_tree)
		memcpy(words, tree, n_tree * sizeof(*words));
	step->tree = words;
	words += n_tree;
	for (uint32_t i = 0; i < plan->n_groups; ++i) {
		struct fa_kv_group *group = &step->groups[i];

		if (copies && group->step.table_entries) {
			memcpy(words, group->step.table,
			       group->step.table_entries * sizeof(*words));
			group->step.table = words;
			words += group->step.table_entries;
		}
		group->copies = words;
		for (uint32_t j = 0; j < plan->groups[i].n_copies; ++j) {
			*words++ = plan->groups[i].copies_to[j];
			*words++ = plan->groups[i].copies_from[j];
		}
		if (!tree_start)
			continue;
		group->tree_start = step->tree_start + plan->groups[i].begin;
		group->positions = words;
		fa_paged_tree_positions(&group->step, step->tree, group->tree_start, words);
		words += new_tokens(group);
	}
	return 0;
}

static int fill_tree_start(struct fa_kv_step *step, const uint32_t *tree_start,
                           struct fa_error *error)
{
	step->tree_start = calloc(step->plan->n_entries, sizeof(*step->tree_start));
	if (!step->tree_start)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for trees");
	for (uint32_t i = 0; i < step->plan->n_entries; ++i)
		step->tree_start[i] = tree_start[step->plan->entries[i].item];
	return 0;
}

static int fill_written(struct fa_kv_step *step, struct fa_error *error)
{
	bool writes = false;

	for (uint32_t i = 0; i < step->plan->n_entries; ++i)
		writes = writes || step->plan->entries[i].checkpoint;
	if (!writes)
		return 0;
	for (uint32_t i = 0; i < step->plan->n_groups; ++i)
		if (step->written_words < (step->groups[i].n_states + 63) / 64)
			step->written_words = (step->groups[i].n_states + 63) / 64;
	step->written = calloc((size_t)step->plan->n_entries * step->written_words,
	                       sizeof(*step->written));
	return step->written ? 0 : fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
}

const struct fa_kv_group *fa_kv_step_group(const struct fa_kv_step *step, uint32_t entry)
{
	uint32_t i = 0;

	while (entry >= step->plan->groups[i].end)
		++i;
	return &step->groups[i];
}

static uint64_t *written_word(const struct fa_kv_step *step, uint32_t entry, uint32_t state)
{
	return &step->written[(size_t)entry * step->written_words + state / 64];
}

void fa_kv_step_state_written(struct fa_kv_step *step, uint32_t entry, uint32_t state)
{
	*written_word(step, entry, state) |= 1ull << state % 64;
}

int fa_kv_step_check_states(const struct fa_kv_step *step, struct fa_error *error)
{
	for (uint32_t i = 0; step->written && i < step->plan->n_entries; ++i) {
		const struct fa_pool_step_entry *entry = &step->plan->entries[i];
		const struct fa_kv_group *group = fa_kv_step_group(step, i);

		for (uint32_t state = 0; entry->checkpoint && state < group->n_states; ++state)
			if (!(*written_word(step, i, state) >> state % 64 & 1))
				return fa_fail(error, -EINVAL,
				               "state %" PRIu32
				               " of the checkpoint of item %" PRIu32
				               " was not written; expected all %" PRIu32,
				               state, entry->item, group->n_states);
	}
	return 0;
}

static bool shares_ordered(const struct fa_kv_step *a, const struct fa_kv_step *b)
{
	for (uint32_t i = 0, j = 0; i < a->n_ordered && j < b->n_ordered;) {
		if (a->ordered[i] == b->ordered[j])
			return true;
		if (a->ordered[i] < b->ordered[j])
			++i;
		else
			++j;
	}
	return false;
}

static int find_predecessors(struct fa_kv_step *step, struct fa_error *error)
{
	const struct fa_pool_step *plan = step->plan;
	struct fa_list *pos, *steps = &step->session->kv.steps;
	uint32_t n = 0;

	step->ordered = calloc(plan->n_entries, sizeof(*step->ordered));
	fa_list_for_each(pos, steps)
		++n;
	step->predecessors = calloc(n + 1, sizeof(struct fa_kv_step *));
	if (!step->ordered || !step->predecessors)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	for (uint32_t i = 0; i < plan->n_entries; ++i)
		if (plan->entries[i].ordered)
			step->ordered[step->n_ordered++] = plan->entries[i].sequence;
	qsort(step->ordered, step->n_ordered, sizeof(*step->ordered), fa_kv_step_compare_ids);
	fa_list_for_each(pos, steps) {
		struct fa_kv_step *other = fa_container_of(pos, struct fa_kv_step, link);

		if (shares_ordered(step, other))
			step->predecessors[step->n_predecessors++] = other;
	}
	return 0;
}

/* Charged besides tables: per step, sequence, copied page, page of a checkpoint. */
#define STEP_WORDS ((FA_DEVICE_PLAN_CACHE_BYTES + 512) / sizeof(uint32_t))
#define ENTRY_WORDS 40
#define COPY_WORDS 6
#define CHECKPOINT_PAGE_WORDS 3

static int charge(struct fa_kv_step *step, size_t n_tree, bool trees, struct fa_error *error)
{
	const struct fa_session *session = step->session;
	uint64_t words = n_tree + STEP_WORDS + (uint64_t)step->plan->n_entries * ENTRY_WORDS;

	for (uint32_t i = 0; i < step->plan->n_groups; ++i) {
		const struct fa_pool_step_group *group = &step->plan->groups[i];

		words += 2 * (uint64_t)group->table_entries + group->n_clears +
		         COPY_WORDS * (uint64_t)group->n_copies + fa_kv_step_copy_words(group);
		for (uint32_t j = group->begin; j < group->end; ++j)
			words += CHECKPOINT_PAGE_WORDS * step->plan->entries[j].n_checkpoint_pages;
		if (trees)
			words += group->cu_new[group->end - group->begin];
	}
	return fa_charge_add(&step->charge, session->tenant, FA_RESOURCE_STEP_BYTES,
	                     words * sizeof(uint32_t), error);
}

static int fill(struct fa_kv_step *step, uint32_t n_items, const uint32_t *tree, size_t n_tree,
                const uint32_t *tree_start, struct fa_error *error)
{
	const struct fa_pool_step *plan = step->plan;
	int r;

	r = charge(step, n_tree, tree_start != NULL, error);
	if (r < 0)
		return r;
	step->groups = calloc(plan->n_groups, sizeof(*step->groups));
	step->entry_of_item = calloc(n_items, sizeof(*step->entry_of_item));
	if (!step->groups || !step->entry_of_item)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	step->n_items = n_items;
	for (uint32_t i = 0; i < plan->n_entries; ++i)
		step->entry_of_item[plan->entries[i].item] = i;
	for (uint32_t i = 0; i < plan->n_groups && r == 0; ++i)
		r = fill_group(step, i, error);
	if (r == 0 && tree_start)
		r = fill_tree_start(step, tree_start, error);
	if (r == 0)
		r = fill_tables(step, tree, n_tree, tree_start, error);
	if (r == 0)
		r = fill_written(step, error);
	if (r == 0)
		r = find_predecessors(step, error);
	/* Only a read may be planned on an aborting step. */
	for (uint32_t i = 0; step->id && i < step->n_predecessors && r == 0; ++i)
		if (!step->predecessors[i]->closed &&
		    (step->predecessors[i]->aborting ||
		     (step->predecessors[i]->id && step->predecessors[i]->abandoned)))
			r = fa_fail(error, -EBUSY,
			            "step %" PRIu32
			            " of the same sequence is being aborted; wait for its end",
			            step->predecessors[i]->id);
	return r ? r : fa_kv_step_prepare(step, error);
}

int fa_kv_step_new(struct fa_session *session, const struct fa_actor *actor, uint32_t id,
                   const struct fa_pool_step_item *items, uint32_t n_items, const uint32_t *tree,
                   size_t n_tree, const uint32_t *tree_start, struct fa_error *error,
                   struct fa_kv_step **ret_step)
{
	struct fa_kv *kv = session->context->kv;
	const uint64_t now_ns = fa_kv_now_ns();
	struct fa_kv_step *step;
	uint64_t number;
	int r;

	r = check_tokens(items, n_items, error);
	if (r == 0 && tree_start)
		r = check_trees(items, n_items, n_tree, tree_start, error);
	if (r < 0)
		return r;
	step = fa_new(struct fa_kv_step);
	if (!step)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	step->session = session;
	step->id = id;
	fa_list_init(&step->link);
	fa_list_init(&step->requests);
	/* The step may need quarantined pages. */
	fa_kv_quarantine_end(kv);
	number = kv->step_number_offset + now_ns;
	if (number <= kv->last_step_number)
		number = kv->last_step_number + 1;
	r = fa_pool_step_plan(kv->pool, actor, items, n_items, number, now_ns, error, &step->plan);
	if (r == -ENOMEM && kv->grow_device_lost)
		r = fa_fail(error, -ENODEV, "the device was lost when the pool had to grow");
	if (r < 0) {
		free(step);
		return r;
	}
	kv->last_step_number = number;
	r = fill(step, n_items, tree, n_tree, tree_start, error);
	if (r < 0) {
		fa_kv_step_abandon(step);
		return r;
	}
	fa_list_append(&session->kv.steps, &step->link);
	session->kv.n_steps += id != 0;
	*ret_step = step;
	return 0;
}
