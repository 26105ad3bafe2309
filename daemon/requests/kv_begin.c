/*
 * StepBegin: plans a step when it is read. A packet is answered by StepReply. From a ring it is a
 * request of a stream, whose record has the step's number.
 */
#include "daemon/requests/kv.h"

#include "common/cleanup.h"
#include "daemon/kv/step.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>

_Static_assert(FA_WIRE_STEP_MAX <= FA_POOL_STEP_SEQUENCES_MAX, "the pool can plan it");

struct begin {
	struct fa_request request; /* must be first */
	uint32_t step;
};

static int check(struct fa_session *session, const struct fa_wire_step_begin *m,
                 struct fa_error *error)
{
	uint64_t max = session->context->config.limits.session_steps;
	struct fa_kv_step *step;

	if (session->context->state != FA_DAEMON_RUNNING)
		return fa_fail(error, -ESHUTDOWN, "the daemon is stopping");
	if (!m->step)
		return fa_fail(error, -EINVAL, "step is 0; expected an id of at least 1");
	if (fa_kv_step_find(session, m->step, NULL, &step) == 0)
		return fa_fail(error, -EEXIST, "step %" PRIu32 " is in flight already", m->step);
	if (session->kv.n_steps >= max)
		return fa_fail(error, -EDQUOT,
		               "1 more would exceed the limit session_steps, which is %" PRIu64
		               " in flight for a session",
		               max);
	if (m->n_tree_start && m->n_tree_start != m->n_items)
		return fa_fail(error, -EINVAL,
		               "tree_start has %zu entries; expected %zu, one an item",
		               m->n_tree_start, m->n_items);
	if (m->n_tree && !m->n_tree_start)
		return fa_fail(error, -EINVAL,
		               "tree came without tree_start; expected one entry an item");
	return 0;
}

static int plan(struct fa_session *session, const struct fa_wire_step_begin *m,
                struct fa_error *error, struct fa_kv_step **ret_step)
{
	_fa_cleanup_(fa_freep) struct fa_pool_step_item *items = NULL;
	const struct fa_actor *actor = NULL;
	int r;

	r = fa_kv_actor(session, &actor, error);
	if (r == 0)
		r = check(session, m, error);
	if (r < 0)
		return r;
	items = calloc(m->n_items + 1, sizeof(*items));
	if (!items)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a step");
	for (size_t i = 0; i < m->n_items; ++i) {
		if (m->items[i].flags & ~FA_WIRE_ITEM_CHECKPOINT)
			return fa_fail(error, -EINVAL,
			               "items[%zu].flags is %#" PRIx32
			               "; expected 0, or %#x, checkpoint",
			               i, m->items[i].flags, FA_WIRE_ITEM_CHECKPOINT);
		items[i] = (struct fa_pool_step_item){
			.sequence = m->items[i].sequence,
			.n_tokens = m->items[i].n_new,
			.checkpoint = m->items[i].flags & FA_WIRE_ITEM_CHECKPOINT,
		};
	}
	return fa_kv_step_new(session, actor, m->step, items, (uint32_t)m->n_items, m->tree,
	                      m->n_tree, m->n_tree_start ? m->tree_start : NULL, error, ret_step);
}

static int check_packet(const struct fa_wire_message *message, struct fa_error *error)
{
	const struct fa_wire_step_begin *m = &message->step_begin;

	if (m->stream || m->value)
		return fa_fail(error, -EINVAL,
		               "stream is %" PRIu32 ", value %" PRIu64
		               "; expected 0, as the message is a packet",
		               m->stream, m->value);
	if (message->n_waits || message->n_signals)
		return fa_fail(error, -EINVAL,
		               "StepBegin came with gates, which only requests of streams have");
	return 0;
}

static int begin_packet(struct fa_call *call, struct fa_error *error)
{
	struct fa_wire_message reply;
	struct fa_kv_step *step;
	int r;

	r = check_packet(call->message, error);
	if (r == 0)
		r = plan(call->session, &call->message->step_begin, error, &step);
	if (r < 0)
		return r;
	reply = (struct fa_wire_message){
		.id = call->message->id,
		.type = FA_WIRE_STEP_REPLY,
		.step_reply = { .step = step->id, .number = step->plan->number },
	};
	fa_session_send(call->session, &reply, -1, NULL);
	return 0;
}

static int bind_begin(struct fa_request *request, const struct fa_wire_message *message,
                      struct fa_error *error)
{
	struct begin *begin = fa_container_of(request, struct begin, request);
	struct fa_kv_step *step;
	int r;

	request->job.work.op = FA_DEVICE_NONE;
	r = plan(request->session, &message->step_begin, error, &step);
	if (r < 0)
		return r;
	begin->step = step->id;
	request->job.number = step->plan->number;
	return 0;
}

static void release_begin(struct fa_request *request)
{
}

/* The request was cancelled or came late. The step may have ended, and its id be in use again. */
static void begin_ended(struct fa_request *request)
{
	const struct begin *begin = fa_container_of(request, struct begin, request);
	struct fa_kv_step *step;

	if (request->job.status < 0 && request->job.number &&
	    fa_kv_step_find(request->session, begin->step, NULL, &step) == 0 &&
	    step->plan->number == request->job.number)
		fa_kv_step_abandon(step);
}

static const struct fa_request_kind begin_kind = {
	.name = "StepBegin",
	.bytes = sizeof(struct begin),
	.bind = bind_begin,
	.release = release_begin,
	.ended = begin_ended,
};

int fa_kv_step_begin(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_step_begin *m = &call->message->step_begin;

	if (call->by_ring)
		return fa_call_submit(call, &begin_kind, m->stream, m->value, error);
	return begin_packet(call, error);
}
