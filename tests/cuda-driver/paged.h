/* Kernels over pages, computed plainly from the arguments of a launch. */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdbool.h>

/* Returns why the launch does not fit its row of the table, or NULL. Reads through the launch's
 * addresses, so a wrong address crashes. */
const char *fa_fake_paged_wrong(const struct fa_cuda_paged_launch *launch);
void fa_fake_paged_run(const struct fa_cuda_paged_launch *launch);
