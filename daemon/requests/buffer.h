/*
 * Registering buffers: from the message, over the pieces that follow it, to the
 * answer. Loop thread.
 *
 * A registration that is whole is imported at once, and its session reads nothing
 * meanwhile (session/session.h). One whose pieces do not fit into one packet waits for the
 * others while the session goes on reading; there is one such a session at most. It
 * ends when its last piece has come (then it is imported), with the first piece that
 * is wrong, at its deadline if it has one, by a BufferFree of its id, when the daemon
 * stops, or with its session. What it holds meanwhile is charged, all of its
 * descriptors from the beginning.
 */
#pragma once

#include "daemon/session/session.h"

#include <stddef.h>

struct fa_registration;

/*
 * Handlers; they return 0, or a negative errno with a sentence, which is the answer
 * to @message. Descriptors that they keep are set to -1. @fds is NULL where @n_fds came and
 * were not all received, which is -EMFILE.
 */
int fa_registration_start(struct fa_session *session, const struct fa_wire_message *message,
                          int *fds, size_t n_fds, struct fa_error *error);
int fa_registration_pieces(struct fa_session *session, const struct fa_wire_message *message,
                           int *fds, size_t n_fds, struct fa_error *error);
int fa_registration_free(struct fa_session *session, const struct fa_wire_message *message,
                         struct fa_error *error);

/* The importer's done(): answers the BufferRegister. */
void fa_registration_imported(struct fa_registered_buffer *buffer);

/* Ends the one that waits for pieces, if there is one, and answers it with @status. */
void fa_registration_abort(struct fa_session *session, int status, const char *text);
