/* Keeps driver calls that wait for the GPU apart from long works: a worker makes them within a
 * window, while no long work is in flight. Workers call window_*, the engine thread the rest, which
 * never wait. */
#pragma once

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fa_cuda_quiesce {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	/* Guarded by the mutex. */
	unsigned int n_long; /* in flight */
	unsigned int n_windows;
	unsigned int n_waiting; /* workers, for n_long to be 0 */
	uint64_t force_ns;      /* then nonpreemptible works are held */
	uint64_t closed_ns;     /* last window that held up a work */
	bool held;

	atomic_bool wanted; /* n_waiting is not 0 */
	/* Counts long works that cannot be preempted. Engine thread. */
	unsigned int n_nonpreemptible;
	uint64_t nonpreemptible_until_ns; /* of the last one */
};

/* Starts as { .quiesce = ... }. */
struct fa_cuda_quiesce_window {
	struct fa_cuda_quiesce *quiesce;
	uint64_t until_ns; /* its end; 0: closed */
	bool waited;
	bool forced; /* nonpreemptible works were held */
};

void fa_cuda_quiesce_init(struct fa_cuda_quiesce *quiesce);
void fa_cuda_quiesce_deinit(struct fa_cuda_quiesce *quiesce);

/* Waits for the window. Call it without the driver lock before each call that waits for the GPU.
 * Long works wait until the window is closed: do nothing else, and make no call after it has
 * expired. */
void fa_cuda_quiesce_window_open(struct fa_cuda_quiesce_window *window);
bool fa_cuda_quiesce_window_expired(const struct fa_cuda_quiesce_window *window);
void fa_cuda_quiesce_window_close(struct fa_cuda_quiesce_window *window);

/* True: a long work may begin; call long_end() when it has ended or was stopped.
 * @nonpreemptible_ns: its time; 0: preemptible. */
bool fa_cuda_quiesce_long_begin(struct fa_cuda_quiesce *quiesce, uint64_t nonpreemptible_ns);
void fa_cuda_quiesce_long_end(struct fa_cuda_quiesce *quiesce);
/* Call it at the launch. Returns the expected end. */
uint64_t fa_cuda_quiesce_nonpreemptible_begin(struct fa_cuda_quiesce *quiesce,
                                              uint64_t nonpreemptible_ns);
/* With long_end(). @until_ns: expected end of the other nonpreemptible works. */
void fa_cuda_quiesce_nonpreemptible_end(struct fa_cuda_quiesce *quiesce, uint64_t until_ns);
/* Call it when the work that could not begin was cancelled. */
void fa_cuda_quiesce_forget_held(struct fa_cuda_quiesce *quiesce);
/* Returns true if workers wait for preemptible works alone. */
bool fa_cuda_quiesce_wants_preemption(const struct fa_cuda_quiesce *quiesce);
