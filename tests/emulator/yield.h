/*
 * Runs launches that yield (kernels/cuda/common/preempt.h) on the emulator, for C and C++. Blocks
 * are asked to yield at random reads of the word, and the launch is repeated until nothing is left.
 * Results must be bit by bit those of a launch without yields.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/plan.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns what a read of a word in device memory gives. */
uint64_t fa_emulated_load_word(const uint64_t *word);

struct fa_emulated_yielding {
	const char *symbol;
	uint32_t grid, threads, shared_bytes;
	uint32_t state_bytes;
	void (*run)(const void *args);
	const void *args;                    /* passed to run */
	struct fa_cuda_attention *attention; /* the part of the arguments to change */
	const struct fa_cuda_map *q;         /* tells the number of rows */
	bool unstable;                       /* results may differ */
};

/* Runs a completed launch again with yields, after @poison, and compares results; aborts if a
 * bit differs. Skips some calls at random. */
void fa_emulated_yield(const struct fa_emulated_yielding *launch,
                       void (*poison)(const void *userdata), const void *userdata);

/* Runs the launch with yields, without comparing; the caller has poisoned the outputs. Returns
 * how often the launch yielded. */
uint32_t fa_emulated_yield_run(const struct fa_emulated_yielding *launch);

#ifdef __cplusplus
}
#endif
