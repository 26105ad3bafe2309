#include "daemon/session/completions.h"

#include "common/clock.h"
#include "daemon/base/log.h"
#include "daemon/session/context.h"
#include "daemon/session/request.h"
#include "daemon/session/session.h"

/* How many requests are reaped before other events are handled. */
#define REAP_MAX 32

void fa_completions_notify(void *userdata)
{
	struct fa_context *context = userdata;

	if (atomic_exchange(&context->asleep, 0))
		uv_async_send(&context->engine_async);
}

static bool reap_one(struct fa_context *context)
{
	struct fa_session *session;
	struct fa_stream *closed;
	struct fa_job *job;

	if (!fa_engine_take(context->engine, &job, &closed))
		return false;
	if (job) {
		fa_request_finish(job);
		fa_context_drain_progress(context);
	} else {
		session = fa_stream_owner(closed);
		fa_stream_free(closed);
		fa_session_unref(session);
	}
	return true;
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

bool fa_completions_poll(struct fa_context *context)
{
	unsigned int n = 0;

	check_lost(context);
	if (!fa_engine_has_events(context->engine))
		return false;
	while (n < REAP_MAX && reap_one(context))
		++n;
	return n;
}

void fa_completions_arm(struct fa_context *context)
{
	struct fa_error unused;

	if (fa_rings_are_polled(&context->rings))
		return;
	(void)atomic_exchange(&context->asleep, 1);
	if (fa_engine_has_events(context->engine) ||
	    (!context->is_lost && fa_engine_lost(context->engine, &unused)))
		fa_completions_notify(context);
}

void fa_completions_reap_all(struct fa_context *context)
{
	uint64_t begin_ns;

	if (!fa_engine_has_events(context->engine))
		return;
	begin_ns = fa_now_ns();
	while (reap_one(context))
		;
	context->reaped_ns += fa_now_ns() - begin_ns;
}
