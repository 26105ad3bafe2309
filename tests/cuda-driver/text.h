/* Modules of text (PTX): the driver knows their kernels by name, and computes them itself. */
#pragma once

#include "tests/cuda-driver/driver.h"

#define FA_FAKE_TEXT_PARAMS 4 /* at most, of 8 bytes each */

struct fa_fake_text_kernel;

/* Returns whether @data is PTX. */
bool fa_fake_is_text(const void *data);
/* Returns the kernel of that name, or NULL. */
const struct fa_fake_text_kernel *fa_fake_text_kernel_find(const char *name);
CUresult fa_fake_text_launch(const struct fa_fake_text_kernel *kernel,
                             const CUDA_KERNEL_NODE_PARAMS_v2 *wanted, CUstream stream);
