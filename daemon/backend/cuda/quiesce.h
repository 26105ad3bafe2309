/* Keeps driver calls that wait for the GPU apart from long works. A worker makes such calls within
 * a window: while one is open, no long work is in flight. window_* are the workers' functions, the
 * others are the engine thread's and never wait. */
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
	unsigned int n_long; /* in flight */
	unsigned int n_windows;
	unsigned int n_waiting; /* workers that wait for n_long to be 0 */
	uint64_t force_ns;      /* from then on nonpreemptible works are held for them */
	uint64_t closed_ns;     /* when a window last closed that held up a work */
	bool held;              /* a long work could not begin so far */

	atomic_bool wanted; /* n_waiting is not 0 */
	/* The engine thread's: long works that cannot be preempted. */
	unsigned int n_nonpreemptible;
	uint64_t nonpreemptible_until_ns; /* expected end of the last */
};

/* A worker's window; starts as { .quiesce = ... }. */
struct fa_cuda_quiesce_window {
	struct fa_cuda_quiesce *quiesce;
	uint64_t until_ns; /* 0: closed */
	bool waited;
	bool forced; /* nonpreemptible works were held for it */
};

void fa_cuda_quiesce_init(struct fa_cuda_quiesce *quiesce);
void fa_cuda_quiesce_deinit(struct fa_cuda_quiesce *quiesce);

/* Waits for the window, unless it is still open; call without the driver lock before each call that
 * waits for the GPU. Long works are held until the window is closed: do nothing else meanwhile, and
 * make no call once it has expired. */
void fa_cuda_quiesce_window_open(struct fa_cuda_quiesce_window *window);
bool fa_cuda_quiesce_window_expired(const struct fa_cuda_quiesce_window *window);
void fa_cuda_quiesce_window_close(struct fa_cuda_quiesce_window *window);

/* Returns whether a long work may begin. @nonpreemptible_ns: how long it takes; 0: it is
 * preemptible. If true, call long_end() when it has ended or was stopped. */
bool fa_cuda_quiesce_long_begin(struct fa_cuda_quiesce *quiesce, uint64_t nonpreemptible_ns);
void fa_cuda_quiesce_long_end(struct fa_cuda_quiesce *quiesce);
/* The work was launched. Returns when it should have ended. */
uint64_t fa_cuda_quiesce_nonpreemptible_begin(struct fa_cuda_quiesce *quiesce,
                                              uint64_t nonpreemptible_ns);
/* Includes long_end(). @until_ns: when the other nonpreemptible works should have ended. */
void fa_cuda_quiesce_nonpreemptible_end(struct fa_cuda_quiesce *quiesce, uint64_t until_ns);
/* The work that could not begin was cancelled. */
void fa_cuda_quiesce_forget_held(struct fa_cuda_quiesce *quiesce);
/* Returns whether workers wait, and only for preemptible works. */
bool fa_cuda_quiesce_wants_preemption(const struct fa_cuda_quiesce *quiesce);
