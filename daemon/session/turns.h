/*
 * Shares the loop thread's time among users. In each turn of the loop, the sessions of one account
 * (tenant.h: a uid, or for uid 0 a tenant) read messages for FA_TURN_NS. Then they wait for the next
 * turn in order of arrival, so that what one user's connections send delays others by about that
 * time. A message that has begun is always finished. Loop thread.
 */
#pragma once

#include "common/list.h"
#include "daemon/account/tenant.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define FA_TURN_NS (100 * 1000)

struct fa_context;
struct fa_session;

struct fa_turns {
	struct fa_context *context;
	struct fa_list accounts; /* struct fa_turn with waiting sessions */
	uint64_t number;         /* of the loop's turn */
	uv_prepare_t prepare;    /* begins turns; does not keep the loop alive */
	uv_idle_t idle;          /* active while sessions wait */
};

void fa_turns_init(struct fa_turns *turns, struct fa_context *context);

/* Returns true if the session's account has time left in this turn. */
bool fa_turn_has_time(struct fa_session *session);

/* Charges time to the session's account. */
void fa_turn_use(struct fa_session *session, uint64_t ns);

/* Pauses the session until its account has time again. */
void fa_turn_wait(struct fa_session *session);

/* Call when the session closes. */
void fa_turn_forget(struct fa_session *session);
