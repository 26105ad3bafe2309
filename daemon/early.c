#include "daemon/early.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/server.h"

#include <sched.h>

/* What the device has told a client the engine sees a moment later; but for a device that is
 * lost just then, and that is not waited for. Where the engine thread alone sees it, it may have
 * to wait for a processor first. */
#define SETTLE_NS FA_NS_PER_MS
#define SETTLE_BY_THREAD_NS (100 * FA_NS_PER_MS)

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

	session->early_import = NULL;
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
	session->early_import = buffer;
	fa_importer_start(&server->importer, buffer);
}

void fa_early_stop(struct fa_session *session)
{
	struct fa_buffer *buffer = session->early_import;

	fa_list_remove(&session->early_link);
	/* What is the session's does not wait for others' imports. */
	if (!buffer || !fa_importer_withdraw(buffer))
		return;
	session->early_import = NULL;
	fa_buffer_unref(buffer);
	fa_session_unref(session);
}

void fa_early_close(struct fa_session *session)
{
	session->early_page = NULL;
	fa_buffer_unref(fa_steal_ptr(session->early_buffer));
}

bool fa_early_submit(struct fa_session *session, uint32_t stream, uint64_t value, bool may)
{
	struct fa_session_stream *slot = &session->streams[stream];

	if (stream == FA_SESSION_STREAM_OWN)
		return false;
	/* Twice before words could be taken for those of another request. */
	if (!(value & INT32_MAX))
		fa_completion_clear_early(&session->completions[stream]);
	if (!may || !session->early_page || slot->n_requests)
		return false;
	slot->early = value;
	session->early_streams |= (uint64_t)1 << stream;
	if (fa_list_empty(&session->early_link))
		fa_list_append(&session->server->early, &session->early_link);
	return true;
}

static void take(struct fa_server *server)
{
	(void)fa_engine_attend(server->engine);
	/* Nobody else would take this back before a ring is busy. */
	if (!fa_rings_are_polled(&server->rings))
		fa_engine_unattend(server->engine);
	fa_server_take_finished(server);
}

/* Has what the client knows of taken from the engine. */
static void settle(struct fa_session *session, uint64_t until_ns)
{
	struct fa_server *server = session->server;
	uint64_t left = session->early_streams;

	while (left && session->state == FA_SESSION_READY) {
		const unsigned int i = (unsigned int)__builtin_ctzll(left);
		const struct fa_session_stream *slot = &session->streams[i];

		left &= left - 1;
		while (slot->finished < slot->early && session->state == FA_SESSION_READY &&
		       fa_completion_is_early(&session->completions[i], slot->early) &&
		       fa_now_ns() < until_ns) {
			take(server);
			if (slot->finished < slot->early &&
			    (server->rings.shy || !server->info.polled))
				(void)sched_yield();
		}
	}
}

void fa_early_finished(struct fa_session *session, uint32_t stream)
{
	session->early_streams &= ~((uint64_t)1 << stream);
	if (!session->early_streams)
		fa_list_remove(&session->early_link);
}

void fa_early_settle(struct fa_server *server)
{
	uint64_t until_ns;

	if (fa_list_empty(&server->early))
		return;
	until_ns = fa_now_ns() + (server->info.polled ? SETTLE_NS : SETTLE_BY_THREAD_NS);
	/* Of all, one of which may have told another. */
	take(server);
	for (unsigned int n = server->n_sessions; n && !fa_list_empty(&server->early); --n) {
		struct fa_session *other = fa_session_ref(
			fa_container_of(server->early.next, struct fa_session, early_link));

		fa_list_remove(&other->early_link);
		fa_list_append(&server->early, &other->early_link);
		settle(other, until_ns);
		fa_session_unref(other);
	}
}
