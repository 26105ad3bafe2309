/* The real one, counted. */
#pragma once

#include "tests/emulator/emulator.h"

#define fa_sm90_redo fa_sm90_redo_uncounted
#include "../../../../../kernels/cuda/sm90/redo.h"
#undef fa_sm90_redo

template <class C> static inline void fa_sm90_redo(const typename C::ARGS &args, uint32_t group)
{
	fa_emulated_redone();
	fa_sm90_redo_uncounted<C>(args, group);
}
