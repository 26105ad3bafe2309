/*
 * A gate: a one-warp kernel that holds back its stream until a client's word reaches a value. It
 * gives up after a time or when the host asks, and sets `shut` to its run: launches behind it do
 * nothing, and later gates of the run give up at once. The first reports to the host, which takes
 * the launches back and gives the next ones a new run.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/control.h"

#include <stdint.h>

/* Polls of the client's word per poll of the host's. Each crosses the bus. */
#define FA_GATE_LOOKS 8

/* All threads of a kernel, first: they exit if the launch is to do nothing. The gate has finished,
 * so a plain load suffices. */
__device__ __forceinline__ void fa_gate_pass(const struct fa_cuda_done &done)
{
	if (done.gate_run && *done.shut == done.gate_run)
		fa_exit();
}

__device__ __forceinline__ bool fa_gate_is_open(const struct fa_cuda_gate &args)
{
	return (int64_t)(fa_ld_acquire_system(args.word) - args.value) >= 0;
}

/* One thread. Opening is not reported, as a write over the bus would delay it. */
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
