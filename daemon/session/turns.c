#include "daemon/session/turns.h"

#include "common/clock.h"
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

/* How long the account waits for its long messages. */
static uint64_t debt_ns(const struct fa_turns *turns, const struct fa_turn *turn, uint64_t now_ns)
{
	const uint64_t free_ns = now_ns + FA_TURN_LONG_CREDIT_NS * FA_TURN_LONG_SHARE;
	const uint64_t other_ns = turns->last == turn ? turns->other_ns : turns->last_ns;

	if (turn->paid_ns <= free_ns || now_ns - other_ns >= FA_TURN_ALONE_NS)
		return 0;
	return turn->paid_ns - free_ns;
}

bool fa_turn_has_time(struct fa_session *session)
{
	const struct fa_turns *turns = &session->context->turns;
	struct fa_turn *turn = turn_of(session);

	if (fa_tenants_are_alone(&session->context->tenants))
		return true;
	return turn->used_ns < FA_TURN_NS && !debt_ns(turns, turn, fa_now_ns());
}

static void note(struct fa_turns *turns, const struct fa_turn *turn, uint64_t now_ns)
{
	if (turns->last != turn)
		turns->other_ns = turns->last_ns;
	turns->last = turn;
	turns->last_ns = now_ns;
}

void fa_turn_note(struct fa_session *session, uint64_t now_ns)
{
	note(&session->context->turns, fa_tenant_turn(session->tenant), now_ns);
}

static void use(struct fa_session *session, uint64_t ns, uint64_t now_ns)
{
	const uint64_t credit_ns = FA_TURN_LONG_CREDIT_NS * FA_TURN_LONG_SHARE;
	struct fa_turns *turns = &session->context->turns;
	struct fa_turn *turn = turn_of(session);

	note(turns, turn, now_ns);
	turn->used_ns += ns;
	if (ns < FA_TURN_LONG_NS || fa_tenants_are_alone(&session->context->tenants))
		return;
	if (turn->paid_ns < now_ns)
		turn->paid_ns = now_ns;
	turn->paid_ns += ns * FA_TURN_LONG_SHARE;
	if (turn->paid_ns > now_ns + credit_ns + FA_TURN_LONG_WAIT_NS)
		turn->paid_ns = now_ns + credit_ns + FA_TURN_LONG_WAIT_NS;
}

void fa_turn_use(struct fa_session *session, uint64_t ns)
{
	use(session, ns, fa_now_ns());
}

struct fa_turn_span fa_turn_begin(const struct fa_session *session)
{
	const bool alone = fa_tenants_are_alone(&session->context->tenants);

	return (struct fa_turn_span){ fa_now_ns(), alone ? 0 : fa_thread_cpu_ns() };
}

void fa_turn_end(struct fa_session *session, struct fa_turn_span *span, uint64_t others_ns)
{
	const uint64_t now_ns = fa_now_ns();
	uint64_t ns = now_ns - span->begin_ns;

	span->begin_ns = now_ns;
	if (ns >= FA_TURN_LONG_NS && span->cpu_ns) {
		const uint64_t cpu_now_ns = fa_thread_cpu_ns();

		if (cpu_now_ns - span->cpu_ns < ns)
			ns = cpu_now_ns - span->cpu_ns;
		span->cpu_ns = cpu_now_ns;
	}
	use(session, ns > others_ns ? ns - others_ns : 0, now_ns);
}

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

/* While idle handles are active the loop does not sleep. */
static void on_idle(uv_idle_t *idle)
{
}

static void on_timer(uv_timer_t *timer)
{
	struct fa_turns *turns = timer->data;
	const uint64_t now_ns = fa_now_ns();
	uint64_t least_ns = UINT64_MAX;
	struct fa_list later;

	fa_list_init(&later);
	while (!fa_list_empty(&turns->indebted)) {
		struct fa_turn *turn = fa_container_of(turns->indebted.next, struct fa_turn, link);
		const uint64_t ns = debt_ns(turns, turn, now_ns);

		fa_list_remove(&turn->link);
		fa_list_append(ns ? &later : &turns->accounts, &turn->link);
		if (ns && ns < least_ns)
			least_ns = ns;
	}
	fa_list_splice(&turns->indebted, &later);
	if (!fa_list_empty(&turns->indebted))
		(void)uv_timer_start(timer, on_timer, least_ns / FA_NS_PER_MS + 1, 0);
	if (!fa_list_empty(&turns->accounts))
		(void)uv_idle_start(&turns->idle, on_idle);
}

static void serve_all(struct fa_turns *turns)
{
	const uint64_t now_ns = fa_now_ns();
	unsigned int n = 0;
	struct fa_list *pos;

	fa_list_for_each(pos, &turns->accounts)
		++n;
	/* Accounts with sessions left go to the list's end. */
	for (; n && !fa_list_empty(&turns->accounts); --n) {
		struct fa_turn *turn = fa_container_of(turns->accounts.next, struct fa_turn, link);
		const bool owes = debt_ns(turns, turn, now_ns);

		fa_list_remove(&turn->link);
		fa_list_append(owes ? &turns->indebted : &turns->accounts, &turn->link);
		if (!owes)
			serve(turn, turn->n_waiting);
	}
	if (!fa_list_empty(&turns->indebted) && !uv_is_active((uv_handle_t *)&turns->timer))
		on_timer(&turns->timer);
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

/* Runs before the loop looks for events: waiting sessions go first. */
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
	fa_list_init(&turns->indebted);
	(void)uv_prepare_init(context->loop, &turns->prepare);
	(void)uv_idle_init(context->loop, &turns->idle);
	(void)uv_timer_init(context->loop, &turns->timer);
	turns->prepare.data = turns->idle.data = turns->timer.data = turns;
	(void)uv_prepare_start(&turns->prepare, on_prepare);
	uv_unref((uv_handle_t *)&turns->prepare);
}
