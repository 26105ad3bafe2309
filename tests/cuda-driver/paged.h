/* Kernels over pages, computed plainly from what a launch of them was given. */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdbool.h>

/*
 * Returns a sentence if the launch is not what the table's row asks for. Addresses are
 * followed: one that is wrong is found by the processor.
 */
const char *fa_fake_paged_wrong(const struct fa_cuda_paged_launch *launch);
void fa_fake_paged_run(const struct fa_cuda_paged_launch *launch);
