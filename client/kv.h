/* Functions shared by the calls on caches, sequences and steps. */
#pragma once

#include "client/client.h"
#include "client/pending.h"

#include <stdbool.h>

/* Sends @message and waits for the reply; once more if the connection is lost before that and the
 * message can be repeated, which sets @call->repeated. Called without the mutex. @by_number: the message names
 * an object by number, and -ENOENT becomes -ESTALE if a session was lost. */
int fa_kv_call(struct fa_client *client, struct fa_wire_message *message, bool by_number,
               struct fa_client_call *call);
/* Called with the mutex held. Turns @r, the daemon's result for such a message, into the caller's:
 * -ENOENT becomes -ESTALE if the session was lost. */
int fa_kv_explain(const struct fa_client *client, int r);
/* Called with the mutex held. Returns the sequence's cache, as replies told; 0: not known, or
 * forgotten. */
uint64_t fa_kv_cache_of(const struct fa_client *client, uint64_t sequence);
/* -EINVAL or -ENAMETOOLONG. */
int fa_kv_name(const char *name, struct fa_wire_string *ret_name);
/* Called without the mutex. -ENOTSUP: the daemon is older than states of linear layers, and would
 * not answer requests on them. */
int fa_kv_check_states(struct fa_client *client);
