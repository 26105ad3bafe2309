/*
 * Timelines of sessions: their memories, what requests may say of them, and their end.
 * Loop thread.
 *
 * The client gets its own slots writable, and the daemon's by a descriptor that can only
 * be read. (They are not sealed against writing, as then no later daemon could write them;
 * a client that finds a way to do so moves nobody's gates but its own, as the daemon goes
 * by words of its own.) The daemon's slots are kept beyond this process (persist/fd_store.h): the next
 * one releases all who wait for them before it serves anyone. They are released, too, when
 * the session ends.
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

/* When nothing of the session is in flight any more. */
void fa_timeline_end(struct fa_session *session);

/* The last of them: what the fd store cannot be told now it is not told any more. */
void fa_timelines_close(struct fa_context *context);

/*
 * The gates of a request; *ret_gates stays NULL if it has none, and is freed with free()
 * when the request is no more. @charge pays for them, and is released when the request has
 * ended. With an error the request is refused, and *ret_gates may be there all the same: the
 * signals that it gives. -EINVAL, -EDQUOT, -ENOMEM.
 */
int fa_timeline_bind(struct fa_session *session, const struct fa_wire_message *message,
                     struct fa_charge *charge, struct fa_error *error, struct fa_gates **ret_gates);

/* Releases those who wait for words of daemons that are no more. */
void fa_timeline_recover(const struct fa_fd_store_ops *fd_store);
