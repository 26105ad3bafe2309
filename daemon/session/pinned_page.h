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
	/* Called once, with the page's address on the device; not if the session closes before. */
	void (*ready)(struct fa_session *session, void *address);
	const char *failure;                 /* for the log: what does not work without it */
	struct fa_registered_buffer *buffer; /* the pinned memory */
	struct fa_registered_buffer *import; /* while the worker's job runs */
};

/* Starts to pin @bytes at @host, once. May call ready() before it returns. */
void fa_pinned_page_open(struct fa_pinned_page *pinned, void *host, uint64_t bytes);

/* Withdraws a job that has not started. The caller has a reference to the session. */
void fa_pinned_page_cancel(struct fa_pinned_page *pinned);

/* The device must not use the page any more. It may be unmapped afterwards. */
void fa_pinned_page_close(struct fa_pinned_page *pinned);
