/*
 * The facts of <cuda.h>; also asserts that each function of common/cudriver.h has the same type.
 */
#include "tests/unit/cudriver-facts.h"

#ifdef HAVE_CUDA_H
#include <cuda.h>

#include "common/cudriver.h"

#define SAME(name, params)                                                                         \
	_Static_assert(__builtin_types_compatible_p(CUresult(*) params, __typeof__(&name)),        \
	               #name " is declared otherwise by <cuda.h>");
FA_CUDRIVER_CLIENT(SAME)
FA_CUDRIVER_REST(SAME)

static const struct cudriver_fact facts[] = { CUDRIVER_FACTS };
const struct cudriver_fact *const cudriver_theirs = facts;
#else
const struct cudriver_fact *const cudriver_theirs;
#endif
