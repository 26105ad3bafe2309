/*
 * Gates of jobs: timeline slots and values that a job waits for, and those that it signals when
 * it finishes.
 *
 * Waits for the daemon's slots read private values, never the shared words: a client that
 * overwrites its timeline can only open or shut its own gates. Any thread may signal; the
 * timeline's mutex keeps the words of a slot consistent. Waits are scheduler state.
 */
#pragma once

#include "common/timeline.h"
#include "daemon/backend/device.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A session's timeline; made by session/timeline.c, outlives every job of the session. */
struct fa_timeline_words {
	struct fa_timeline_in *in;
	struct fa_timeline_out *out;
	pthread_mutex_t mutex;
	_Atomic uint64_t values[FA_TIMELINE_SLOTS]; /* of out; private to the daemon */
	/* Device address of in; NULL: not mapped there. Set by the loop thread. */
	const struct fa_timeline_in *_Atomic in_at;
};

struct fa_gate {
	uint64_t value;
	uint32_t slot;
	bool out; /* a slot of the daemon's, not of the client's */
};

/* The gates of one job. */
struct fa_gates {
	struct fa_timeline_words *words;
	unsigned int n_waits, n_signals;
	unsigned int n_met;     /* waits met so far; they are checked in order */
	struct fa_gate gates[]; /* the waits, and then the signals */
};

static inline struct fa_gate *fa_gates_signals(struct fa_gates *gates)
{
	return gates->gates + gates->n_waits;
}

/* Returns true if all waits are met. A wait that was met once stays met. */
bool fa_gates_met(struct fa_gates *gates);

/* After fa_gates_met() was false: returns true if one wait is left, and the device can poll its
 * word. @ret_wait may be NULL. */
bool fa_gates_last_wait(const struct fa_gates *gates, struct fa_device_gate *ret_wait);

/* Writes the signals of a job that finished with @status. */
void fa_gates_signal(struct fa_gates *gates, int status);
