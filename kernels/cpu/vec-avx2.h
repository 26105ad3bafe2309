/*
 * The vector layer (vec.h) on AVX2 with FMA and F16C.
 */
#pragma once

#include <immintrin.h>

#define VEC_LANES 8
#define VEC_PANEL_VECTORS 3 /* 3 x 4 accumulators, 3 of Q or P, 1 of K or V: all 16 registers */
#define VEC_PANEL_SCALARS 4
#define VEC_ACCUMULATORS 8
#define VEC_FLOPS 40e9f
#define VEC_HAS_F16 1

typedef __m256 vec;
typedef __m256 vec_mask;
typedef uint16_t vec_u16 __attribute__((vector_size(16)));
typedef uint32_t vec_u32 __attribute__((vector_size(32)));

static inline vec vec_set(float x)
{
	return _mm256_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
	return _mm256_loadu_ps(p);
}

/* The first @n words, 4 or 8; the rest is 0. */
static inline vec_u32 vec_load_u32(const void *p, int n)
{
	if (n < VEC_LANES)
		return (vec_u32)_mm256_zextsi128_si256(_mm_loadu_si128(p));
	return (vec_u32)_mm256_loadu_si256(p);
}

static inline void vec_store(float *p, vec x)
{
	_mm256_storeu_ps(p, x);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_max(vec a, vec b)
{
	return _mm256_max_ps(a, b);
}

static inline vec_mask vec_less(vec a, vec b)
{
	return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

static inline vec_mask vec_equal(vec a, vec b)
{
	return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}

static inline vec vec_select(vec_mask mask, vec a, vec b)
{
	return _mm256_blendv_ps(b, a, mask);
}

static inline vec vec_abs(vec a)
{
	return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

static inline vec vec_round(vec a)
{
	return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vec vec_scale_exp2(vec a, vec n, int shift, vec x, vec lowest)
{
	__m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127 - shift));

	return _mm256_andnot_ps(_mm256_cmp_ps(x, lowest, _CMP_LT_OQ),
	                        a * _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

static inline float vec_sum(vec a)
{
	__m128 x = _mm256_castps256_ps128(a) + _mm256_extractf128_ps(a, 1);

	x += _mm_movehl_ps(x, x);
	return x[0] + x[1];
}

static inline vec vec_sums(const vec x[VEC_LANES])
{
	vec fours[2];

	for (int i = 0; i < 2; i++, x += 4) {
		__m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(x[0], x[1]) +
		                             _mm256_unpackhi_ps(x[0], x[1]));
		__m256d b = _mm256_castps_pd(_mm256_unpacklo_ps(x[2], x[3]) +
		                             _mm256_unpackhi_ps(x[2], x[3]));

		fours[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)) +
		           _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
	}
	return _mm256_permute2f128_ps(fours[0], fours[1], 0x20) +
	       _mm256_permute2f128_ps(fours[0], fours[1], 0x31);
}

static inline float vec_highest(vec a)
{
	__m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

	x = _mm_max_ps(x, _mm_movehl_ps(x, x));
	return x[0] > x[1] ? x[0] : x[1];
}

static inline vec vec_from_f16(vec_u16 h)
{
	return _mm256_cvtph_ps((__m128i)h);
}

static inline vec_u16 vec_to_f16(vec x)
{
	return (vec_u16)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
