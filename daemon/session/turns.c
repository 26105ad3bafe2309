#include "daemon/session/turns.h"

#include "daemon/session/context.h"
#include "daemon/session/session.h"

static struct fa_turn *turn_of(struct fa_session *session)
{
	struct fa_turns *turns = &session->context->turns;
	struct fa_turn *turn = fa_tenant_turn(session->tenant);

	if (turn->number != turns->number) {
		turn->number = turns->number;
		turn->used_ns = 0;
	}
	return turn;
}

bool fa_turn_has_time(struct fa_session *session)
{
	return turn_of(session)->used_ns < FA_TURN_NS ||
	       fa_tenants_are_alone(&session->context->tenants);
}

void fa_turn_use(struct fa_session *session, uint64_t ns)
{
	turn_of(session)->used_ns += ns;
}

/* Lets waiting sessions of one account read. @n: how many there were when the turn began. */
static void serve(struct fa_turn *turn, unsigned int n)
{
	for (; n && turn->n_waiting; --n) {
		struct fa_session *session = fa_container_of(turn->waiting.next, struct fa_session,
		                                             turn_link);

		if (!fa_turn_has_time(session))
			break;
		fa_session_ref(session);
		fa_turn_forget(session);
		fa_session_resume(session, FA_PAUSE_TURN);
		fa_session_read(session);
		fa_session_unref(session);
	}
}

static void serve_all(struct fa_turns *turns)
{
	unsigned int n = 0;
	struct fa_list *pos;

	fa_list_for_each(pos, &turns->accounts)
		++n;
	/* An account that still has waiting sessions goes to the end. */
	for (; n && !fa_list_empty(&turns->accounts); --n) {
		struct fa_turn *turn = fa_container_of(turns->accounts.next, struct fa_turn, link);

		fa_list_remove(&turn->link);
		fa_list_append(&turns->accounts, &turn->link);
		serve(turn, turn->n_waiting);
	}
}

/* Keeps the loop from sleeping. */
static void on_idle(uv_idle_t *idle)
{
}

void fa_turn_wait(struct fa_session *session)
{
	struct fa_turns *turns = &session->context->turns;
	struct fa_turn *turn = turn_of(session);

	fa_list_append(&turn->waiting, &session->turn_link);
	if (!turn->n_waiting++)
		fa_list_append(&turns->accounts, &turn->link);
	fa_session_pause(session, FA_PAUSE_TURN);
	(void)uv_idle_start(&turns->idle, on_idle);
}

void fa_turn_forget(struct fa_session *session)
{
	struct fa_turn *turn;

	if (fa_list_empty(&session->turn_link))
		return;
	turn = fa_tenant_turn(session->tenant);
	fa_list_remove(&session->turn_link);
	if (!--turn->n_waiting)
		fa_list_remove(&turn->link);
}

/* Runs before the loop looks for events: those who wait go first. */
static void on_prepare(uv_prepare_t *prepare)
{
	struct fa_turns *turns = prepare->data;

	++turns->number;
	if (fa_list_empty(&turns->accounts))
		return;
	serve_all(turns);
	if (fa_list_empty(&turns->accounts))
		(void)uv_idle_stop(&turns->idle);
}

void fa_turns_init(struct fa_turns *turns, struct fa_context *context)
{
	turns->context = context;
	fa_list_init(&turns->accounts);
	(void)uv_prepare_init(context->loop, &turns->prepare);
	(void)uv_idle_init(context->loop, &turns->idle);
	turns->prepare.data = turns->idle.data = turns;
	(void)uv_prepare_start(&turns->prepare, on_prepare);
	uv_unref((uv_handle_t *)&turns->prepare);
}
