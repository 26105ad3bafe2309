/*
 * Interfaces among the emulator's files. Each file's state belongs to the running block and is
 * reset for each block.
 */
#pragma once

#include "tests/emulator/emulator.h"

#include <stdio.h>
#include <stdlib.h>

#define THREADS_MAX 640
#define WARPS_MAX (THREADS_MAX / 32)
#define SHARED_MAX FA_EMULATED_SHARED_MAX

/* The running fibre's index, and the block's number of threads. */
extern uint32_t current, n_threads;

#define DIE(...)                                                                                   \
	do {                                                                                       \
		fprintf(stderr, "block %u,%u thread %u: ", blockIdx.x, blockIdx.y, current);       \
		fprintf(stderr, __VA_ARGS__);                                                      \
		fprintf(stderr, "\n");                                                             \
		abort();                                                                           \
	} while (0)

uint32_t random_below(uint32_t n);

/* Dies unless the thread has waited for the preceding launch. */
void must_have_awaited(const char *what);

/* Yields until *@at differs from @value. Code that changes a word that is waited for calls
 * happened(). */
void wait_until_not(const uint64_t *at, uint64_t value);
void happened(void);

/* Synchronisation (sync.cu). sync_explain() prints the barrier that a thread waits at. */
void sync_begin(void);
void sync_explain(const uint64_t *at);

void copy_begin(void);
void copy_explain(const uint64_t *at);
bool copy_any(void);    /* true: copies are in flight */
void copy_seldom(void); /* may complete a copy */
void copy_one(void);    /* completes one */
/* Returns shared memory as the async proxy sees it. */
const char *shared_async(uint32_t address, uint32_t bytes);
/* Applies the 128-byte swizzle: bits 4 to 6 of an address XOR bits 7 to 9. */
static inline uint32_t swizzle(uint32_t address)
{
	return address ^ (address >> 7 & 7) << 4;
}

void partials_begin(void);

void wgmma_begin(void);
void product_thread_end(void);
