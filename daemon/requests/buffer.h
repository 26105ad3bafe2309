/*
 * Registers buffers: from the message, over further pieces, to the answer. Loop thread. A complete
 * registration is imported at once while its session is paused. One registration a session may wait
 * for pieces, until the last, an invalid one, its deadline, BufferFree, a drain, or the session's
 * end. Its descriptors are charged from the start.
 */
#pragma once

#include "daemon/session/session.h"

#include <stddef.h>

struct fa_registration;

/* Handlers (session/call.h). @fds NULL: some were lost; -EMFILE. */
int fa_registration_start(struct fa_session *session, const struct fa_wire_message *message,
                          int *fds, size_t n_fds, struct fa_error *error);
int fa_registration_pieces(struct fa_session *session, const struct fa_wire_message *message,
                           int *fds, size_t n_fds, struct fa_error *error);
int fa_registration_free(struct fa_session *session, const struct fa_wire_message *message,
                         struct fa_error *error);

/* Call it when the importer has finished. */
void fa_registration_imported(struct fa_registered_buffer *buffer);

void fa_registration_abort(struct fa_session *session, int status, const char *text);
