/*
 * The facts of common/cudriver.h.
 */
#include "common/cudriver.h"
#include "tests/unit/cudriver-facts.h"

#ifdef CUDA_VERSION
#error "this file must not see <cuda.h>"
#endif

const struct cudriver_fact cudriver_ours[] = { CUDRIVER_FACTS };
