/*
 * A page that daemon and client share, made accessible to the device by a worker. If that fails,
 * the session works without it. Embedded in the session. Loop thread.
 */
#pragma once

#include <stdint.h>

struct fa_registered_buffer;
struct fa_session;

struct fa_pinned_page {
	struct fa_session *session;
	/* With the page's device address, once, unless the session closes first. */
	void (*ready)(struct fa_session *session, void *address);
	/* text for the log: what will not work after a failure */
	const char *failure;
	struct fa_registered_buffer *buffer; /* the imported page */
	struct fa_registered_buffer *import; /* while the worker imports it */
};

/* Pins @bytes at @host, once. May call ready() before it returns. */
void fa_pinned_page_open(struct fa_pinned_page *pinned, void *host, uint64_t bytes);

/* Withdraws an import that has not started. The caller has a reference to the session. */
void fa_pinned_page_cancel(struct fa_pinned_page *pinned);

/* The page may be unmapped next. The device must be done with it. */
void fa_pinned_page_close(struct fa_pinned_page *pinned);
