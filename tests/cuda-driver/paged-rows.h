/* Elements of all types, and where the rows of tensors and pages lie. */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* ---- elements */

/* Converts a half to a float. Subnormals are computed from the smallest normal number. */
static inline float half_value(uint16_t half)
{
	const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
	const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
	uint32_t bits = magnitude + (112u << 23);
	float value;

	if (magnitude >= 31u << 23)
		bits = magnitude + (224u << 23); /* infinity or NaN */
	else if (magnitude < 1u << 23)
		bits = magnitude + (113u << 23);
	memcpy(&value, &bits, sizeof(value));
	if (magnitude < 1u << 23) {
		value -= 0x1p-14f;
		memcpy(&bits, &value, sizeof(bits));
	}
	bits |= sign;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline float load(enum fa_attention_dtype dtype, const void *at, int64_t i)
{
	uint32_t bits;
	float value;

	if (dtype == FA_ATTENTION_F32)
		return ((const float *)at)[i];
	if (dtype == FA_ATTENTION_F16)
		return half_value(((const uint16_t *)at)[i]);
	bits = (uint32_t)((const uint16_t *)at)[i] << 16;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline void store(enum fa_attention_dtype dtype, void *at, int64_t i, float value)
{
	uint32_t bits;

	if (dtype == FA_ATTENTION_F32) {
		((float *)at)[i] = value;
		return;
	}
	if (dtype == FA_ATTENTION_F16) {
		int exponent;
		float mantissa = frexpf(fabsf(value), &exponent);

		bits = value < 0 ? 1u << 15 : 0;
		if (value != 0 && exponent > -14)
			bits |= (uint32_t)lrintf(ldexpf(mantissa, 11)) +
			        ((uint32_t)(exponent + 13) << 10);
		else
			bits |= (uint32_t)lrintf(ldexpf(fabsf(value), 24));
		((uint16_t *)at)[i] = (uint16_t)bits;
		return;
	}
	memcpy(&bits, &value, sizeof(bits));
	((uint16_t *)at)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline int64_t element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static inline char *row_of(const struct fa_cuda_tensor *tensor, int64_t token, int64_t head)
{
	return (char *)tensor->data + token * tensor->stride_token + head * tensor->stride_head;
}

/* Returns the address of K (or V) of a token and KV head. */
static inline char *page_row(const struct fa_cuda_pages *pages, uint32_t table_start, int64_t token,
                             int64_t head, bool v)
{
	const int64_t page_tokens = (int64_t)pages->page_strips * FA_CUDA_PAGED_STRIP;
	const uint32_t slot = pages->table[table_start + (uint32_t)(token / page_tokens)];
	const int64_t row = head * page_tokens + token % page_tokens;

	return (v ? pages->v : pages->k) + (int64_t)slot * FA_PAGED_SLOT_BYTES +
	       row * (v ? pages->v_row : pages->k_row);
}

/* ---- codes */

/* Returns the scale of K (or V) of a token and head: the one in the page, or the head's. */
static inline float *scale_of(const struct fa_cuda_pages *pages,
                              struct fa_cuda_paged_quantised *codes, uint32_t table_start,
                              int64_t token, int32_t head, bool v)
{
	const int64_t page_tokens = (int64_t)pages->page_strips * FA_CUDA_PAGED_STRIP;
	char *first;

	if (!codes->token_scales)
		return v ? &codes->v_scales[head] : &codes->k_scales[head];
	first = page_row(pages, table_start, token - token % page_tokens, 0, v);
	return (float *)(first + (v ? codes->v_scales_at : codes->k_scales_at)) +
	       head * page_tokens + token % page_tokens;
}
