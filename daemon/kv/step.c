#include "daemon/kv/step.h"

#include "common/cleanup.h"
#include "daemon/kv/store.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ---- life */

static void forget(struct fa_kv_step *step)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &step->session->kv.steps) {
		struct fa_kv_step *other = fa_container_of(pos, struct fa_kv_step, link);

		for (uint32_t i = 0; i < other->n_before; ++i)
			if (other->before[i] == step) {
				other->before[i] = other->before[--other->n_before];
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
	forget(step);
	fa_pool_step_free(step->plan);
	free(step->groups);
	free(step->places);
	free(step->tree_start);
	free(step->host_tables);
	if (step->tables)
		ops->tables_free(step->session->context->device, step->tables);
	free(step->ordered);
	free(step->before);
	fa_charge_release(&step->charge);
	free(step);
}

static void end_badly(struct fa_kv_step *step)
{
	struct fa_pool *pool = step->session->context->kv->pool;
	uint32_t n;

	if (step->over)
		return;
	step->over = true;
	if (!step->suspect) {
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

static void settle(struct fa_kv_step *step)
{
	if (!fa_list_empty(&step->works) || (!step->over && !step->doomed))
		return;
	end_badly(step);
	step_free(step);
}

void fa_kv_step_doom(struct fa_kv_step *step)
{
	step->doomed = true;
	settle(step);
}

void fa_kv_step_doom_all(struct fa_session *session)
{
	struct fa_list *pos, *tmp;

	fa_list_for_each_safe(pos, tmp, &session->kv.steps)
		fa_kv_step_doom(fa_container_of(pos, struct fa_kv_step, link));
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

/* ---- requests */

/* Behind the last of the step's in each other stream that has to do with @layer. */
static int wait_for(struct fa_request *work, const struct fa_kv_step *step, uint32_t layer,
                    struct fa_error *error)
{
	struct fa_list *pos;
	int r;

	fa_list_for_each(pos, &step->works) {
		const struct fa_request *other = fa_container_of(pos, struct fa_request, step_link);

		if (other->layer != layer || other == step->end)
			continue;
		r = fa_request_wait(work, other->stream, other->job.value, error);
		if (r < 0)
			return r;
	}
	return 0;
}

int fa_kv_step_add(struct fa_kv_step *step, struct fa_request *work, uint32_t layer,
                   struct fa_error *error)
{
	int r = 0;

	if (step->ends)
		return fa_fail(error, -EINVAL, "step %" PRIu32 " was asked to end", step->id);
	if (step->failed)
		return fa_fail(error, -ECANCELED,
		               "a request of step %" PRIu32 " has failed: it can only be aborted",
		               step->id);
	if (step->prepared)
		r = fa_request_wait(work, FA_SESSION_STREAM_OWN, step->prepared, error);
	if (r == 0)
		r = wait_for(work, step, layer, error);
	for (uint32_t i = 0; i < step->n_before && r == 0; ++i) {
		if (step->before[i]->prepared)
			r = fa_request_wait(work, FA_SESSION_STREAM_OWN, step->before[i]->prepared,
			                    error);
		if (r == 0)
			r = wait_for(work, step->before[i], layer, error);
	}
	if (r < 0)
		return r;
	work->step = step;
	work->layer = layer;
	fa_list_append(&step->works, &work->step_link);
	return 0;
}

void fa_kv_step_work_ended(struct fa_request *work)
{
	struct fa_kv_step *step = work->step;

	if (!step || fa_list_empty(&work->step_link))
		return;
	fa_list_remove(&work->step_link);
	if (work->job.status < 0)
		step->failed = true;
	if (work->job.status == -ENODEV && work->job.started_ns)
		step->suspect = true;
	settle(step);
}

void fa_kv_step_work_refused(struct fa_request *work)
{
	struct fa_kv_step *step = fa_steal_ptr(work->step);

	if (!step)
		return;
	fa_list_remove(&work->step_link);
	step->failed = true;
	settle(step);
}

/* ---- preparation */

struct prepare {
	struct fa_request work; /* first */
	struct fa_paged_request *requests;
	uint32_t *vectors; /* of the copies */
};

static void prepare_release(struct fa_request *work)
{
	struct prepare *prepare = fa_container_of(work, struct prepare, work);
	struct fa_context *context = work->session->context;

	context->ops->paged_release(context->device, &work->job.work);
	free(fa_steal_ptr(prepare->requests));
	free(fa_steal_ptr(prepare->vectors));
}

static void prepare_ended(struct fa_request *work)
{
	if (work->job.status < 0)
		fa_request_release_held(work->session, work->step);
	fa_kv_step_work_ended(work);
}

static const struct fa_request_kind prepare_kind = {
	.bytes = sizeof(struct prepare),
	.release = prepare_release,
	.ended = prepare_ended,
};

/* Each is moved on its own, as moves within one are done one after another. */
#define PIECE_TOKENS 8

static uint32_t copies_pieces(const struct fa_pool_step_group *group)
{
	return group->n_copies * (group->layout.page_tokens / PIECE_TOKENS);
}

/* As moves within sequences of two pages, from the second to the first. Returns how many
 * words of @at are used. */
static size_t fill_copies(const struct fa_pool_step_group *group, const uint32_t *table,
                          uint32_t *at, struct fa_paged_move *move)
{
	uint32_t n_max = copies_pieces(group), page_tokens = group->layout.page_tokens;
	uint32_t *cu_moves = at, *to = cu_moves + n_max + 1, *table_start = to + n_max;
	uint32_t *from = table_start + n_max, n = 0, n_tokens = 0;

	for (uint32_t i = 0; i < group->n_copies; ++i)
		for (uint32_t j = 0; j < group->copies_tokens[i]; ++j) {
			if (j % PIECE_TOKENS == 0) {
				cu_moves[n] = n_tokens;
				to[n] = j;
				table_start[n++] = 2 * i;
			}
			from[n_tokens++] = page_tokens + j;
		}
	cu_moves[n] = n_tokens;
	move->batch = (int32_t)n;
	move->cu_moves = cu_moves;
	move->from = from;
	move->to = to;
	move->table = table;
	move->table_start = table_start;
	move->table_entries = 2 * group->n_copies;
	return (size_t)(from + n_tokens - at);
}

/* At most so many words are needed by fill_copies(). */
static size_t copies_words(const struct fa_pool_step_group *group)
{
	if (!group->n_copies)
		return 0;
	return 1 + 3 * (size_t)copies_pieces(group) +
	       group->n_copies * (size_t)group->layout.page_tokens;
}

static void fill_requests(const struct fa_kv_step *step, struct prepare *prepare)
{
	uint32_t *vectors = prepare->vectors;
	struct fa_device_work *work = &prepare->work.job.work;

	for (uint32_t i = 0; i < step->plan->n_groups; ++i) {
		const struct fa_pool_step_group *group = &step->plan->groups[i];

		if (group->n_clears)
			work->paged[work->n_paged++] = (struct fa_paged_request){
				.op = FA_PAGED_CLEAR,
				.pages = { .cache = &step->groups[i].cache,
				           .count = (int32_t)group->n_clears,
				           .to = group->clears },
			};
		if (group->n_copies) {
			work->paged[work->n_paged] = (struct fa_paged_request){
				.op = FA_PAGED_MOVE,
				.move = { .cache = &step->groups[i].cache },
			};
			vectors += fill_copies(group, step->groups[i].copies, vectors,
			                       &work->paged[work->n_paged++].move);
		}
	}
}

/* Ids of sequences. */
static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Whether a page is copied of a sequence that a step before this one is part of. What others write
 * to is behind the tokens that are copied. */
static bool copies_what_is_written(const struct fa_kv_step *step)
{
	for (uint32_t i = 0; i < step->plan->n_entries; ++i) {
		const struct fa_pool_step_entry *entry = &step->plan->entries[i];

		for (uint32_t j = 0; entry->copies && j < step->n_before; ++j)
			if (bsearch(&entry->sequence, step->before[j]->ordered,
			            step->before[j]->n_ordered, sizeof(entry->sequence), compare))
				return true;
	}
	return false;
}

/* Has what needs it cleared and copied. */
static int prepare(struct fa_kv_step *step, struct fa_error *error)
{
	struct fa_session *session = step->session;
	struct fa_device_work *device_work;
	uint64_t n_clears = 0, n_copies = 0;
	struct prepare *prepare;
	size_t n_words = 0;
	struct fa_request *work;
	int r = 0;

	for (uint32_t i = 0; i < step->plan->n_groups; ++i) {
		n_clears += step->plan->groups[i].n_clears;
		n_copies += step->plan->groups[i].n_copies;
		n_words += copies_words(&step->plan->groups[i]);
	}
	if (!n_clears && !n_copies)
		return 0;
	if (n_copies && copies_what_is_written(step))
		return fa_fail(error, -EBUSY,
		               "a page that a step in flight writes to is shared with another "
		               "sequence, and is to be copied: end that step first");
	if (!session->streams[FA_SESSION_STREAM_OWN].stream)
		r = fa_session_stream_new(session, FA_SESSION_STREAM_OWN, 1);
	if (r < 0)
		return fa_fail(error, r, "a stream cannot be made: %s", strerror(-r));

	work = fa_request_new(session, &prepare_kind);
	if (!work)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	prepare = fa_container_of(work, struct prepare, work);
	device_work = &work->job.work;
	device_work->op = FA_DEVICE_PAGED;
	device_work->tables = step->tables;
	device_work->paged = prepare->requests = calloc(2 * (size_t)step->plan->n_groups,
	                                                sizeof(*prepare->requests));
	prepare->vectors = calloc(n_words + 1, sizeof(*prepare->vectors));
	if (!device_work->paged || !prepare->vectors)
		r = fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	if (r == 0) {
		fill_requests(step, prepare);
		r = fa_request_prepare(work, error);
	}
	if (r < 0) {
		fa_request_free(work);
		return r;
	}
	work->step = step;
	work->layer = UINT32_MAX; /* others come behind it by step.prepared */
	fa_list_append(&step->works, &work->step_link);
	step->prepared = session->streams[FA_SESSION_STREAM_OWN].next_value;
	fa_request_submit_own(work);
	return 0;
}

/* ---- making one */

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

/* Room for @n words that kernels read. */
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

/* The pool's tables stay where they are unless the device wants them elsewhere. */
static int fill_tables(struct fa_kv_step *step, const uint32_t *tree, size_t n_tree,
                       const uint32_t *tree_start, struct fa_error *error)
{
	const bool moves = step->session->context->ops->tables_new != NULL;
	const struct fa_pool_step *plan = step->plan;
	uint32_t *words = NULL;
	size_t n = n_tree;
	int r;

	for (uint32_t i = 0; i < plan->n_groups; ++i) {
		n += tree_start ? new_tokens(&step->groups[i]) : 0;
		n += moves ? plan->groups[i].table_entries : 0;
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

		if (moves && group->step.table_entries) {
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

/* Where the masks of each entry begin. */
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

/* Finds the steps that this one is planned on. */
static int find_before(struct fa_kv_step *step, struct fa_error *error)
{
	const struct fa_pool_step *plan = step->plan;
	struct fa_list *pos, *steps = &step->session->kv.steps;
	uint32_t n = 0;

	step->ordered = calloc(plan->n_entries, sizeof(*step->ordered));
	fa_list_for_each(pos, steps)
		++n;
	step->before = calloc(n + 1, sizeof(struct fa_kv_step *));
	if (!step->ordered || !step->before)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	for (uint32_t i = 0; i < plan->n_entries; ++i)
		if (plan->entries[i].ordered)
			step->ordered[step->n_ordered++] = plan->entries[i].sequence;
	qsort(step->ordered, step->n_ordered, sizeof(*step->ordered), compare);
	fa_list_for_each(pos, steps) {
		struct fa_kv_step *other = fa_container_of(pos, struct fa_kv_step, link);

		if (shares_ordered(step, other))
			step->before[step->n_before++] = other;
	}
	return 0;
}

/* Of every step, beside its tables: what its layers have in common, and what it takes to keep
 * that apart from others'. */
#define STEP_WORDS ((FA_DEVICE_PLAN_CACHE_BYTES + 256) / sizeof(uint32_t))
/* Of each of its sequences, in the plan and here. */
#define ENTRY_WORDS 40
/* Of each page that is copied, which is in the lists of both, besides copies_words(). */
#define COPY_WORDS 6

static int charge(struct fa_kv_step *step, size_t n_tree, bool trees, struct fa_error *error)
{
	const struct fa_session *session = step->session;
	uint64_t words = n_tree + STEP_WORDS + (uint64_t)step->plan->n_entries * ENTRY_WORDS;

	for (uint32_t i = 0; i < step->plan->n_groups; ++i) {
		const struct fa_pool_step_group *group = &step->plan->groups[i];

		words += 2 * (uint64_t)group->table_entries + group->n_clears +
		         COPY_WORDS * (uint64_t)group->n_copies + copies_words(group);
		/* Of every new token, where it is. */
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
	step->places = calloc(n_items, sizeof(*step->places));
	if (!step->groups || !step->places)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	step->n_items = n_items;
	for (uint32_t i = 0; i < plan->n_entries; ++i)
		step->places[plan->entries[i].item] = i;
	for (uint32_t i = 0; i < plan->n_groups && r == 0; ++i)
		r = fill_group(step, i, error);
	if (r == 0 && tree_start)
		r = fill_tree_start(step, tree_start, error);
	if (r == 0)
		r = fill_tables(step, tree, n_tree, tree_start, error);
	if (r == 0)
		r = find_before(step, error);
	/* What only reads can do so behind it. */
	for (uint32_t i = 0; step->id && i < step->n_before && r == 0; ++i)
		if (!step->before[i]->over &&
		    (step->before[i]->aborts || (step->before[i]->id && step->before[i]->doomed)))
			r = fa_fail(error, -EBUSY,
			            "step %" PRIu32
			            " of the same sequence is being aborted; wait for its end",
			            step->before[i]->id);
	return r ? r : prepare(step, error);
}

int fa_kv_step_new(struct fa_session *session, const struct fa_actor *actor, uint32_t id,
                   const struct fa_pool_step_item *items, uint32_t n_items, const uint32_t *tree,
                   size_t n_tree, const uint32_t *tree_start, struct fa_error *error,
                   struct fa_kv_step **ret_step)
{
	struct fa_kv *kv = session->context->kv;
	struct fa_kv_step *step;
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
	fa_list_init(&step->works);
	/* Not a tick later than need be: it may want those pages. */
	fa_kv_quarantine_end(kv);
	r = fa_pool_step_plan(kv->pool, actor, items, n_items, kv->last_step + 1, fa_kv_now_ns(),
	                      error, &step->plan);
	if (r == -ENOMEM && kv->lost)
		r = fa_fail(error, -ENODEV, "the device was lost when the pool had to grow");
	if (r < 0) {
		free(step);
		return r;
	}
	++kv->last_step;
	r = fill(step, n_items, tree, n_tree, tree_start, error);
	if (r < 0) {
		fa_kv_step_doom(step);
		return r;
	}
	fa_list_append(&session->kv.steps, &step->link);
	session->kv.n_steps += id != 0;
	*ret_step = step;
	return 0;
}
