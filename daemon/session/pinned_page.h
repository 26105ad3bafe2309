/*
 * A page that daemon and client share, made accessible to the device by a worker. On failure the
 * session works without it. Embedded in the session. Loop thread.
 */
#pragma once

#include <stdint.h>

struct fa_registered_buffer;
struct fa_session;

struct fa_pinned_page {
	struct fa_session *session;
	/* Called once, with the page's device address; not if the session closes first. */
	void (*ready)(struct fa_session *session, void *address);
	const char *failure;                 /* for the log: what will not work */
	struct fa_registered_buffer *buffer; /* the page */
	struct fa_registered_buffer *import; /* while the worker runs */
};

/* Pins @bytes at @host, once. May call ready() before it returns. */
void fa_pinned_page_open(struct fa_pinned_page *pinned, void *host, uint64_t bytes);

/* Withdraws a job that has not started. The caller has a reference to the session. */
void fa_pinned_page_cancel(struct fa_pinned_page *pinned);

/* The device must be done with the page, which may be unmapped next. */
void fa_pinned_page_close(struct fa_pinned_page *pinned);
