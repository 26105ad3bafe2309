/*
 * A launch that begins when a client says so, without the host's CPU between: a kernel of one
 * warp stands before it in its stream and looks at the client's word until that has come to a
 * value. That is quicker than a thread of the host's that looks at the word and then launches
 * (pair/tiny/timeline of fabench request).
 *
 * It looks for a while only: it gives up when its time is over, or when the host asks it to. Then
 * it shuts what is behind it: launches that do nothing when they find the word `shut` at their
 * run, and later gates of the same run, which shut themselves without a look, as what they
 * stand for comes after what did not happen. The host learns of the first of them, takes all
 * back, and gives the next ones another run.
 *
 * Other ways, and why not:
 *   - cuStreamWaitValue64(): as quick, but nobody can take it back, and where the driver lets
 *     streams share a queue all others of that queue wait, too;
 *   - blocks of the launch itself that look at the word: they would have SMs that the client's
 *     kernels, which they wait for, need;
 *   - a word in the device's own memory that the client's stream writes besides, after the host's,
 *     as it must not open a gate before that is there: half a trip over the bus nearer, but a write
 *     later. Pairs took 15.6 and 15.9 us with it and 14.8 and 15.2 without (fad by its ring, tiny,
 *     one H100, in turns; a race, no rows).
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/control.h"

#include <stdint.h>

/* Looks at the client's word between two at the host's. Each takes a trip over the bus. */
#define FA_GATE_LOOKS 8

/* All threads of a kernel, first: they end if it is to do nothing. The gate has ended before, so
 * that a plain load sees what it wrote. */
__device__ __forceinline__ void fa_gate_pass(const struct fa_cuda_done &done)
{
	if (done.gate_run && *done.shut == done.gate_run)
		fa_exit();
}

/* What the client wrote before the word is seen by what comes behind. */
__device__ __forceinline__ bool fa_gate_is_open(const struct fa_cuda_gate &args)
{
	return (int64_t)(fa_ld_acquire_system(args.word) - args.value) >= 0;
}

/* One thread. It says nothing when it opens, as to write over the bus would hold up its end. */
__device__ __forceinline__ void fa_gate(const struct fa_cuda_gate &args)
{
	const uint64_t begin_ns = fa_timer_ns();

	if (*args.shut == args.run)
		return;
	for (uint32_t looks = 1; !fa_gate_is_open(args); looks++) {
		if (looks % FA_GATE_LOOKS != 0)
			continue;
		if (fa_ld_relaxed_system(args.stop) < args.turn &&
		    fa_timer_ns() - begin_ns < args.patience_ns)
			continue;
		*args.shut = args.run;
		fa_fence_system();
		fa_st_relaxed_system(args.report, args.turn);
		return;
	}
}
