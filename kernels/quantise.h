/*
 * Rows of K or V to 8-bit codes and back, as kernels/paged.h defines it. Pure functions, any
 * thread. With IEEE rounding to nearest they give the same bits on every instruction set.
 */
#pragma once

#include "kernels/paged.h"

#include <float.h>
#include <math.h>
#include <string.h>

static inline uint32_t fa_bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static inline float fa_float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* ---- codes */

static inline uint8_t fa_e4m3_encode(float x)
{
	uint32_t bits = fa_bits_of(x), magnitude = bits & 0x7fffffffu;
	uint32_t sign = bits >> 24 & 0x80u, code;

	if (magnitude > 0x7f800000u)
		return 0x7f;
	if (magnitude < 0x3c800000u) /* 2^-6: the sum's last bit is worth 2^-9 */
		code = fa_bits_of(fa_float_of(magnitude) + 0x1p14f) - fa_bits_of(0x1p14f);
	else if (magnitude > 0x43e00000u) /* 448 */
		code = 0x7e;
	else
		code = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - (120u << 23)) >> 20;
	return (uint8_t)(code | sign);
}

static inline float fa_e4m3_decode(uint8_t code)
{
	uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
	float x = fa_float_of(magnitude << 20) * 0x1p120f; /* moves the exponent, and normalises */

	return fa_float_of(magnitude == 0x7f ? 0x7fc00000u : fa_bits_of(x) | sign);
}

static inline uint8_t fa_int8_encode(float x)
{
	if (isnan(x))
		return 0;
	x = x > FA_PAGED_INT8_MAX ? FA_PAGED_INT8_MAX : x;
	x = x < -FA_PAGED_INT8_MAX ? -FA_PAGED_INT8_MAX : x;
	/* The sum's last bit is worth 1; its low byte is the code in two's complement. */
	return (uint8_t)fa_bits_of(x + 0x1.8p23f);
}

/* ---- rows */

static inline float fa_clamp_finite(float x)
{
	x = x > FLT_MAX ? FLT_MAX : x;
	return x < -FLT_MAX ? -FLT_MAX : x;
}

static inline void fa_encode_row(enum fa_paged_store store, const float *row, int32_t dim,
                                 float inverse, uint8_t *codes)
{
	for (int32_t c = 0; c < dim; c++) {
		float x = fa_clamp_finite(row[c]) * inverse;

		codes[c] = store == FA_PAGED_E4M3 ? fa_e4m3_encode(x) : fa_int8_encode(x);
	}
}

static inline void fa_quantise_row(enum fa_paged_store store, const float *row, int32_t dim,
                                   float scale, uint8_t *codes)
{
	fa_encode_row(store, row, dim, 1 / scale, codes);
}

/* Returns the row's scale. */
static inline float fa_quantise_token(enum fa_paged_store store, const float *row, int32_t dim,
                                      uint8_t *codes)
{
	float highest = 0, scale;
	bool has_nan = false;

	for (int32_t c = 0; c < dim; c++) {
		float magnitude = fabsf(fa_clamp_finite(row[c]));

		has_nan |= isnan(magnitude);
		highest = magnitude > highest ? magnitude : highest;
	}
	scale = highest / (store == FA_PAGED_E4M3 ? FA_PAGED_E4M3_MAX : FA_PAGED_INT8_MAX);
	if (scale < FLT_MIN)
		scale = 0;
	fa_encode_row(store, row, dim, scale > 0 ? 1 / scale : 0, codes);
	return has_nan && store == FA_PAGED_INT8 ? fa_float_of(0x7fc00000u) : scale;
}

static inline void fa_dequantise_row(enum fa_paged_store store, const uint8_t *codes, float scale,
                                     float *row, int32_t dim)
{
	if (store == FA_PAGED_E4M3) {
		for (int32_t c = 0; c < dim; c++)
			row[c] = fa_e4m3_decode(codes[c]) * scale;
	} else {
		for (int32_t c = 0; c < dim; c++)
			row[c] = (float)(int8_t)codes[c] * scale;
	}
}

/* ---- elements of a type as floats, and back, rounded to the nearest */

static inline float fa_f16_decode(uint16_t half)
{
	uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
	uint32_t special = magnitude >= 0x7c00u << 13 ? 0x7f800000u : 0;
	float x = fa_float_of(magnitude) * 0x1p112f;

	return fa_float_of(fa_bits_of(x) | special | (uint32_t)(half & 0x8000) << 16);
}

static inline uint16_t fa_f16_encode(float x)
{
	uint32_t bits = fa_bits_of(x), magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
	uint32_t half;

	if (magnitude > 0x7f800000u)
		half = 0x7e00;
	else if (magnitude >= 0x477ff000u) /* 65520 */
		half = 0x7c00;
	else if (magnitude < 0x38800000u) /* 2^-14 */
		half = fa_bits_of(fa_float_of(magnitude) + 0.5f) - fa_bits_of(0.5f);
	else
		half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
	return (uint16_t)(half | sign);
}

static inline uint16_t fa_bf16_encode(float x)
{
	uint32_t bits = fa_bits_of(x);

	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return 0x7fc0;
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline void fa_floats_of(enum fa_attention_dtype dtype, float *to, const void *from,
                                int32_t dim)
{
	const uint16_t *halves = from;

	if (dtype == FA_ATTENTION_F32) {
		memcpy(to, from, (size_t)dim * sizeof(*to));
		return;
	}
	for (int32_t c = 0; c < dim; c++)
		to[c] = dtype == FA_ATTENTION_F16 ? fa_f16_decode(halves[c])
		                                  : fa_float_of((uint32_t)halves[c] << 16);
}

static inline void fa_floats_to(enum fa_attention_dtype dtype, void *to, const float *from,
                                int32_t dim)
{
	uint16_t *halves = to;

	if (dtype == FA_ATTENTION_F32) {
		memcpy(to, from, (size_t)dim * sizeof(*from));
		return;
	}
	for (int32_t c = 0; c < dim; c++)
		halves[c] = dtype == FA_ATTENTION_F16 ? fa_f16_encode(from[c])
		                                      : fa_bf16_encode(from[c]);
}
