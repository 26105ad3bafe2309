/* Calls: messages that have one reply. With the client's mutex held, and released during waits. */
#pragma once

#include "client/client.h"
#include "client/pending.h"

#include <stdbool.h>
#include <stddef.h>

/* Returns the reply's status, with its sentence. @resend: if the connection is lost before @message
 * was sent, it goes to the daemon's successor. */
int fa_call_run(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                size_t n_fds, bool resend, struct fa_client_call *call);
/* The same in two steps, between which the mutex may be released. A call that was begun must be
 * ended. */
int fa_call_begin(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                  size_t n_fds, bool resend, struct fa_client_call *call);
/* Gives up the connection, as the daemon did not answer @type in time. Returns -ETIMEDOUT. */
int fa_call_timed_out(struct fa_client *client, enum fa_wire_type type);
int fa_call_end(struct fa_client *client, struct fa_client_call *call);
/* The reply is ignored. */
int fa_call_detached(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                     size_t n_fds);
