#include "daemon/session/pinned_page.h"

#include "common/cleanup.h"
#include "daemon/session/context.h"
#include "daemon/session/session.h"

static void on_imported(struct fa_registered_buffer *buffer)
{
	struct fa_pinned_page *pinned = buffer->owner;
	struct fa_session *session = pinned->session;

	pinned->import = NULL;
	if (buffer->status == 0 && session->state == FA_SESSION_READY) {
		pinned->buffer = buffer;
		pinned->ready(session, buffer->memory.address);
	} else {
		if (buffer->status < 0)
			fa_log_about(&session->subject, FA_LOG_DEBUG, "%s: %s", pinned->failure,
			             buffer->error.text);
		fa_registered_buffer_unref(buffer);
	}
	fa_session_unref(session);
}

void fa_pinned_page_open(struct fa_pinned_page *pinned, void *host, uint64_t bytes)
{
	struct fa_context *context = pinned->session->context;
	struct fa_registered_buffer *buffer;
	struct fa_error error;

	if (!context->ops->memory_import_mapped) {
		pinned->ready(pinned->session, host);
		return;
	}
	if (fa_registered_buffer_new(&context->importer, &error, &buffer) < 0)
		return;
	buffer->mapped = host;
	buffer->bytes = bytes;
	buffer->imported = on_imported;
	buffer->owner = pinned;
	pinned->import = buffer;
	(void)fa_session_ref(pinned->session);
	fa_importer_start(&context->importer, buffer);
}

void fa_pinned_page_cancel(struct fa_pinned_page *pinned)
{
	struct fa_registered_buffer *buffer = pinned->import;

	/* A closing session does not wait for imports of others. */
	if (!buffer || !fa_importer_withdraw(buffer))
		return;
	pinned->import = NULL;
	fa_registered_buffer_unref(buffer);
	fa_session_unref(pinned->session);
}

void fa_pinned_page_close(struct fa_pinned_page *pinned)
{
	fa_registered_buffer_unref(fa_steal_ptr(pinned->buffer));
}
