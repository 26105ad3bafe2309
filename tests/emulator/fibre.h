/*
 * The emulator's own: what its parts know of one another. A part's state is of the block that
 * runs, and begins anew with each.
 */
#pragma once

#include "tests/emulator/emulator.h"

#include <stdio.h>
#include <stdlib.h>

#define THREADS_MAX 640
#define WARPS_MAX (THREADS_MAX / 32)
#define SHARED_MAX FA_EMULATED_SHARED_MAX

/* The fibre that runs, and how many the block has. */
extern uint32_t current, n_threads;

#define DIE(...)                                                                                   \
	do {                                                                                       \
		fprintf(stderr, "block %u,%u thread %u: ", blockIdx.x, blockIdx.y, current);       \
		fprintf(stderr, __VA_ARGS__);                                                      \
		fprintf(stderr, "\n");                                                             \
		abort();                                                                           \
	} while (0)

uint32_t random_below(uint32_t n);

/* Dies unless the thread has awaited the launch ahead. */
void must_have_awaited(const char *what);

/* Gives way to others, until *@at is no longer @value. Whoever changes such a word says that
 * something happened. */
void wait_until_not(const uint64_t *at, uint64_t value);
void happened(void);

/* Where threads meet (meet.cu); what one waits for there, if it does, for a message. */
void meet_begin(void);
void meet_explain(const uint64_t *at);

/* Copies (copy.cu). */
void copy_begin(void);
void copy_explain(const uint64_t *at);
bool copy_any(void);    /* under way */
void copy_seldom(void); /* perhaps one happens */
void copy_one(void);    /* one does */
/* Shared memory as the asynchronous proxy sees it. */
const char *shared_async(uint32_t address, uint32_t bytes);
/* Swizzled as for boxes of 128 bytes: bits 4 to 6 of an address by bits 7 to 9. */
static inline uint32_t swizzle(uint32_t address)
{
	return address ^ (address >> 7 & 7) << 4;
}

/* Words that blocks share (share.cu), of a launch. */
void share_begin(void);

/* Products by wgmma (product.cu). */
void product_begin(void);
void product_thread_end(void);
