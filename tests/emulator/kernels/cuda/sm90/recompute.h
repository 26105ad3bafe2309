/* The real header, with a count of its calls. */
#pragma once

#include "tests/emulator/emulator.h"

#define fa_sm90_recompute fa_sm90_recompute_uncounted
#include "../../../../../kernels/cuda/sm90/recompute.h"
#undef fa_sm90_recompute

template <class C>
static inline void fa_sm90_recompute(const typename C::ARGS &args, uint32_t group,
                                     typename C::CHECK check)
{
	fa_emulated_recomputed();
	fa_sm90_recompute_uncounted<C>(args, group, check);
}
