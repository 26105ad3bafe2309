/* The KV pool's part of a session, used by kv/. Loop thread. */
#pragma once

#include "common/list.h"
#include "daemon/pool/pool.h"

#include <stdbool.h>
#include <stdint.h>

struct fa_kv_session {
	struct fa_actor actor;
	bool known;           /* actor.tenant is set and referenced */
	bool resumed;         /* may own objects of before a restart */
	uint32_t record;      /* in the session store; UINT32_MAX: none */
	struct fa_list steps; /* struct fa_kv_step, oldest first */
	uint32_t n_steps;     /* begun by the client */
};
