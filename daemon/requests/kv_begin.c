/* StepBegin: plans a step, on the loop thread, before the reply. */
#include "daemon/requests/kv.h"

#include "common/cleanup.h"
#include "daemon/kv/step.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>

_Static_assert(FA_WIRE_STEP_MAX <= FA_POOL_STEP_SEQUENCES_MAX, "the pool can plan it");

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

int fa_kv_step_begin(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_step_begin *m = &call->message->step_begin;
	_fa_cleanup_(fa_freep) struct fa_pool_step_item *items = NULL;
	struct fa_session *session = call->session;
	const struct fa_actor *actor = NULL;
	struct fa_wire_message reply;
	struct fa_kv_step *step;
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
		if (m->items[i].reserved)
			return fa_fail(error, -EINVAL,
			               "items[%zu].reserved is %" PRIu32 "; expected 0", i,
			               m->items[i].reserved);
		items[i] = (struct fa_pool_step_item){ .sequence = m->items[i].sequence,
			                               .n_tokens = m->items[i].n_new };
	}
	r = fa_kv_step_new(session, actor, m->step, items, (uint32_t)m->n_items, m->tree, m->n_tree,
	                   m->n_tree_start ? m->tree_start : NULL, error, &step);
	if (r < 0)
		return r;
	reply = (struct fa_wire_message){
		.id = call->message->id,
		.type = FA_WIRE_STEP_REPLY,
		.step_reply = { .step = step->id, .number = step->plan->number },
	};
	fa_session_send(session, &reply, -1, NULL);
	return 0;
}
