/* Finds emulated paged kernels by rows of the host's table. */
#pragma once

#include "kernels/cuda/paged-plan.h"
#include "tests/emulator/launch.h"

/* Ends the process if @kernel is not emulated. */
const struct fa_emulated_kernel *fa_emulated_find(const struct fa_cuda_paged_kernel *kernel);
