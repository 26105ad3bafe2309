#include "daemon/session/device_completion.h"

#include "common/clock.h"
#include "daemon/session/completions.h"
#include "daemon/session/context.h"

#include <sched.h>

/* Bounds the wait for the engine to see what the client saw; then the next request finds an idle
 * stream. */
#define SYNC_NS FA_NS_PER_MS
#define SYNC_BY_THREAD_NS (100 * FA_NS_PER_MS)

void fa_device_completion_stream(struct fa_session *session, uint32_t id)
{
	const size_t at = id * sizeof(struct fa_completion_slot) +
	                  offsetof(struct fa_completion_slot, device_words);

	if (session->device_page && id != FA_SESSION_STREAM_OWN && session->streams[id].stream)
		fa_engine_stream_set_device_words(session->streams[id].stream,
		                                  (uint32_t *)((char *)session->device_page + at));
}

static void set_page(struct fa_session *session, void *page)
{
	session->device_page = page;
	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
		fa_device_completion_stream(session, i);
}

void fa_device_completion_open(struct fa_session *session)
{
	session->completions_pin = (struct fa_pinned_page){
		.session = session,
		.ready = set_page,
		.failure = "completions are not told by the device",
	};
	fa_pinned_page_open(&session->completions_pin, session->completions,
	                    FA_COMPLETION_PAGE_BYTES);
}

void fa_device_completion_stop(struct fa_session *session)
{
	fa_list_remove(&session->device_link);
	fa_pinned_page_cancel(&session->completions_pin);
}

void fa_device_completion_close(struct fa_session *session)
{
	session->device_page = NULL;
	fa_pinned_page_close(&session->completions_pin);
}

void fa_device_completion_pass(struct fa_session *session, uint32_t stream, uint64_t value)
{
	/* Old words must not match (common/completion.h). */
	if (!(value & INT32_MAX))
		fa_completion_clear_device_words(&session->completions[stream]);
}

bool fa_device_completion_submit(struct fa_request *request, bool allowed)
{
	const uint32_t stream = request->stream;
	const uint64_t value = request->job.value;
	struct fa_session *session = request->session;
	struct fa_session_stream *slot = &session->streams[stream];

	fa_device_completion_pass(session, stream, value);
	if (!allowed || !session->device_page || fa_session_stream_ended(slot) + 1 < value)
		return false;
	slot->device_value = value;
	slot->device_request = request;
	session->device_streams |= (uint64_t)1 << stream;
	if (fa_list_empty(&session->device_link))
		fa_list_append(&session->context->device_sessions, &session->device_link);
	return true;
}

static bool is_reported(const struct fa_session *session, uint32_t stream)
{
	return fa_completion_device_done(&session->completions[stream],
	                                 session->streams[stream].device_value);
}

static void note_reported(struct fa_session *session)
{
	for (uint64_t left = session->device_streams; left; left &= left - 1) {
		const uint32_t stream = (uint32_t)__builtin_ctzll(left);
		struct fa_request *request = session->streams[stream].device_request;

		if (request && !request->reported && is_reported(session, stream))
			fa_request_reported(request);
	}
}

static void reap(struct fa_context *context)
{
	(void)fa_engine_poll(context->engine);
	/* Otherwise polling would go on until a ring is polled. */
	if (!fa_rings_are_polled(&context->rings))
		fa_engine_poll_end(context->engine);
	fa_completions_reap_all(context);
}

static void sync_session(struct fa_session *session, uint64_t until_ns)
{
	struct fa_context *context = session->context;
	uint64_t left = session->device_streams;

	while (left && session->state == FA_SESSION_READY) {
		const uint32_t i = (uint32_t)__builtin_ctzll(left);
		const struct fa_session_stream *slot = &session->streams[i];

		left &= left - 1;
		while (slot->finished < slot->device_value && session->state == FA_SESSION_READY &&
		       is_reported(session, i) && fa_now_ns() < until_ns) {
			reap(context);
			if (slot->finished < slot->device_value &&
			    (context->rings.yields || !context->info.polled))
				(void)sched_yield();
		}
	}
}

void fa_device_completion_finished(const struct fa_request *request)
{
	struct fa_session *session = request->session;
	struct fa_session_stream *slot = &session->streams[request->stream];

	if (slot->device_request != request)
		return;
	slot->device_request = NULL;
	session->device_streams &= ~((uint64_t)1 << request->stream);
	if (!session->device_streams)
		fa_list_remove(&session->device_link);
}

static void note_all_reported(struct fa_context *context)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &context->device_sessions)
		note_reported(fa_container_of(pos, struct fa_session, device_link));
}

void fa_device_completion_sync(struct fa_context *context)
{
	uint64_t until_ns;

	if (fa_list_empty(&context->device_sessions))
		return;
	until_ns = fa_now_ns() + (context->info.polled ? SYNC_NS : SYNC_BY_THREAD_NS);
	/* All sessions, as clients may talk to each other. */
	reap(context);
	note_all_reported(context);
	for (unsigned int n = context->n_sessions; n && !fa_list_empty(&context->device_sessions);
	     --n) {
		struct fa_session *other = fa_session_ref(fa_container_of(
			context->device_sessions.next, struct fa_session, device_link));

		fa_list_remove(&other->device_link);
		fa_list_append(&context->device_sessions, &other->device_link);
		sync_session(other, until_ns);
		fa_session_unref(other);
	}
}
