/* The kernel that waits until a word in memory has a value (kernels/cuda/common/gate.h). */
#pragma once

#include "kernels/cuda/paged-plan.h"
#include "tests/cuda-driver/driver.h"

/* Waits for the word in the calling stream's thread. */
CUresult fa_fake_gate_run(struct fa_fake_context *context, const struct fa_cuda_gate *args);
