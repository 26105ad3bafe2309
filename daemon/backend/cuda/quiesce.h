/*
 * Keeps driver calls that wait for the GPU apart from long launches. A worker makes such calls
 * within a window, which opens while no long launch is in flight; while it is open none begins.
 * window_* are called by workers, everything else by the engine thread, which never waits here.
 */
#pragma once

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fa_cuda_quiesce {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	/* Under the mutex. */
	unsigned int n_long;    /* long works in flight */
	unsigned int n_windows; /* open ones */
	unsigned int n_waiting; /* workers that wait for n_long to become 0, ... */
	uint64_t force_ns;      /* ... and for which fixed works are held from then on */
	uint64_t closed_ns;     /* when the last window closed that held up something */
	bool held;              /* a long work could not begin, and has not begun since */

	atomic_bool wanted; /* n_waiting is not 0 */
	/* The engine thread's. A fixed work is a long one that cannot be preempted. */
	unsigned int n_fixed;
	uint64_t fixed_until_ns; /* expected end of the last fixed work */
};

/* A worker's window; starts as { .quiesce = ... }. */
struct fa_cuda_quiesce_window {
	struct fa_cuda_quiesce *quiesce;
	uint64_t until_ns; /* 0: closed */
	bool waited;       /* it did not open at once */
	bool forced;       /* fixed works were held for it */
};

void fa_cuda_quiesce_init(struct fa_cuda_quiesce *quiesce);
void fa_cuda_quiesce_deinit(struct fa_cuda_quiesce *quiesce);

/* Opens the window before a call that waits for the GPU, unless it is still open. Waits, so the
 * caller must not hold the driver lock. Do nothing but such calls until the window is closed, and
 * none once it has expired: long works are held meanwhile. */
void fa_cuda_quiesce_window_open(struct fa_cuda_quiesce_window *window);
bool fa_cuda_quiesce_window_expired(const struct fa_cuda_quiesce_window *window);
void fa_cuda_quiesce_window_close(struct fa_cuda_quiesce_window *window);

/* Returns whether a long work may begin. @fixed_ns: how long it takes, or 0 if it can be preempted.
 * If true, call long_end() when it has ended or was stopped. */
bool fa_cuda_quiesce_long_begin(struct fa_cuda_quiesce *quiesce, uint64_t fixed_ns);
void fa_cuda_quiesce_long_end(struct fa_cuda_quiesce *quiesce);
/* A fixed work was launched. Returns when it should have ended. */
uint64_t fa_cuda_quiesce_fixed_begin(struct fa_cuda_quiesce *quiesce, uint64_t fixed_ns);
/* It has ended, which includes long_end(). @until_ns: when the other fixed works should end. */
void fa_cuda_quiesce_fixed_end(struct fa_cuda_quiesce *quiesce, uint64_t until_ns);
/* The work that could not begin will not be launched any more. */
void fa_cuda_quiesce_forget_held(struct fa_cuda_quiesce *quiesce);
/* Returns whether workers wait, and only for works that can be preempted. */
bool fa_cuda_quiesce_wants_preemption(const struct fa_cuda_quiesce *quiesce);
