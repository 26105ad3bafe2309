/*
 * Tries every order in which the memory accesses of a few threads can happen, on a
 * machine whose stores wait in a buffer of their processor's before others see them (as
 * x86 has it; an exchange empties the buffer first).
 *
 * A thread is a function that touches shared memory only by the calls of common/memory.h
 * and those below. It is run again and again from its start: what its accesses gave so far
 * is given to it once more, and at the first access beyond it is left. So its state is the
 * list of these results, and a state of the whole is memory, buffers and lists; none is
 * looked at twice.
 *
 * A thread that waits for a signal goes on when there is one, and takes it. If nothing can
 * go on and not all threads have returned, a wake-up was lost.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_MODEL_THREADS_MAX 3
#define FA_MODEL_SIGNALS 2

/* All memory that threads share, zeroed at first; 8-byte words. */
#define FA_MODEL_WORDS 1024
extern _Alignas(64) uint64_t fa_model_memory[FA_MODEL_WORDS];

typedef void fa_model_thread(void);

struct fa_model {
	fa_model_thread *threads[FA_MODEL_THREADS_MAX];
	size_t n_threads;
	bool first; /* stop when a wake-up was lost */
	bool lax;   /* exchanges are a load and a store, which waits like any other */
};

struct fa_model_result {
	uint64_t states;
	uint64_t lost;   /* states in which somebody sleeps for ever */
	uint64_t ends;   /* states in which all have returned */
	uint64_t broken; /* times that fa_model_check() failed */
};

void fa_model_run(const struct fa_model *model, struct fa_model_result *ret_result);

/* ---- for threads */

/* Like a descriptor that is written and read: a signal stays until it is taken. */
void fa_model_signal(int signal);
void fa_model_wait(int signal);

void fa_model_check(bool holds);
