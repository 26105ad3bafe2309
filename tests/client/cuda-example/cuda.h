/* Stands in for CUDA's header where client/examples/cuda.c is built for the tests'
 * driver: the functions of common/cudriver.h, by name. */
#pragma once

#include "common/cudriver.h"

#define FA_PROTOTYPE(name, params) CUresult name params;
FA_CUDRIVER_CLIENT(FA_PROTOTYPE)
FA_CUDRIVER_REST(FA_PROTOTYPE)
#undef FA_PROTOTYPE
