/* Runs the real kernels over pages on the emulator, if the driver is linked with it
 * (tests/emulator/driver.c): slow, but in the order of a GPU. */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdbool.h>

/* Runs a launch, without signalling its end. False: no emulator is linked. */
bool fa_fake_emulate(struct fa_cuda_paged_launch *launch);
