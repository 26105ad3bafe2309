/*
 * Runs preemptible launches (kernels/cuda/common/preempt.h) as the daemon does: another stream asks
 * the kernel to yield, and the launch is repeated until no block is left.
 */
#pragma once

#include "common/cudriver.h"
#include "kernels/cuda/common/args.h"

#include <stdint.h>

/* Zero-initialised; allocated at the first launch. */
struct fa_yielder {
	CUstream stream; /* writes the word that asks to yield */
	CUdeviceptr word, counter, area;
	size_t area_bytes;
	uint64_t *told; /* host memory: the completion word, the number of blocks left */
	uint64_t turn, counted;
};

struct fa_yielder_launch {
	CUfunction function;
	uint32_t grid, threads, shared_bytes, state_bytes;
	uint32_t slots;                      /* slots for saved states */
	struct fa_cuda_attention *attention; /* the part of args to change */
	void **args;
	CUstream stream;
};

/*
 * Preempts the launch's first runs after pauses of less than @most_ns and repeats it until it
 * completes. Returns the number of yields. Exits on any failure.
 */
uint32_t fa_yielder_run(struct fa_yielder *yielder, const struct fa_cudriver *driver,
                        const struct fa_yielder_launch *launch, uint64_t most_ns, uint64_t *random);
void fa_yielder_close(struct fa_yielder *yielder, const struct fa_cudriver *driver);
