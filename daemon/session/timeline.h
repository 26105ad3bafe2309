/*
 * Timelines of sessions: their memory, the gates of requests, and their end. Loop thread.
 *
 * The client writes its slots and maps the daemon's read-only. The daemon's slots survive the
 * process (persist/fd_store.h): the next daemon releases their waiters before it serves, as the end
 * of the session does. The daemon reads its own words, never the mapped ones, so that a client that
 * manages to write the daemon's slots moves no gates but its own.
 */
#pragma once

#include "common/error.h"
#include "schema/wire.h"

struct fa_charge;
struct fa_gates;
struct fa_fd_store_ops;
struct fa_context;
struct fa_session;
struct fa_timeline;

/* Handles TimelineSetup. */
int fa_timeline_setup(struct fa_session *session, const struct fa_wire_message *message,
                      struct fa_error *error);

/* Releases waiters and frees the timeline. Nothing of the session may be in flight. */
void fa_timeline_end(struct fa_session *session);

/* Frees the ended timelines, also those that the fd store could not remove. */
void fa_timelines_close(struct fa_context *context);

/*
 * Makes the gates of a request; *ret_gates stays NULL if it has none. Free with free() after the
 * request. @charge pays for them until the request ends. After an error the request is refused, but
 * *ret_gates may be set all the same: to the signals that it still gives. -EINVAL, -EDQUOT,
 * -ENOMEM.
 */
int fa_timeline_bind(struct fa_session *session, const struct fa_wire_message *message,
                     struct fa_charge *charge, struct fa_error *error, struct fa_gates **ret_gates);

/* Releases waiters for timelines of daemons that died. */
void fa_timeline_recover(const struct fa_fd_store_ops *fd_store);
