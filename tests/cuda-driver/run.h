/* Kernels that take time, and preemptible ones (kernels/cuda/common/preempt.h). */
#pragma once

#include "kernels/cuda/common/args.h"
#include "tests/cuda-driver/driver.h"

/* Waits until a kernel may end: after @end_ns, and not while kernels are held. */
void fa_fake_run_until(const struct fa_fake_context *context, uint64_t end_ns);

/* Runs a preemptible kernel. If asked to stop, it leaves a part of its blocks undone by the time
 * that is left, reports them, and sets *ret_preempted; resumed, it must begin with those, and takes
 * the rest of the time. Results are computed when all blocks are done. */
CUresult fa_fake_run_preemptible(struct fa_fake_context *context, uint64_t ns,
                                 const struct fa_cuda_attention *args, uint64_t blocks,
                                 bool *ret_preempted);

/* Signals the launch's end, if the launch is to do so itself. */
CUresult fa_fake_signal_end(struct fa_fake_context *context, const struct fa_cuda_done *done,
                            uint64_t blocks);
