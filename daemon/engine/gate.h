/*
 * Timelines as the engine sees them, and the gates of requests: values of slots that they
 * wait for, and that they give when they have ended.
 *
 * The words that the client writes are looked at and nothing else; those of the daemon are
 * written from values of its own, which the waits for them look at, too. So a client that
 * scribbles over whatever it can reach opens or shuts its own gates.
 *
 * Any thread may write signals; the mutex of the timeline keeps a slot's words together.
 * Waits are the engine thread's alone, once the request was submitted.
 */
#pragma once

#include "common/timeline.h"
#include "daemon/backend/device.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* One of a session's; allocated by session/timeline.c, alive as long as any of its requests. */
struct fa_timeline_words {
	struct fa_timeline_in *in;
	struct fa_timeline_out *out;
	pthread_mutex_t mutex;
	_Atomic uint64_t values[FA_TIMELINE_SLOTS]; /* of out: the daemon's own */
	/* in, as the device addresses it; NULL: it does not. Set by the loop thread. */
	const struct fa_timeline_in *_Atomic in_at;
};

struct fa_gate {
	uint64_t value;
	uint32_t slot;
	bool out; /* a wait for a slot of the daemon's */
};

/* Of one request. */
struct fa_gates {
	struct fa_timeline_words *words;
	unsigned int n_waits, n_signals;
	unsigned int n_met;     /* of the waits, which are met one after another */
	struct fa_gate gates[]; /* the waits, and then the signals */
};

static inline struct fa_gate *fa_gates_signals(struct fa_gates *gates)
{
	return gates->gates + gates->n_waits;
}

/* Whether all waits are met. What was met once stays so. */
bool fa_gates_met(struct fa_gates *gates);

/* What is not met after fa_gates_met(), if it is one wait for a word that the device can look at.
 * @ret_wait may be NULL. */
bool fa_gates_last(const struct fa_gates *gates, struct fa_device_wait *ret_wait);

/* Gives the signals of a request that ended with @status. */
void fa_gates_signal(struct fa_gates *gates, int status);
