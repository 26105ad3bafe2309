/*
 * Gates of jobs: timeline slots and values that a job waits for, or signals when it finishes. Waits
 * for the daemon's slots read private values: a client that overwrites its timeline affects only
 * itself. Any thread may signal, under the timeline's mutex. Waits are scheduler state.
 */
#pragma once

#include "common/timeline.h"
#include "daemon/backend/device.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Words of a session's timeline (session/timeline.c). They outlive its jobs. */
struct fa_timeline_words {
	struct fa_timeline_in *in;
	struct fa_timeline_out *out;
	pthread_mutex_t mutex;
	/* What was written to `out`; private to the daemon. */
	_Atomic uint64_t values[FA_TIMELINE_SLOTS];
	/* The words as the device addresses them; NULL: not mapped. */
	const struct fa_timeline_in *_Atomic in_at;
};

struct fa_gate {
	uint64_t value;
	uint32_t slot;
	bool out; /* the daemon's slot */
};

struct fa_gates {
	struct fa_timeline_words *words;
	unsigned int n_waits, n_signals;
	unsigned int n_met;     /* in order */
	struct fa_gate gates[]; /* waits, then signals */
};

static inline struct fa_gate *fa_gates_signals(struct fa_gates *gates)
{
	return gates->gates + gates->n_waits;
}

/* A met wait stays met. */
bool fa_gates_met(struct fa_gates *gates);

/* After fa_gates_met() returned false. True: one wait is left, and the device can poll its word.
 * @ret_wait may be NULL. */
bool fa_gates_last_wait(const struct fa_gates *gates, struct fa_device_gate *ret_wait);

void fa_gates_signal(struct fa_gates *gates, int status);
