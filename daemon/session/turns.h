/*
 * Shares the loop thread's time among users. In each turn of the loop, the sessions of one account
 * (tenant.h: a uid, or for uid 0 a tenant) read messages for FA_TURN_NS. Then they wait for the
 * next turn, in order of arrival. So what one user's connections send delays others by about that
 * time.
 *
 * A message that has begun is always finished, and others wait for a long one. So an account may
 * spend only 1/FA_TURN_LONG_SHARE of the time on long messages, or FA_TURN_LONG_CREDIT_NS at once.
 * If it spends more its sessions wait, unless no other account has had messages for
 * FA_TURN_ALONE_NS. Loop thread.
 */
#pragma once

#include "common/list.h"
#include "daemon/account/tenant.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define FA_TURN_NS (25 * 1000)
/* Messages that take longer are long. */
#define FA_TURN_LONG_NS (250 * 1000)
#define FA_TURN_LONG_SHARE 200
#define FA_TURN_LONG_CREDIT_NS (20ull * 1000 * 1000)
/* The longest that an account waits for its long messages. */
#define FA_TURN_LONG_WAIT_NS (1000ull * 1000 * 1000)
#define FA_TURN_ALONE_NS (10ull * 1000 * 1000 * 1000)

struct fa_context;
struct fa_session;

struct fa_turns {
	struct fa_context *context;
	/* Accounts (struct fa_turn) with waiting sessions, in the order of their turns. */
	struct fa_list accounts;
	struct fa_list indebted; /* accounts that wait because of long messages */
	uint64_t number;         /* of the loop's turn */
	/* The account that used time last, and when; other_ns: when any other account used time
	 * last. */
	const struct fa_turn *last;
	uint64_t last_ns, other_ns;
	uv_prepare_t prepare; /* begins turns; does not keep the loop alive */
	uv_idle_t idle;       /* active while accounts wait */
	uv_timer_t timer;     /* active while accounts are indebted */
};

void fa_turns_init(struct fa_turns *turns, struct fa_context *context);

/* Returns true if the session's account has time left in this turn. */
bool fa_turn_has_time(struct fa_session *session);

/* A span of work for a session. Only processor time makes it long: it may also take longer because
 * other programs run. */
struct fa_turn_span {
	uint64_t begin_ns, cpu_ns;
};

struct fa_turn_span fa_turn_begin(const struct fa_session *session);
/* Charges what was done since the span began, except @others_ns, and begins the span anew. */
void fa_turn_end(struct fa_session *session, struct fa_turn_span *span, uint64_t others_ns);

/* Charges time to the session's account. */
void fa_turn_use(struct fa_session *session, uint64_t ns);

/* Notes that the session's account has work, which is not charged. */
void fa_turn_note(struct fa_session *session, uint64_t now_ns);

/* Pauses the session until its account has time again. */
void fa_turn_wait(struct fa_session *session);

/* Call when the session closes. */
void fa_turn_forget(struct fa_session *session);
