/*
 * The vector layer (vec.h) on any processor: four lanes, which the compiler turns into SSE2, NEON
 * or scalar code.
 */
#pragma once

#define VEC_LANES 4
#define VEC_PANEL_VECTORS 2
#define VEC_PANEL_SCALARS 4
#define VEC_ACCUMULATORS 8
#define VEC_FLOPS 5e9f

typedef float vec __attribute__((vector_size(16)));
typedef int32_t vec_mask __attribute__((vector_size(16)));
typedef uint16_t vec_u16 __attribute__((vector_size(8)));
typedef uint32_t vec_u32 __attribute__((vector_size(16)));

static inline vec vec_set(float x)
{
	return (vec){ x, x, x, x };
}

static inline vec vec_load(const float *p)
{
	vec x;

	memcpy(&x, p, sizeof(x));
	return x;
}

static inline vec_u32 vec_load_u32(const void *p, int n)
{
	vec_u32 x;

	memcpy(&x, p, sizeof(x));
	return x;
}

static inline void vec_store(float *p, vec x)
{
	memcpy(p, &x, sizeof(x));
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return a * b + c;
}

static inline vec_mask vec_less(vec a, vec b)
{
	return (vec_mask)(a < b);
}

static inline vec_mask vec_equal(vec a, vec b)
{
	return (vec_mask)(a == b);
}

static inline vec vec_select(vec_mask mask, vec a, vec b)
{
	return (vec)((mask & (vec_mask)a) | (~mask & (vec_mask)b));
}

static inline vec vec_max(vec a, vec b)
{
	return vec_select(vec_less(b, a), a, b);
}

static inline vec vec_abs(vec a)
{
	return (vec)((vec_u32)a & 0x7fffffffu);
}

/* Adding 1.5 x 2^23 leaves no bit for a fraction; exact enough for exp2. */
static inline vec vec_round(vec a)
{
	const vec magic = vec_set(0x1.8p23f);

	return (a + magic) - magic;
}

static inline vec vec_scale_exp2(vec a, vec n, int shift, vec x, vec lowest)
{
	vec_u32 bits = (vec_u32)(n + vec_set(0x1.8p23f)); /* the integer in the low bits */

	return vec_select(vec_less(x, lowest), vec_set(0.0f),
	                  a * (vec)((bits + 127u - (uint32_t)shift) << 23));
}

static inline float vec_sum(vec a)
{
	return (a[0] + a[2]) + (a[1] + a[3]);
}

static inline vec vec_sums(const vec x[VEC_LANES])
{
	return (vec){ vec_sum(x[0]), vec_sum(x[1]), vec_sum(x[2]), vec_sum(x[3]) };
}

static inline float vec_highest(vec a)
{
	float x = a[0] > a[1] ? a[0] : a[1];
	float y = a[2] > a[3] ? a[2] : a[3];

	return x > y ? x : y;
}
