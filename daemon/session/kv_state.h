/*
 * What a session has of the KV pool. It lies in struct fa_session; kv/ owns what it means.
 */
#pragma once

#include "common/list.h"
#include "daemon/pool/pool.h"

#include <stdbool.h>
#include <stdint.h>

struct fa_kv_session {
	struct fa_actor actor;
	bool known;           /* actor.tenant is held */
	bool resumed;         /* it may own objects from before a restart */
	uint32_t record;      /* in the session store; UINT32_MAX: none */
	struct fa_list steps; /* struct fa_kv_step, oldest first */
	uint32_t n_steps;     /* that the client began */
};
