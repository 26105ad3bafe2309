/* The real one, counted. */
#pragma once

#include "tests/hopper-emulator/hopper.h"

#define fa_sm90_redo fa_sm90_redo_uncounted
#include "../../../../../kernels/cuda/sm90/redo.h"
#undef fa_sm90_redo

template <class C>
static inline void fa_sm90_redo(const struct fa_cuda_attention &args, uint32_t group)
{
	fa_hopper_redone();
	fa_sm90_redo_uncounted<C>(args, group);
}
