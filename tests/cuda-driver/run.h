/* Kernels that take time, and preemptible ones (kernels/cuda/common/preempt.h). */
#pragma once

#include "kernels/cuda/common/args.h"
#include "tests/cuda-driver/driver.h"

/* Waits until a kernel may end: at @end_ns or later, and when kernels are not held. */
void fa_fake_run_until(const struct fa_fake_context *context, uint64_t end_ns);

/* Runs a preemptible kernel. If asked to stop, it leaves undone the share of blocks for which time
 * is left, reports them, and sets *ret_preempted. When resumed, it must begin with those blocks,
 * and takes the remaining time. Results are computed when all blocks are done. */
CUresult fa_fake_run_preemptible(struct fa_fake_context *context, uint64_t ns,
                                 const struct fa_cuda_attention *args, uint64_t blocks,
                                 bool *ret_preempted);

/* Signals the launch's end if the launch itself is to do that, not the driver. */
CUresult fa_fake_signal_end(struct fa_fake_context *context, const struct fa_cuda_done *done,
                            uint64_t blocks);
