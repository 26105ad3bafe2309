/* Kernels that run for a while, and those that give way (kernels/cuda/common/yield.h). */
#pragma once

#include "kernels/cuda/common/args.h"
#include "tests/cuda-driver/driver.h"

/* Until a kernel may end: not before @end_ns, and not while it is held up. */
void fa_fake_linger(const struct fa_fake_context *context, uint64_t end_ns);

/*
 * A kernel that may yield, while it would run: asked in time, it leaves its blocks undone, but for
 * as large a part of them as it has run of its time, and says so. Whether it did is *ret_yielded;
 * what it goes on from has to be what it left, and takes that part of the time. What is computed
 * is computed at once, when all blocks are done.
 */
CUresult fa_fake_linger_yielding(struct fa_fake_context *context, uint64_t ns,
                                 const struct fa_cuda_attention *args, uint64_t blocks,
                                 bool *ret_yielded);

/* A kernel's last block tells the launch's end, if it was asked to. */
CUresult fa_fake_tell(struct fa_fake_context *context, const struct fa_cuda_done *done,
                      uint64_t blocks);
