/*
 * A page of the daemon's that a session's client has, too, made one that the device can reach,
 * which a worker does where that takes a while. If it cannot be done, nobody is told. Loop
 * thread; embedded in the session.
 */
#pragma once

#include <stdint.h>

struct fa_registered_buffer;
struct fa_session;

struct fa_pinned_page {
	struct fa_session *session;
	/* Gets the page as the device addresses it, once, unless the session is closing by then. */
	void (*ready)(struct fa_session *session, void *address);
	const char *failure; /* for the log: what there is not without it */
	struct fa_registered_buffer *buffer,
		*import; /* of the memory; of its job, while there is one */
};

/* Begins, of @bytes at @host, once. ready() may be called before it returns. */
void fa_pinned_page_open(struct fa_pinned_page *pinned, void *host, uint64_t bytes);

/* The session is closing, and somebody has a reference to it. */
void fa_pinned_page_cancel(struct fa_pinned_page *pinned);

/* Nothing on the device has to do with the page any more, and it may be unmapped afterwards. */
void fa_pinned_page_close(struct fa_pinned_page *pinned);
