#include "daemon/session/completions.h"

#include "common/clock.h"
#include "daemon/base/log.h"
#include "daemon/session/context.h"
#include "daemon/session/request.h"
#include "daemon/session/session.h"

/* Then other events are handled. */
#define REAP_NS (20 * FA_NS_PER_US)
/* Limits what one account reaps before the next. */
#define REAP_ACCOUNT_MAX 4

void fa_completions_notify(void *userdata)
{
	struct fa_context *context = userdata;

	if (atomic_exchange(&context->asleep, 0))
		uv_async_send(&context->engine_async);
}

static void finish(struct fa_context *context, struct fa_job *job, struct fa_stream *closed)
{
	struct fa_session *session;

	if (job) {
		fa_request_finish(job);
		fa_context_drain_progress(context);
	} else {
		session = fa_stream_owner(closed);
		fa_stream_free(closed);
		fa_session_unref(session);
	}
}

static struct fa_turn *account_of(const struct fa_job *job, struct fa_stream *closed)
{
	const struct fa_session *session = job ? job->owner : fa_stream_owner(closed);

	return fa_tenant_turn(session->tenant);
}

static void take_all(struct fa_context *context)
{
	struct fa_stream *closed;
	struct fa_turn *account;
	struct fa_job *job;

	while (fa_engine_has_events(context->engine) &&
	       fa_engine_take(context->engine, &job, &closed)) {
		account = account_of(job, closed);
		if (job)
			fa_list_append(&account->finished, &job->answer_link);
		else
			fa_list_append(&account->closed, fa_stream_link(closed));
		if (fa_list_empty(&account->reap_link))
			fa_list_append(&context->reapable, &account->reap_link);
	}
}

/* May free the account. */
static bool finish_first(struct fa_context *context, struct fa_turn *account)
{
	struct fa_stream *closed = NULL;
	struct fa_job *job = NULL;

	if (!fa_list_empty(&account->finished)) {
		job = fa_container_of(account->finished.next, struct fa_job, answer_link);
		fa_list_remove(&job->answer_link);
	} else if (!fa_list_empty(&account->closed)) {
		closed = fa_stream_of_link(account->closed.next);
		fa_list_remove(account->closed.next);
	} else {
		return false;
	}
	if (fa_list_empty(&account->finished) && fa_list_empty(&account->closed))
		fa_list_remove(&account->reap_link);
	finish(context, job, closed);
	return true;
}

static void finish_queued(struct fa_context *context, uint64_t until_ns)
{
	unsigned int n = 0;

	while (!fa_list_empty(&context->reapable)) {
		struct fa_turn *account = fa_container_of(context->reapable.next, struct fa_turn,
		                                          reap_link);

		if (++n % REAP_ACCOUNT_MAX == 0) {
			fa_list_remove(&account->reap_link);
			fa_list_append(&context->reapable, &account->reap_link);
		}
		(void)finish_first(context, account);
		if (until_ns != FA_NS_NEVER && fa_now_ns() >= until_ns)
			break;
	}
}

static void check_lost(struct fa_context *context)
{
	if (context->is_lost || !fa_engine_lost(context->engine, &context->lost_reason))
		return;
	context->is_lost = true;
	fa_log(FA_LOG_ERROR, "the device is lost, and this process ends: %s",
	       context->lost_reason.text);
	context->hooks->device_lost(context);
}

static bool has_events(struct fa_context *context)
{
	return !fa_list_empty(&context->reapable) || fa_engine_has_events(context->engine);
}

bool fa_completions_poll(struct fa_context *context)
{
	check_lost(context);
	if (!has_events(context))
		return false;
	take_all(context);
	if (fa_list_empty(&context->reapable))
		return false;
	finish_queued(context, fa_now_ns() + REAP_NS);
	return true;
}

void fa_completions_arm(struct fa_context *context)
{
	struct fa_error unused;

	if (fa_rings_are_polled(&context->rings))
		return;
	(void)atomic_exchange(&context->asleep, 1);
	if (has_events(context) || (!context->is_lost && fa_engine_lost(context->engine, &unused)))
		fa_completions_notify(context);
}

bool fa_completions_reap(struct fa_session *session, bool all)
{
	struct fa_context *context = session->context;
	struct fa_turn *account;
	uint64_t until_ns = FA_NS_NEVER;

	if (!has_events(context))
		return true;
	account = fa_tenant_turn(session->tenant);
	take_all(context);
	if (fa_list_empty(&account->reap_link))
		return true;
	if (!all && !fa_tenants_are_alone(&context->tenants))
		until_ns = fa_now_ns() + REAP_NS;
	while (finish_first(context, account))
		if (until_ns != FA_NS_NEVER && fa_now_ns() >= until_ns)
			break;
	return fa_list_empty(&account->reap_link);
}

void fa_completions_reap_all(struct fa_context *context)
{
	uint64_t begin_ns;

	if (!has_events(context))
		return;
	begin_ns = fa_now_ns();
	do {
		take_all(context);
		finish_queued(context, FA_NS_NEVER);
	} while (has_events(context));
	context->reaped_ns += fa_now_ns() - begin_ns;
}
