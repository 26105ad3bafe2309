/*
 * Kernels over pages as they are, on the emulator, where the driver is linked with that
 * (tests/emulator/driver.c); slow, but it computes what a GPU would, in the same order.
 */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdbool.h>

/* Runs a launch, but for telling its end. False: this driver does not. */
bool fa_fake_emulate(struct fa_cuda_paged_launch *launch);
