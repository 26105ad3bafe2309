/* Keeps driver calls that wait for the GPU apart from long works. A worker makes such calls within
 * a window, during which no long work is in flight. Workers call window_*, the engine thread the
 * others, which never wait. */
#pragma once

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fa_cuda_quiesce {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	/* The mutex guards these fields. */
	unsigned int n_long; /* long works in flight */
	unsigned int n_windows;
	unsigned int n_waiting; /* workers waiting for n_long to be 0 */
	uint64_t force_ns;      /* nonpreemptible works are held from then on */
	uint64_t closed_ns;     /* last close of a window that held up a work */
	bool held;              /* a long work cannot begin */

	atomic_bool wanted; /* n_waiting is not 0 */
	/* The engine thread's fields, about long works that cannot be preempted. */
	unsigned int n_nonpreemptible;
	uint64_t nonpreemptible_until_ns; /* expected end of the last such work */
};

/* Starts as { .quiesce = ... }. */
struct fa_cuda_quiesce_window {
	struct fa_cuda_quiesce *quiesce;
	uint64_t until_ns; /* its end; 0: closed */
	bool waited;
	bool forced; /* nonpreemptible works were held for it */
};

void fa_cuda_quiesce_init(struct fa_cuda_quiesce *quiesce);
void fa_cuda_quiesce_deinit(struct fa_cuda_quiesce *quiesce);

/* Waits until the window is open. Call it without the driver lock before each call that waits for
 * the GPU. Long works wait until the window is closed: do nothing else meanwhile, and make no call
 * after it has expired. */
void fa_cuda_quiesce_window_open(struct fa_cuda_quiesce_window *window);
bool fa_cuda_quiesce_window_expired(const struct fa_cuda_quiesce_window *window);
void fa_cuda_quiesce_window_close(struct fa_cuda_quiesce_window *window);

/* Returns true if a long work may begin; call long_end() when it has ended or was stopped.
 * @nonpreemptible_ns: how long it takes; 0: preemptible. */
bool fa_cuda_quiesce_long_begin(struct fa_cuda_quiesce *quiesce, uint64_t nonpreemptible_ns);
void fa_cuda_quiesce_long_end(struct fa_cuda_quiesce *quiesce);
/* Call at the launch. Returns the expected end. */
uint64_t fa_cuda_quiesce_nonpreemptible_begin(struct fa_cuda_quiesce *quiesce,
                                              uint64_t nonpreemptible_ns);
/* Includes long_end(). @until_ns: expected end of the other nonpreemptible works. */
void fa_cuda_quiesce_nonpreemptible_end(struct fa_cuda_quiesce *quiesce, uint64_t until_ns);
/* Call when the work that could not begin was cancelled. */
void fa_cuda_quiesce_forget_held(struct fa_cuda_quiesce *quiesce);
/* Returns true if workers wait, and only for preemptible works. */
bool fa_cuda_quiesce_wants_preemption(const struct fa_cuda_quiesce *quiesce);
