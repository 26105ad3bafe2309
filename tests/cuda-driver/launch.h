/* A launch, by whatever function of the driver. */
#pragma once

#include "tests/cuda-driver/driver.h"

/* Params that a kernel has at most. */
#define FA_FAKE_PARAMS 2

CUresult fa_fake_launch(const CUDA_KERNEL_NODE_PARAMS_v2 *wanted, CUstream stream);

/* How large its params are; 0: there is no such one. */
CUresult fa_fake_launch_bytes(const CUDA_KERNEL_NODE_PARAMS_v2 *wanted,
                              size_t ret_bytes[FA_FAKE_PARAMS]);
