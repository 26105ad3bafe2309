/* Launches kernels, for all functions of the driver that launch. */
#pragma once

#include "tests/cuda-driver/driver.h"

/* Maximum number of params of a kernel. */
#define FA_FAKE_PARAMS 2

CUresult fa_fake_launch(const CUDA_KERNEL_NODE_PARAMS_v2 *wanted, CUstream stream);

/* Returns the sizes of the kernel's params; a size is 0 if there is no such param. */
CUresult fa_fake_launch_bytes(const CUDA_KERNEL_NODE_PARAMS_v2 *wanted,
                              size_t ret_bytes[FA_FAKE_PARAMS]);
