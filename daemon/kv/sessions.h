/* A session's identity towards the pool, and its life in the session store. Loop thread. */
#pragma once

#include "common/error.h"
#include "daemon/pool/pool.h"
#include "schema/wire.h"

#include <stdbool.h>

struct fa_session;

/* The session as the pool knows it. -ENOTSUP: there is no pool; -ESHUTDOWN; and what
 * fa_pool_tenant_get() returns. */
int fa_kv_actor(struct fa_session *session, const struct fa_actor **ret_actor,
                struct fa_error *error);

/* The same; an administrator may also find and remove what belongs to others. */
int fa_kv_actor_admin(struct fa_session *session, struct fa_actor *ret_actor,
                      struct fa_error *error);

/* The session's Hello. Returns true if it resumes the earlier daemon's session with the secret
 * @resume (NULL: none), whose number and secret it then takes over. */
bool fa_kv_session_hello(struct fa_session *session, const struct fa_wire_secret *resume);

/* The session closes: its steps are aborted when their requests have ended. */
void fa_kv_session_close(struct fa_session *session);

/* Nothing of the session is in flight: its objects are released, unless the daemon stops. */
void fa_kv_session_end(struct fa_session *session);
