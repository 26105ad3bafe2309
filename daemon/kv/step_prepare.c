#include "daemon/kv/step_prepare.h"

#include "common/cleanup.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct prepare {
	struct fa_request request; /* must be first */
	struct fa_paged_request *paged;
	uint32_t *vectors;
};

static void prepare_release(struct fa_request *request)
{
	struct prepare *prepare = fa_container_of(request, struct prepare, request);
	struct fa_context *context = request->session->context;

	context->ops->paged_release(context->device, &request->job.work);
	free(fa_steal_ptr(prepare->paged));
	free(fa_steal_ptr(prepare->vectors));
}

static void prepare_ended(struct fa_request *request)
{
	if (request->job.status < 0)
		fa_request_unblock(request->session, request->step);
	fa_kv_step_request_ended(request);
}

static const struct fa_request_kind prepare_kind = {
	.name = "prepare pages",
	.bytes = sizeof(struct prepare),
	.release = prepare_release,
	.ended = prepare_ended,
};

/* Tokens of one move are moved one by one, so copies are split. */
#define PIECE_TOKENS 8

static uint32_t copies_pieces(const struct fa_pool_step_group *group)
{
	return group->n_copies * (group->layout.page_tokens / PIECE_TOKENS);
}

/* A copy is a move in a sequence of two pages. Returns the words used. */
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

size_t fa_kv_step_copy_words(const struct fa_pool_step_group *group)
{
	if (!group->n_copies)
		return 0;
	return 1 + 3 * (size_t)copies_pieces(group) +
	       group->n_copies * (size_t)group->layout.page_tokens;
}

static void fill_requests(const struct fa_kv_step *step, struct prepare *prepare)
{
	uint32_t *vectors = prepare->vectors;
	struct fa_device_work *device_work = &prepare->request.job.work;

	for (uint32_t i = 0; i < step->plan->n_groups; ++i) {
		const struct fa_pool_step_group *group = &step->plan->groups[i];

		if (group->n_clears)
			device_work->paged[device_work->n_paged++] = (struct fa_paged_request){
				.op = FA_PAGED_CLEAR,
				.pages = { .cache = &step->groups[i].cache,
				           .count = (int32_t)group->n_clears,
				           .to = group->clears },
			};
		if (group->n_copies) {
			device_work->paged[device_work->n_paged] = (struct fa_paged_request){
				.op = FA_PAGED_MOVE,
				.move = { .cache = &step->groups[i].cache },
			};
			vectors += fill_copies(group, step->groups[i].copies, vectors,
			                       &device_work->paged[device_work->n_paged++].move);
		}
	}
}

int fa_kv_step_compare_ids(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static bool copies_page_in_use(const struct fa_kv_step *step)
{
	for (uint32_t i = 0; i < step->plan->n_entries; ++i) {
		const struct fa_pool_step_entry *entry = &step->plan->entries[i];

		for (uint32_t j = 0; entry->copies && j < step->n_predecessors; ++j)
			if (bsearch(&entry->sequence, step->predecessors[j]->ordered,
			            step->predecessors[j]->n_ordered, sizeof(entry->sequence),
			            fa_kv_step_compare_ids))
				return true;
	}
	return false;
}

int fa_kv_step_prepare(struct fa_kv_step *step, struct fa_error *error)
{
	struct fa_session *session = step->session;
	struct fa_device_work *device_work;
	uint64_t n_clears = 0, n_copies = 0;
	struct prepare *prepare;
	size_t n_words = 0;
	struct fa_request *request;
	int r = 0;

	for (uint32_t i = 0; i < step->plan->n_groups; ++i) {
		n_clears += step->plan->groups[i].n_clears;
		n_copies += step->plan->groups[i].n_copies;
		n_words += fa_kv_step_copy_words(&step->plan->groups[i]);
	}
	if (!n_clears && !n_copies)
		return 0;
	if (n_copies && copies_page_in_use(step))
		return fa_fail(error, -EBUSY,
		               "a page that a step in flight writes to is shared with another "
		               "sequence, and is to be copied: end that step first");
	if (!session->streams[FA_SESSION_STREAM_OWN].stream)
		r = fa_session_stream_new(session, FA_SESSION_STREAM_OWN, 1);
	if (r < 0)
		return fa_fail(error, r, "a stream cannot be made: %s", strerror(-r));

	request = fa_request_new(session, &prepare_kind);
	if (!request)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	prepare = fa_container_of(request, struct prepare, request);
	device_work = &request->job.work;
	device_work->op = FA_DEVICE_PAGED;
	device_work->tables = step->tables;
	device_work->paged = prepare->paged = calloc(2 * (size_t)step->plan->n_groups,
	                                             sizeof(*prepare->paged));
	prepare->vectors = calloc(n_words + 1, sizeof(*prepare->vectors));
	if (!device_work->paged || !prepare->vectors)
		r = fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	if (r == 0) {
		fill_requests(step, prepare);
		r = fa_request_prepare(request, error);
	}
	if (r < 0) {
		fa_request_free(request);
		return r;
	}
	request->step = step;
	request->layer = UINT32_MAX; /* requests wait for step.prepare_value instead */
	fa_list_append(&step->requests, &request->step_link);
	step->prepare_value = session->streams[FA_SESSION_STREAM_OWN].next_value;
	fa_request_submit_own(request);
	return 0;
}
