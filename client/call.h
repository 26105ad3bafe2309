/* Messages that have one reply. With the client's mutex, which is released while a call waits. */
#pragma once

#include "client/client.h"
#include "client/pending.h"

#include <stdbool.h>
#include <stddef.h>

/* Sends @message and waits for its reply; returns the reply's status and sets the sentence.
 * @again: the message is sent to the daemon's successor if the daemon is gone. */
int fa_call_run(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                size_t n_fds, bool again, struct fa_call *call);
/* The same in two steps. The mutex may be released in between; a call that was begun must be
 * ended. */
int fa_call_begin(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                  size_t n_fds, bool again, struct fa_call *call);
int fa_call_end(struct fa_client *client, struct fa_call *call);
/* Sends a message whose reply is ignored. */
int fa_call_detached(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                     size_t n_fds);
