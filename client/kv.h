/* What calls on caches, sequences and steps share. */
#pragma once

#include "client/client.h"
#include "client/pending.h"

#include <stdbool.h>

/* Sends @message and waits for the reply; once more if the connection is lost before that and the
 * message can be repeated, which sets @call->repeated. Without the mutex. @by_number: the message
 * names an object by number: -ENOENT becomes -ESTALE if a session was lost. */
int fa_kv_call(struct fa_client *client, struct fa_wire_message *message, bool by_number,
               struct fa_client_call *call);
/* For the daemon's result @r of such a message: the caller's. With the mutex held. */
int fa_kv_explain(const struct fa_client *client, int r);
/* The sequence's cache, as replies told; 0: not known, or forgotten. With the mutex held. */
uint64_t fa_kv_cache_of(const struct fa_client *client, uint64_t sequence);
/* -EINVAL or -ENAMETOOLONG. */
int fa_kv_name(const char *name, struct fa_wire_string *ret_name);
/* Without the mutex. -ENOTSUP: the daemon is older than states of linear layers, and would not
 * answer requests on them. */
int fa_kv_check_states(struct fa_client *client);
