/*
 * Timelines of sessions: memory, gates of requests, and end. Loop thread. The daemon's slots,
 * read-only for clients, survive the process (persist/fd_store.h): the next daemon releases their
 * waiters. The daemon never reads them back.
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

int fa_timeline_setup(struct fa_session *session, const struct fa_wire_message *message,
                      struct fa_error *error);

/* Releases the timeline's waiters. Nothing may be in flight. */
void fa_timeline_end(struct fa_session *session);

/* Frees even those that the fd store could not remove. */
void fa_timelines_close(struct fa_context *context);

/*
 * Makes the gates of a request (NULL: none), which free() frees. @charge pays until the request
 * ends. An error refuses the request, but may leave *ret_gates with its valid signals, which are
 * still written at its end. -EINVAL, -EDQUOT, -ENOMEM.
 */
int fa_timeline_bind(struct fa_session *session, const struct fa_wire_message *message,
                     struct fa_charge *charge, struct fa_error *error, struct fa_gates **ret_gates);

/* Releases waiters for timelines of dead daemons. */
void fa_timeline_recover(const struct fa_fd_store_ops *fd_store);
