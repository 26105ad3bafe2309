/*
 * A page shared with the client, made accessible to the device by a worker; the session works
 * without, too. Embedded in the session. Loop thread.
 */
#pragma once

#include <stdint.h>

struct fa_registered_buffer;
struct fa_session;

struct fa_pinned_page {
	struct fa_session *session;
	/* Called once, with the device address, unless the session closes first. */
	void (*ready)(struct fa_session *session, void *address);
	/* for the log: what will not work */
	const char *failure;
	struct fa_registered_buffer *buffer; /* the imported page */
	struct fa_registered_buffer *import; /* while the worker has it */
};

/* Once. May call ready() before it returns. */
void fa_pinned_page_open(struct fa_pinned_page *pinned, void *host, uint64_t bytes);

/* If the import has not started. The caller references the session. */
void fa_pinned_page_cancel(struct fa_pinned_page *pinned);

/* The device is done with the page, which may be unmapped next. */
void fa_pinned_page_close(struct fa_pinned_page *pinned);
