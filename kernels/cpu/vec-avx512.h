/*
 * The vector layer (vec.h) on AVX-512 (F, BW, DQ, VL), with bf16 dot products if compiled in.
 */
#pragma once

#include <immintrin.h>

#define VEC_LANES 16
#define VEC_PANEL_VECTORS 3 /* 3 x 8 accumulators, 3 of Q or P, 1 of K or V: 28 of 32 registers */
#define VEC_PANEL_SCALARS 8
#define VEC_ACCUMULATORS 16
#define VEC_FLOPS 50e9f
#define VEC_HAS_F16 1

typedef __m512 vec;
typedef __mmask16 vec_mask;
typedef uint16_t vec_u16 __attribute__((vector_size(32)));
typedef uint32_t vec_u32 __attribute__((vector_size(64)));

static inline vec vec_set(float x)
{
	return _mm512_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

/* Load the first 8 elements, and the first @n words, a multiple of 4; the rest is 0. */
static inline vec vec_load_8(const void *p)
{
	return _mm512_zextps256_ps512(_mm256_loadu_ps(p));
}

static inline vec_u16 vec_load_u16_8(const void *p)
{
	return (vec_u16)_mm256_zextsi128_si256(_mm_loadu_si128(p));
}

static inline vec_u32 vec_load_u32(const void *p, int n)
{
	return (vec_u32)_mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), p);
}

static inline void vec_store(float *p, vec x)
{
	_mm512_storeu_ps(p, x);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_max(vec a, vec b)
{
	return _mm512_max_ps(a, b);
}

static inline vec_mask vec_less(vec a, vec b)
{
	return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline vec_mask vec_equal(vec a, vec b)
{
	return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

static inline vec vec_select(vec_mask mask, vec a, vec b)
{
	return _mm512_mask_blend_ps(mask, b, a);
}

static inline vec vec_abs(vec a)
{
	return _mm512_abs_ps(a);
}

static inline vec vec_round(vec a)
{
	return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vec vec_scale_exp2(vec a, vec n, int shift, vec x, vec lowest)
{
	return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), a,
	                              n - vec_set((float)shift));
}

static inline float vec_sum(vec a)
{
	return _mm512_reduce_add_ps(a);
}

static inline vec vec_sums(const vec x[VEC_LANES])
{
	vec fours[4];

	for (int i = 0; i < 4; i++, x += 4) {
		__m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]) +
		                             _mm512_unpackhi_ps(x[0], x[1]));
		__m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]) +
		                             _mm512_unpackhi_ps(x[2], x[3]));

		fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) +
		           _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
	}
	for (int i = 0; i < 4; i += 2)
		fours[i] = _mm512_shuffle_f32x4(fours[i], fours[i + 1], 0x88) +
		           _mm512_shuffle_f32x4(fours[i], fours[i + 1], 0xdd);
	return _mm512_shuffle_f32x4(fours[0], fours[2], 0x88) +
	       _mm512_shuffle_f32x4(fours[0], fours[2], 0xdd);
}

static inline float vec_highest(vec a)
{
	return _mm512_reduce_max_ps(a);
}

static inline vec vec_from_f16(vec_u16 h)
{
	return _mm512_cvtph_ps((__m256i)h);
}

static inline vec_u16 vec_to_f16(vec x)
{
	return (vec_u16)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#ifdef __AVX512BF16__
#define VEC_HAS_DOT 1

static inline vec vec_dot(vec a, vec b, vec c)
{
	return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

static inline vec vec_pair_bf16(vec low, vec high)
{
	const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10,
	                                            25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
	                                            18, 2, 17, 1, 16, 0);
	__m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);

	return (vec)_mm512_permutexvar_epi16(interleave, both);
}
#endif
