/* Finds the emulated kernel of a row in the host's table of paged kernels. */
#pragma once

#include "kernels/cuda/paged-plan.h"
#include "tests/emulator/launch.h"

/* Returns the emulated @kernel; ends the process if there is none. */
const struct fa_emulated_kernel *fa_emulated_find(const struct fa_cuda_paged_kernel *kernel);
