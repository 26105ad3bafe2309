/*
 * Shares the loop thread's time among users. In each turn of the loop, the sessions of one account
 * (tenant.h: a uid, or for uid 0 a tenant) read messages for FA_TURN_NS; the rest waits for the
 * next turn, in order.
 *
 * A message that has begun is finished, so an account may spend only 1/FA_TURN_LONG_SHARE of the
 * time on long messages, or FA_TURN_LONG_CREDIT_NS at once. If it spends more its sessions wait,
 * unless no other account has had messages for FA_TURN_ALONE_NS. Loop thread.
 */
#pragma once

#include "common/list.h"
#include "daemon/account/tenant.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define FA_TURN_NS (25 * 1000)
#define FA_TURN_LONG_NS (250 * 1000)
#define FA_TURN_LONG_SHARE 200
#define FA_TURN_LONG_CREDIT_NS (20ull * 1000 * 1000)
/* How long an account waits for its long messages. */
#define FA_TURN_LONG_WAIT_NS (1000ull * 1000 * 1000)
#define FA_TURN_ALONE_NS (10ull * 1000 * 1000 * 1000)

struct fa_context;
struct fa_session;

struct fa_turns {
	struct fa_context *context;
	struct fa_list accounts;
	struct fa_list indebted; /* accounts that wait for their long messages */
	uint64_t number;         /* of the loop */
	/* The account that used time last; other_ns: when another did. */
	const struct fa_turn *last;
	uint64_t last_ns, other_ns;
	uv_prepare_t prepare; /* begins turns; does not keep the loop alive */
	uv_idle_t idle;       /* active while accounts wait */
	uv_timer_t timer;     /* active while accounts owe */
};

void fa_turns_init(struct fa_turns *turns, struct fa_context *context);

bool fa_turn_has_time(struct fa_session *session);

/* Work for a session. Only processor time makes it long. */
struct fa_turn_span {
	uint64_t begin_ns, cpu_ns;
};

struct fa_turn_span fa_turn_begin(const struct fa_session *session);
/* Charges the span without @others_ns, and begins it anew. */
void fa_turn_end(struct fa_session *session, struct fa_turn_span *span, uint64_t others_ns);

void fa_turn_use(struct fa_session *session, uint64_t ns);

void fa_turn_note(struct fa_session *session, uint64_t now_ns);

/* Pauses the session until its account has time. */
void fa_turn_wait(struct fa_session *session);

void fa_turn_forget(struct fa_session *session);
