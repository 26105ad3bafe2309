/*
 * The vector layer that the kernels are written in. The build names one of the vec-*.h files in
 * FA_CPU_VEC; each defines
 *
 *   VEC_LANES                  floats in a vec
 *   VEC_PANEL_VECTORS, _SCALARS  register block of the many_rows kernel
 *   VEC_ACCUMULATORS           accumulator registers of the few_rows kernel
 *   VEC_FLOPS                  a low estimate of a thread's speed
 *   VEC_HAS_F16                vec_from_f16 and vec_to_f16 exist
 *   VEC_HAS_DOT                vec_dot (c + products of two bf16 pairs a lane) and
 *                              vec_pair_bf16 (rounds and pairs) exist
 *   vec_max(a, b)              b if either is NaN
 *   vec_select(m, a, b)        a where m, else b
 *   vec_round                  to the nearest integer, ties to even
 *   vec_scale_exp2(a, n, shift, x, lowest)  a * 2^(n - shift) for integers n - shift of -126 to
 *                              127; NaN stays; 0 where x is less than lowest, whatever a and n are
 *   vec_load_u32(p, n)         n words, a multiple of 4 up to VEC_LANES; the rest is 0
 *   vec_load_8, vec_load_u16_8  8 elements, the rest is 0; only with 16 lanes
 *   vec_sum, vec_highest       over the lanes
 *   vec_sums(x)                lane i is the sum over the lanes of x[i]
 *
 * Everything is static, so that no code of one instruction set is linked into another's.
 */
#pragma once

#include "kernels/attention.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include FA_CPU_VEC

#ifndef VEC_HAS_F16
#define VEC_HAS_F16 0
#endif
#ifndef VEC_HAS_DOT
#define VEC_HAS_DOT 0
#endif

#define VEC_INLINE static inline __attribute__((always_inline))

/* Without unrolling, registers become memory. */
#ifdef __clang__
#define VEC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VEC_UNROLL _Pragma("GCC unroll 16")
#endif

#define VEC_LOG2E 1.44269504088896340736
#define VEC_LN2 0.69314718055994530942

/* ---- elements */

VEC_INLINE int vec_element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

VEC_INLINE vec_u32 vec_widen(vec_u16 h)
{
	return __builtin_convertvector(h, vec_u32);
}

#if !VEC_HAS_F16

static inline vec vec_from_f16(vec_u16 h)
{
	vec_u32 bits = vec_widen(h);
	vec_u32 magnitude = (bits & 0x7fffu) << 13;
	vec_u32 special = (vec_u32)(magnitude >= 0x7c00u << 13) & 0x7f800000u;
	vec x = (vec)magnitude * vec_set(0x1p112f); /* moves the exponent, and normalises */

	return (vec)((vec_u32)x | special | (bits & 0x8000u) << 16);
}

static inline vec_u16 vec_to_f16(vec x)
{
	vec_u32 bits = (vec_u32)x;
	vec_u32 magnitude = bits & 0x7fffffffu;
	vec_u32 sign = (bits ^ magnitude) >> 16;
	vec_u32 normal, subnormal, is_nan, is_inf, is_subnormal;

	/* Normal: round the low 13 bits to even, then move the exponent. */
	normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
	/* Below 2^-14 the sum's last bit is worth 2^-24, so the addition rounds. */
	subnormal = (vec_u32)((vec)magnitude + vec_set(0.5f)) - 0x3f000000u;

	is_subnormal = (vec_u32)(magnitude < 0x38800000u);
	is_inf = (vec_u32)(magnitude >= 0x477ff000u); /* 65520 and up */
	is_nan = (vec_u32)(magnitude > 0x7f800000u);
	bits = (is_subnormal & subnormal) | (~is_subnormal & normal);
	bits = (is_inf & 0x7c00u) | (~is_inf & bits);
	bits = (is_nan & 0x7e00u) | (~is_nan & bits);
	return __builtin_convertvector(bits | sign, vec_u16);
}

#endif

VEC_INLINE vec vec_from_bf16(vec_u16 h)
{
	return (vec)(vec_widen(h) << 16);
}

VEC_INLINE vec_u16 vec_to_bf16(vec x)
{
	vec_u32 bits = (vec_u32)x;
	vec_u32 is_nan = (vec_u32)((bits & 0x7fffffffu) > 0x7f800000u);

	bits = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
	bits = (is_nan & 0x7fc0u) | (~is_nan & bits);
	return __builtin_convertvector(bits, vec_u16);
}

/* @n: VEC_LANES, or 8, as dims are multiples of 8; the rest is 0. */
VEC_INLINE vec vec_load_elements(enum fa_attention_dtype dtype, const void *p, int n)
{
	vec_u16 h;

#if VEC_LANES > 8
	/* memcpy() would store to the stack what the load then waits for. */
	if (n < VEC_LANES && dtype == FA_ATTENTION_F32)
		return vec_load_8(p);
	if (n < VEC_LANES) {
		h = vec_load_u16_8(p);
		return dtype == FA_ATTENTION_F16 ? vec_from_f16(h) : vec_from_bf16(h);
	}
#endif
	if (dtype == FA_ATTENTION_F32)
		return vec_load(p);
	memcpy(&h, p, sizeof(h));
	return dtype == FA_ATTENTION_F16 ? vec_from_f16(h) : vec_from_bf16(h);
}

VEC_INLINE void vec_store_elements(enum fa_attention_dtype dtype, void *p, vec x, int n)
{
	vec_u16 h;

	if (dtype == FA_ATTENTION_F32) {
		memcpy(p, &x, n < VEC_LANES ? 32 : sizeof(x));
		return;
	}
	h = dtype == FA_ATTENTION_F16 ? vec_to_f16(x) : vec_to_bf16(x);
	memcpy(p, &h, n < VEC_LANES ? 16 : sizeof(h));
}

/* ---- functions */

/* 2^(x - shift) for x <= 127 and an integer @shift of 0 to 100, as exact as for shift 0: to about 1
 * ulp; 0 below 2^-126, without subnormals; NaN stays. Minimax polynomial of 2^f, |f| <= 1/2, error
 * 2.6e-9. */
VEC_INLINE vec vec_exp2_shifted(vec x, int shift)
{
	const vec lowest = vec_set((float)(shift - 126));
	vec n = vec_round(x);
	vec f = x - n;
	vec y = vec_set(1.55946776e-4f);

	y = vec_fma(y, f, vec_set(1.34066439e-3f));
	y = vec_fma(y, f, vec_set(9.61769297e-3f));
	y = vec_fma(y, f, vec_set(5.55031055e-2f));
	y = vec_fma(y, f, vec_set(2.40226528e-1f));
	y = vec_fma(y, f, vec_set(6.93147215e-1f));
	y = vec_fma(y, f, vec_set(1.0f));
	return vec_scale_exp2(y, n, shift, x, lowest);
}

VEC_INLINE vec vec_exp2(vec x)
{
	return vec_exp2_shifted(x, 0);
}

/* An odd minimax polynomial near 0; else 1 - 2 / (e^2|x| + 1). */
VEC_INLINE vec vec_tanh(vec x)
{
	const vec one = vec_set(1.0f);
	vec a = vec_abs(x), a2 = a * a, near, far, bounded;

	near = vec_set(-5.71704535e-3f);
	near = vec_fma(near, a2, vec_set(2.06505876e-2f));
	near = vec_fma(near, a2, vec_set(-5.37434982e-2f));
	near = vec_fma(near, a2, vec_set(1.33314913e-1f));
	near = vec_fma(near, a2, vec_set(-3.33332839e-1f));
	near = vec_fma(near * a2, a, a);

	bounded = vec_select(vec_less(vec_set(16.0f), a), vec_set(16.0f), a);
	far = one - vec_set(2.0f) / (vec_exp2(bounded * vec_set((float)(2 * VEC_LOG2E))) + one);

	a = vec_select(vec_less(a, vec_set(0.625f)), near, far);
	return vec_select(vec_less(x, vec_set(0.0f)), vec_set(0.0f) - a, a);
}
