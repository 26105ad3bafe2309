#include "daemon/early.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/server.h"

#include <sched.h>

/* What the device has told a client the engine sees a moment later; but for a device that is
 * lost just then, and that is not waited for. */
#define SETTLE_NS FA_NS_PER_MS

void fa_early_stream(struct fa_session *session, uint32_t id)
{
	const size_t at = id * sizeof(struct fa_completion_slot) +
	                  offsetof(struct fa_completion_slot, early);

	if (session->early_page && id != FA_SESSION_STREAM_OWN && session->streams[id].stream)
		fa_engine_stream_early(session->streams[id].stream,
		                       (uint32_t *)((char *)session->early_page + at));
}

static void use(struct fa_session *session, void *page)
{
	session->early_page = page;
	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
		fa_early_stream(session, i);
}

static void on_imported(struct fa_buffer *buffer)
{
	struct fa_session *session = buffer->owner;

	if (buffer->status == 0 && session->state == FA_SESSION_READY) {
		session->early_buffer = buffer;
		use(session, buffer->memory.address);
	} else {
		if (buffer->status < 0)
			fa_log_about(&session->subject, FA_LOG_DEBUG,
			             "completions are not told by the device: %s",
			             buffer->error.text);
		fa_buffer_unref(buffer);
	}
	fa_session_unref(session);
}

void fa_early_open(struct fa_session *session)
{
	struct fa_server *server = session->server;
	struct fa_buffer *buffer;
	struct fa_error error;

	if (!server->ops->memory_import_mapped) {
		use(session, session->completions);
		return;
	}
	if (fa_buffer_new(&server->importer, &error, &buffer) < 0)
		return;
	buffer->mapped = session->completions;
	buffer->bytes = FA_COMPLETION_PAGE_BYTES;
	buffer->imported = on_imported;
	buffer->owner = fa_session_ref(session);
	fa_importer_start(&server->importer, buffer);
}

void fa_early_close(struct fa_session *session)
{
	session->early_page = NULL;
	fa_buffer_unref(fa_steal_ptr(session->early_buffer));
}

bool fa_early_submit(struct fa_session *session, uint32_t stream, uint64_t value, bool may)
{
	struct fa_session_stream *slot = &session->streams[stream];

	/* Long before its words could be taken for another's. */
	if (slot->early && value - slot->early > INT32_MAX) {
		fa_completion_clear_early(&session->completions[stream]);
		slot->early = 0;
	}
	if (!may || !session->early_page || stream == FA_SESSION_STREAM_OWN || slot->n_requests)
		return false;
	slot->early = value;
	session->early_streams |= (uint64_t)1 << stream;
	return true;
}

/* Has request slot->early, which the client knows of, taken from the engine. */
static void wait(struct fa_session *session, const struct fa_session_stream *slot)
{
	const uint64_t until_ns = fa_now_ns() + SETTLE_NS;
	struct fa_server *server = session->server;

	do {
		(void)fa_engine_attend(server->engine);
		fa_server_take_finished(server);
		if (slot->finished >= slot->early)
			break;
		/* The engine thread may need the processor for it. */
		if (server->rings.shy)
			(void)sched_yield();
	} while (session->state == FA_SESSION_READY && fa_now_ns() < until_ns);
}

void fa_early_settle(struct fa_session *session)
{
	uint64_t left = session->early_streams;

	while (left && session->state == FA_SESSION_READY) {
		const unsigned int i = (unsigned int)__builtin_ctzll(left);
		const struct fa_session_stream *slot = &session->streams[i];

		left &= left - 1;
		if (slot->finished < slot->early &&
		    fa_completion_is_early(&session->completions[i], slot->early))
			wait(session, slot);
		if (slot->finished >= slot->early)
			session->early_streams &= ~((uint64_t)1 << i);
	}
}
