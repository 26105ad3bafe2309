/* A session's identity for the pool, and its life in the session store. Loop thread. */
#pragma once

#include "common/error.h"
#include "daemon/pool/pool.h"
#include "schema/wire.h"

#include <stdbool.h>

struct fa_session;

/* -ENOTSUP: no pool; -ESHUTDOWN; errors of fa_pool_tenant_get(). */
int fa_kv_actor(struct fa_session *session, const struct fa_actor **ret_actor,
                struct fa_error *error);

/* Administrators may also find and remove others' objects. */
int fa_kv_actor_admin(struct fa_session *session, struct fa_actor *ret_actor,
                      struct fa_error *error);

/* Call it at Hello. Returns true if the session resumes an earlier daemon's, with the secret
 * @resume (NULL: none), and keeps its number and secret. */
bool fa_kv_session_hello(struct fa_session *session, const struct fa_wire_secret *resume);

/* Aborts steps when their requests have ended. */
void fa_kv_session_close(struct fa_session *session);

/* Releases its objects, unless the daemon stops. Nothing may be in flight. */
void fa_kv_session_end(struct fa_session *session);
