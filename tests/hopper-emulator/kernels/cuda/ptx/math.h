#pragma once
#include "kernels/cuda/ptx/mma.h"

static inline float fa_ex2(float x)
{
	return exp2f(x);
}

static inline float fa_lg2(float x)
{
	return log2f(x);
}

static inline float fa_rcp(float x)
{
	return 1 / x;
}

template <class T> uint32_t fa_pack(float lo, float hi);

template <> inline uint32_t fa_pack<fa_f16>(float lo, float hi)
{
	return fa_emulated_to_f16(lo) | (uint32_t)fa_emulated_to_f16(hi) << 16;
}

template <> inline uint32_t fa_pack<fa_bf16>(float lo, float hi)
{
	return fa_emulated_to_bf16(lo) | (uint32_t)fa_emulated_to_bf16(hi) << 16;
}
