/*
 * Gates of jobs: timeline slots and values that a job waits for, or signals when it finishes.
 *
 * Waits for the daemon's slots read private values: a client that overwrites its timeline affects
 * its own gates only. Any thread may signal; the timeline's mutex keeps a slot's words consistent.
 * Waits are scheduler state.
 */
#pragma once

#include "common/timeline.h"
#include "daemon/backend/device.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A session's timeline; session/timeline.c makes it. Outlives the session's jobs. */
struct fa_timeline_words {
	struct fa_timeline_in *in;
	struct fa_timeline_out *out;
	pthread_mutex_t mutex;
	_Atomic uint64_t values[FA_TIMELINE_SLOTS]; /* of out; private to the daemon */
	/* Device address of in; NULL: not mapped. Set by the loop thread. */
	const struct fa_timeline_in *_Atomic in_at;
};

struct fa_gate {
	uint64_t value;
	uint32_t slot;
	bool out; /* the daemon's slot, not the client's */
};

struct fa_gates {
	struct fa_timeline_words *words;
	unsigned int n_waits, n_signals;
	unsigned int n_met;     /* waits are checked in order */
	struct fa_gate gates[]; /* waits, then signals */
};

static inline struct fa_gate *fa_gates_signals(struct fa_gates *gates)
{
	return gates->gates + gates->n_waits;
}

/* Returns true if all waits are met; a met wait stays met. */
bool fa_gates_met(struct fa_gates *gates);

/* After fa_gates_met() was false: returns true if one wait is left whose word the device can poll.
 * @ret_wait may be NULL. */
bool fa_gates_last_wait(const struct fa_gates *gates, struct fa_device_gate *ret_wait);

void fa_gates_signal(struct fa_gates *gates, int status);
