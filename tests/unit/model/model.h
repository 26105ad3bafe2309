/*
 * A model checker: tries every order of the memory accesses of a few threads, with a store buffer
 * per processor as on x86 (an exchange empties it first).
 *
 * A thread is a function that touches shared memory only by the calls of common/memory.h and
 * those below. It is rerun from its start, with the recorded results of its past accesses, and
 * stops at the first new access. So a thread's state is the list of these results; a global state
 * is memory, buffers and lists. Each is visited once.
 *
 * A waiting thread takes a signal and goes on. If no thread can go on and not all have returned,
 * a wake-up was lost.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_MODEL_THREADS_MAX 3
#define FA_MODEL_SIGNALS 2

/* The shared memory: 8-byte words, initially 0. */
#define FA_MODEL_WORDS 1024
extern _Alignas(64) uint64_t fa_model_memory[FA_MODEL_WORDS];

typedef void fa_model_thread(void);

struct fa_model {
	fa_model_thread *threads[FA_MODEL_THREADS_MAX];
	size_t n_threads;
	bool first; /* stop at the first lost wake-up */
	bool lax;   /* an exchange is a plain load and a buffered store */
};

struct fa_model_result {
	uint64_t states;
	uint64_t lost;   /* states in which a thread sleeps for ever */
	uint64_t ends;   /* states in which all threads have returned */
	uint64_t broken; /* failures of fa_model_check() */
};

void fa_model_run(const struct fa_model *model, struct fa_model_result *ret_result);

/* ---- for threads */

/* Like a write to an eventfd: the signal stays until a wait takes it. */
void fa_model_signal(int signal);
void fa_model_wait(int signal);

void fa_model_check(bool holds);
