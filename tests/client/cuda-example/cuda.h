/*
 * Replaces <cuda.h> when client/examples/cuda.c is built for the tests' CUDA driver. Maps the
 * driver's names to the functions of common/cudriver.h.
 */
#pragma once

#include "common/cudriver.h"

#define FA_PROTOTYPE(name, params) CUresult name params;
FA_CUDRIVER_CLIENT(FA_PROTOTYPE)
FA_CUDRIVER_REST(FA_PROTOTYPE)
#undef FA_PROTOTYPE
