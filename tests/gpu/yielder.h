/*
 * Launches that give way on a GPU (kernels/cuda/common/yield.h), as the daemon has them: asked
 * while they run by a word that another stream writes, launched again until nothing is left.
 */
#pragma once

#include "common/cudriver.h"
#include "kernels/cuda/common/args.h"

#include <stdint.h>

/* What of its own a launch needs for that; made of zeros, and with the first launch. */
struct fa_yielder {
	CUstream stream; /* on which the word is written */
	CUdeviceptr word, counter, area;
	size_t area_bytes;
	uint64_t *told; /* of the host: the end; how many blocks are left */
	uint64_t turn, counted;
};

struct fa_yielder_launch {
	CUfunction function;
	uint32_t grid, threads, shared_bytes, state_bytes;
	uint32_t slots;                      /* for states */
	struct fa_cuda_attention *attention; /* what of @args to change */
	void **args;
	CUstream stream;
};

/*
 * Launches until the end is told, and asks the first times after a pause of less than @most_ns
 * each. Returns how often it stopped. Dies of whatever fails.
 */
uint32_t fa_yielder_run(struct fa_yielder *yielder, const struct fa_cudriver *driver,
                        const struct fa_yielder_launch *launch, uint64_t most_ns, uint64_t *random);
void fa_yielder_close(struct fa_yielder *yielder, const struct fa_cudriver *driver);
