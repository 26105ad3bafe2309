/* Begin, commit, abort. A step ends with its connection; its handle then only fails. */
#include "client/call.h"
#include "client/cancel.h"
#include "client/gates.h"
#include "client/kv.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/result_wait.h"
#include "client/results.h"
#include "client/step_state.h"
#include "client/struct_size.h"
#include "client/submit.h"
#include "common/cleanup.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>

_Static_assert(sizeof(struct fa_step_item) == sizeof(struct fa_wire_step_item) &&
                       offsetof(struct fa_step_item, n_new) ==
                               offsetof(struct fa_wire_step_item, n_new) &&
                       offsetof(struct fa_step_item, flags) ==
                               offsetof(struct fa_wire_step_item, flags) &&
                       FA_STEP_CHECKPOINT == FA_WIRE_ITEM_CHECKPOINT,
               "items travel as they are");

/* Steps begin in this stream, which every client has. */
#define BEGIN_STREAM 0

/* ---- abandoned steps */

/* Consumes @step. If max_requests do not allow the abort in time, the next fa_step_begin() does
 * it. */
static int abort_step(struct fa_step *step, uint64_t until_ns, uint64_t *ret_value)
{
	struct fa_client_request request = { .message.type = FA_WIRE_STEP_END, .step = step };
	int r;

	request.message.step_end.step = step->id;
	r = fa_request_send(step->client, &request, until_ns, ret_value);
	if (r < 0 && fa_step_is_open(step)) {
		fa_list_append(&step->client->abandoned, &step->link);
		return r;
	}
	fa_step_unref(step);
	return 0;
}

/* The next step would conflict with aborts in progress. @value 0: none. */
static void wait_ended(struct fa_client *client, uint64_t value, uint64_t until_ns)
{
	const uint64_t now_ns = fa_now_ns();
	uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;

	if (until_ns == FA_NS_NEVER)
		left_ns = FA_NS_NEVER;
	if (value)
		(void)fa_result_wait(client, 0, value, left_ns, NULL);
}

static int abort_abandoned(struct fa_client *client)
{
	const uint64_t until_ns = fa_deadline_ns(client->reply_ns);
	uint64_t value = 0;
	int r = 0;

	while (client->aborting_abandoned)
		pthread_cond_wait(&client->changed, &client->lock);
	if (fa_list_empty(&client->abandoned))
		return 0;
	client->aborting_abandoned = true;
	while (r == 0 && !fa_list_empty(&client->abandoned) && client->state != FA_CLIENT_LOST) {
		struct fa_step *step = fa_container_of(client->abandoned.next, struct fa_step,
		                                       link);

		fa_list_remove(&step->link);
		r = abort_step(step, until_ns, &value);
	}
	wait_ended(client, value, until_ns);
	client->aborting_abandoned = false;
	pthread_cond_broadcast(&client->changed);
	return r;
}

/* ---- beginning */

static int count_tree(const struct fa_step_options *options, size_t *ret_n_tree)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < options->n_items; ++i) {
		uint64_t rows = options->items[i].n_new, words = (rows + 31) / 32;

		if (options->tree_start[i] == FA_STEP_NO_TREE)
			continue;
		if (rows > FA_WIRE_TOKENS_MAX ||
		    options->tree_start[i] + rows * words > FA_WIRE_TOKENS_MAX)
			return fa_error_set(
				-EINVAL,
				"item %u has a tree of %llu tokens from word %u on; all "
				"trees together have at most %u words",
				i, (unsigned long long)rows, options->tree_start[i],
				FA_WIRE_TOKENS_MAX);
		if (options->tree_start[i] + rows * words > n)
			n = options->tree_start[i] + rows * words;
	}
	*ret_n_tree = (size_t)n;
	return 0;
}

static int fill_begin(const struct fa_step_options *options, struct fa_wire_step_begin *wire)
{
	int r;

	if (!options->n_items || !options->items)
		return fa_error_set(-EINVAL, "the step has no items");
	if (options->n_items > FA_WIRE_STEP_MAX)
		return fa_error_set(-EINVAL, "the step has %u items; at most %u are possible",
		                    options->n_items, FA_WIRE_STEP_MAX);
	for (uint32_t i = 0; i < options->n_items; ++i)
		if (options->items[i].flags & ~FA_STEP_CHECKPOINT)
			return fa_error_set(-EINVAL,
			                    "items[%u].flags is %#x; expected 0 or "
			                    "FA_STEP_CHECKPOINT",
			                    i, options->items[i].flags);
	if (!options->tree != !options->tree_start)
		return fa_error_set(-EINVAL, "only one of tree and tree_start is given");
	wire->items = (const struct fa_wire_step_item *)options->items;
	wire->n_items = options->n_items;
	if (!options->tree)
		return 0;
	r = count_tree(options, &wire->n_tree);
	if (r < 0 || !wire->n_tree)
		return r;
	wire->tree = options->tree;
	wire->tree_start = options->tree_start;
	wire->n_tree_start = options->n_items;
	return 0;
}

/* The request finishes at once only with nothing in flight. */
static bool can_begin_by_ring(const struct fa_client *client)
{
	const struct fa_client_stream *stream = &client->streams[BEGIN_STREAM];

	return fa_step_begins_by_ring(client) && stream->state == FA_STREAM_OPEN &&
	       client->in_flight + client->sending < client->max_requests &&
	       (stream->finished == stream->submitted ||
	        fa_result_probe(client, BEGIN_STREAM, stream->submitted, true));
}

/* With the mutex held. Returns 1 if a packet has to be sent: the connection was lost, and any step
 * with it, or its ring cannot be used. */
static int begin_by_ring(struct fa_client *client, const struct fa_wire_message *message,
                         struct fa_step *step)
{
	struct fa_client_request request;
	uint32_t epoch;
	uint64_t value;
	int r;

	if (!can_begin_by_ring(client))
		return 1;
	request.message = *message;
	request.message.step_begin.stream = BEGIN_STREAM;
	request.n_tensors = request.n_more = 0;
	request.step = NULL;
	if (fa_request_send(client, &request, 0, &value) < 0)
		return 1;
	epoch = client->epoch;
	r = fa_result_wait_number(client, BEGIN_STREAM, value, client->reply_ns, &step->number);
	if (r == -EAGAIN && client->streams[BEGIN_STREAM].finished < value)
		return fa_call_timed_out(client, FA_WIRE_STEP_BEGIN);
	if (client->state == FA_CLIENT_LOST || client->epoch != epoch)
		return client->lost_code == -ECONNRESET ? 1 : fa_client_lost_error(client);
	if (r == 0 && !step->number)
		return fa_error_set(-EPROTO, "the daemon did not say the number of step %" PRIu32,
		                    step->id);
	step->epoch = epoch;
	return fa_kv_explain(client, r);
}

static void step_unrefp(struct fa_step **step)
{
	fa_step_unref(*step);
}

int fa_step_begin(struct fa_client *handle, const struct fa_step_options *options,
                  struct fa_step **ret_step)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_STEP_BEGIN };
	struct fa_client_call call = { .expect = FA_WIRE_STEP_REPLY };
	_fa_cleanup_(step_unrefp) struct fa_step *step = NULL;
	struct fa_step_options padded;
	const void *o;
	int r;

	r = fa_struct_in("fa_step_options", options, &padded, sizeof(padded), &o);
	if (r < 0)
		return r;
	options = o;
	if (!ret_step)
		return fa_error_set(-EINVAL, "ret_step is NULL");
	r = fill_begin(options, &message.step_begin);
	if (r < 0)
		return r;
	r = fa_step_new(client, options, &step);
	if (r < 0)
		return r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	/* Ids may wrap around, skipping 0: no step in progress is that old. */
	step->id = ++client->last_step ? client->last_step : ++client->last_step;
	message.step_begin.step = step->id;
	for (uint32_t i = 0; i < step->n_items; ++i)
		step->parts[i].cache = fa_kv_cache_of(client, step->parts[i].sequence);
	r = abort_abandoned(client);
	if (r == 0)
		r = begin_by_ring(client, &message, step);
	fa_client_leave(client);
	if (r > 0) {
		r = fa_kv_call(client, &message, true, &call);
		step->number = call.step.number;
		step->epoch = call.epoch;
	}
	if (r < 0)
		return r;
	pthread_mutex_lock(&client->lock);
	fa_list_append(&client->steps, &step->link);
	fa_client_leave(client);
	*ret_step = fa_steal_ptr(step)->handle;
	return 0;
}

uint64_t fa_step_number(const struct fa_step *handle)
{
	const struct fa_step *step = fa_step_of(handle);

	return step ? step->number : 0;
}

/* ---- ending */

static int fill_keep(const struct fa_step *step, const struct fa_step_commit *commit,
                     struct fa_wire_step_end *wire)
{
	if (!commit->cu_keep) {
		if (commit->keep)
			return fa_error_set(-EINVAL, "keep is given, but cu_keep is NULL");
		return 0;
	}
	for (uint32_t i = 0; i < step->n_items; ++i)
		if (commit->cu_keep[i] > commit->cu_keep[i + 1])
			return fa_error_set(-EINVAL, "cu_keep[%u] is %u, and the entry before %u",
			                    i + 1, commit->cu_keep[i + 1], commit->cu_keep[i]);
	wire->n_keep = commit->cu_keep[step->n_items];
	if (commit->cu_keep[0] || wire->n_keep > FA_WIRE_TOKENS_MAX ||
	    (wire->n_keep && !commit->keep))
		return fa_error_set(-EINVAL,
		                    "keep is %p, and cu_keep goes from %u to %zu; expected 0 to at "
		                    "most %u",
		                    (const void *)commit->keep, commit->cu_keep[0], wire->n_keep,
		                    FA_WIRE_TOKENS_MAX);
	wire->keep = wire->n_keep ? commit->keep : NULL;
	wire->cu_keep = commit->cu_keep;
	wire->n_cu_keep = (size_t)step->n_items + 1;
	return 0;
}

int fa_step_commit(struct fa_step *handle, const struct fa_step_commit *commit,
                   struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_step *step = fa_step_of(handle);
	struct fa_client_request request = { .message.type = FA_WIRE_STEP_END, .step = step };
	struct fa_wire_step_end *wire = &request.message.step_end;
	struct fa_step_commit padded = { .size = sizeof(padded) };
	const void *c = &padded;
	int r;

	if (!step)
		return fa_error_set(-EINVAL, "the step is NULL, or was freed");
	if (commit) {
		r = fa_struct_in("fa_step_commit", commit, &padded, sizeof(padded), &c);
		if (r < 0)
			return r;
	}
	commit = c;
	r = fill_keep(step, commit, wire);
	if (r < 0)
		return r;
	wire->stream = commit->stream;
	wire->step = step->id;
	wire->flags = FA_WIRE_STEP_COMMIT;
	r = fa_request_gates(&request, commit->gates);
	if (r < 0)
		return r;
	request.message.timeout_ns = commit->timeout_ns;
	return fa_request_submit(step->client, &request, ret_ticket);
}

int fa_step_abort(struct fa_step *handle, uint32_t stream, struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_step *step = fa_step_of(handle);
	struct fa_client_request request = { .message = { .type = FA_WIRE_STEP_END },
		                             .step = step };

	if (!step)
		return fa_error_set(-EINVAL, "the step is NULL, or was freed");
	request.message.step_end.stream = stream;
	request.message.step_end.step = step->id;
	return fa_request_submit(step->client, &request, ret_ticket);
}

struct fa_step *fa_step_free(struct fa_step *handle)
{
	fa_uncancelled();
	struct fa_step *step = fa_handle_take(FA_HANDLE_STEP, handle);
	struct fa_client *client;
	uint64_t value = 0;

	if (!step)
		return NULL;
	client = step->client;
	/* In a child of fork() the step is the parent's, and lists may be inconsistent. */
	if (fa_client_forked(client)) {
		if (!pthread_mutex_trylock(&client->lock)) {
			fa_step_unref(step);
			pthread_mutex_unlock(&client->lock);
		}
		return NULL;
	}
	(void)fa_client_enter(client);
	fa_list_remove(&step->link);
	if (fa_step_is_open(step)) {
		const uint64_t until_ns = fa_deadline_ns(client->reply_ns);

		(void)abort_step(step, until_ns, &value);
		wait_ended(client, value, until_ns);
	} else {
		fa_step_unref(step);
	}
	fa_client_leave(client);
	return NULL;
}
