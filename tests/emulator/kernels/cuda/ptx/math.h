#pragma once
#include "kernels/cuda/ptx/mma.h"
#include "tests/emulator/emulator.h"

#include <float.h>
#include <math.h>

static inline float fa_ex2(float x)
{
	return exp2f(x);
}

static inline float fa_lg2(float x)
{
	return log2f(x);
}

/* Flushes subnormals to zero, as the GPU does. */
static inline float fa_rcp(float x)
{
	const float inverse = 1 / (fabsf(x) < FLT_MIN ? copysignf(0, x) : x);

	return fabsf(inverse) < FLT_MIN ? copysignf(0, inverse) : inverse;
}

static inline float fa_select(bool which, float a, float b)
{
	return which ? a : b;
}

static inline int32_t fa_opaque_zero(void)
{
	return 0;
}

static inline float fa_to_vector_register(float x)
{
	return x;
}

static inline float fa_from_f16(uint16_t half)
{
	return fa_emulated_from_f16(half);
}

template <class T> inline uint32_t fa_pack(float lo, float hi);

template <> inline uint32_t fa_pack<fa_f16>(float lo, float hi)
{
	return fa_emulated_to_f16(lo) | (uint32_t)fa_emulated_to_f16(hi) << 16;
}

template <> inline uint32_t fa_pack<fa_bf16>(float lo, float hi)
{
	return fa_emulated_to_bf16(lo) | (uint32_t)fa_emulated_to_bf16(hi) << 16;
}

template <class T> static inline uint32_t fa_fma_packed(uint32_t a, uint32_t b, uint32_t c)
{
	float sums[2];

	for (int i = 0; i < 2; i++)
		sums[i] = fmaf(fa_widen<T>((uint16_t)(a >> 16 * i)),
		               fa_widen<T>((uint16_t)(b >> 16 * i)),
		               fa_widen<T>((uint16_t)(c >> 16 * i)));
	return fa_pack<T>(sums[0], sums[1]);
}

static inline uint32_t fa_e4m3_to_f16(uint32_t codes)
{
	uint32_t pair = 0;

	for (int i = 0; i < 2; i++) {
		const int code = codes >> 8 * i & 0xff, exponent = code >> 3 & 15;
		const float value = (code & 0x7f) == 0x7f ? NAN
		                    : exponent            ? ldexpf(8 + (code & 7), exponent - 10)
		                                          : ldexpf(code & 7, -9);

		pair |= (uint32_t)fa_emulated_to_f16(code & 0x80 ? -value : value) << 16 * i;
	}
	return pair;
}

static inline void fa_e4m3_to_f16_pairs(uint32_t codes, uint32_t &ret_first, uint32_t &ret_last)
{
	ret_first = fa_e4m3_to_f16(codes & 0xffff);
	ret_last = fa_e4m3_to_f16(codes >> 16);
}

template <class T> constexpr uint32_t fa_infinity(void);

template <> constexpr uint32_t fa_infinity<fa_f16>(void)
{
	return 0x7c00;
}

template <> constexpr uint32_t fa_infinity<fa_bf16>(void)
{
	return 0x7f80;
}
