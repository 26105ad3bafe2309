/*
 * Launches that give way (kernels/cuda/common/yield.h) on the emulator, for C and C++: blocks
 * are asked at looks that are drawn, each for itself, and the launch is repeated until nothing
 * is left. What comes out has to be the same to the bit as without.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a look at a word in the device's memory sees. */
uint64_t fa_emulated_look(const uint64_t *word);

struct fa_emulated_yielding {
	const char *symbol;
	uint32_t grid, threads, shared_bytes;
	uint32_t state_bytes;
	void (*run)(const void *args);
	const void *args;                    /* for run */
	struct fa_cuda_attention *attention; /* the part of them to change */
	const struct fa_cuda_map *q;         /* which rows there are */
};

/* Has run without giving way: runs again, poisoned by @poison, giving way, and compares; aborts
 * where a bit differs. Not every time it is called. */
void fa_emulated_yield(const struct fa_emulated_yielding *launch,
                       void (*poison)(const void *userdata), const void *userdata);

/* Only the second part of it, with what the first wrote poisoned by the caller, and without
 * comparing. Returns how often it stopped. */
uint32_t fa_emulated_yield_run(const struct fa_emulated_yielding *launch);

#ifdef __cplusplus
}
#endif
