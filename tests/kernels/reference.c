/*
 * See reference.h. Stateless; buffers are allocated for each row.
 */
#include "tests/kernels/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static inline double get(enum fa_attention_dtype dtype, const void *data, int64_t at)
{
	uint16_t half;
	uint32_t bits;
	float value;

	if (dtype == FA_ATTENTION_F32)
		return ((const float *)data)[at];
	half = ((const uint16_t *)data)[at];
	if (dtype == FA_ATTENTION_BF16) {
		bits = (uint32_t)half << 16;
		memcpy(&value, &bits, 4);
		return value;
	}
	if ((half & 0x7c00) == 0x7c00)
		return half & 0x3ff ? NAN : half & 0x8000 ? -INFINITY : INFINITY;
	/* An fp32 number with the same bits differs only by the exponents' bias. */
	bits = (uint32_t)(half & 0x7fff) << 13 | (uint32_t)(half & 0x8000) << 16;
	memcpy(&value, &bits, 4);
	return value * 0x1p112;
}

double reference_get(enum fa_attention_dtype dtype, const void *data, int64_t at)
{
	return get(dtype, data, at);
}

/* Rounds to @digits binary digits, with exponents from @least on; beyond @most is infinity. */
static double round_to(double value, int digits, int least, double most)
{
	int exponent;
	double unit;

	if (value == 0 || !isfinite(value))
		return value;
	frexp(value, &exponent); /* value is below 2^exponent */
	if (exponent < least)
		exponent = least;
	unit = ldexp(1, exponent - digits);
	value = nearbyint(value / unit) * unit;
	return fabs(value) > most ? copysign(INFINITY, value) : value;
}

double reference_round(enum fa_attention_dtype dtype, double value)
{
	switch (dtype) {
	case FA_ATTENTION_F16:
		return round_to(value, 11, -13, 65504);
	case FA_ATTENTION_BF16:
		return round_to(value, 8, -125, 0x1.fep127);
	default:
		return (float)value;
	}
}

void reference_set(enum fa_attention_dtype dtype, void *data, int64_t at, double value)
{
	float single = (float)reference_round(dtype, value);
	uint32_t bits;
	uint16_t half;
	int exponent;

	memcpy(&bits, &single, 4);
	if (dtype == FA_ATTENTION_F32) {
		((float *)data)[at] = single;
		return;
	}
	if (dtype == FA_ATTENTION_BF16) {
		half = isnan(single) ? 0x7fc0 : (uint16_t)(bits >> 16);
	} else if (isnan(single)) {
		half = 0x7e00;
	} else if (isinf(single)) {
		half = (uint16_t)(0x7c00 | (bits >> 16 & 0x8000));
	} else {
		double magnitude = fabs((double)single);

		frexp(magnitude, &exponent);
		if (magnitude < 0x1p-14)
			half = (uint16_t)ldexp(magnitude, 24);
		else
			half = (uint16_t)((exponent + 14) << 10 |
			                  ((int)ldexp(magnitude, 11 - exponent) & 1023));
		half |= (uint16_t)(bits >> 16 & 0x8000);
	}
	((uint16_t *)data)[at] = half;
}

int64_t reference_n_q(const struct fa_attention_params *params, int32_t b)
{
	const uint32_t *cu = params->cu_seqlens_q;

	return cu ? (int64_t)cu[b + 1] - cu[b] : params->seqlen_q;
}

int64_t reference_n_k(const struct fa_attention_params *params, int32_t b)
{
	const uint32_t *cu = params->cu_seqlens_k;

	return cu ? (int64_t)cu[b + 1] - cu[b] : params->seqlen_k;
}

static int64_t at(const uint32_t *cu, const struct fa_attention_tensor *tensor, int32_t b,
                  int64_t token, int32_t h)
{
	int64_t start = cu ? cu[b] * tensor->stride_token : b * tensor->stride_batch;

	return start + token * tensor->stride_token + h * tensor->stride_head;
}

int64_t reference_q_at(const struct fa_attention_params *params,
                       const struct fa_attention_tensor *tensor, int32_t b, int64_t i, int32_t h)
{
	return at(params->cu_seqlens_q, tensor, b, i, h);
}

int64_t reference_k_at(const struct fa_attention_params *params,
                       const struct fa_attention_tensor *tensor, int32_t b, int64_t j, int32_t h)
{
	return at(params->cu_seqlens_k, tensor, b, j, h);
}

int64_t reference_lse_at(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h)
{
	struct fa_attention_tensor lse = {
		.stride_batch = params->lse_stride_batch,
		.stride_token = params->lse_stride_token,
		.stride_head = params->lse_stride_head,
	};

	return at(params->cu_seqlens_q, &lse, b, i, h);
}

static int64_t clamp(int64_t x, int64_t highest)
{
	return x < 0 ? 0 : x > highest ? highest : x;
}

static bool blocks_show(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h,
                        int64_t j)
{
	const struct fa_attention_blocks *blocks = &params->blocks;
	const int32_t *offsets = blocks->offsets + b * blocks->offsets_stride_batch +
	                         h * blocks->offsets_stride_head + i / blocks->rows;
	const int32_t *columns = blocks->columns + b * blocks->columns_stride_batch +
	                         h * blocks->columns_stride_head;
	int64_t begin = clamp(offsets[0], blocks->n_columns), highest = -1;
	int64_t end = clamp(offsets[1], blocks->n_columns);
	int64_t n = (reference_n_k(params, b) + blocks->keys - 1) / blocks->keys;

	for (int64_t at = begin; at < end && at < begin + n; at++) {
		if (columns[at] <= highest || columns[at] >= n)
			continue;
		highest = columns[at];
		if (highest == j / blocks->keys)
			return true;
	}
	return false;
}

bool reference_pattern_shows(const struct fa_attention_pattern *pattern, int32_t h, int32_t group,
                             int64_t row, int64_t key)
{
	int64_t number = (int64_t)pattern->first_head + h, first;
	double tokens = pattern->block_tokens;

	first = number * pattern->head_step;
	if (pattern->head_step < 0)
		first = number / group * -(int64_t)pattern->head_step;
	if (floor((double)row / tokens) - floor((double)key / tokens) < pattern->local_blocks)
		return true;
	return ((int64_t)floor((double)key / tokens) + first + 1) % pattern->vert_stride == 0;
}

static bool bits_show(const struct fa_attention_bits *bits, int32_t b, int64_t i, int32_t h,
                      int64_t j)
{
	const uint32_t *row = bits->words + b * bits->stride_batch + h * bits->stride_head +
	                      i * bits->stride_row;

	return j / 32 < bits->row_words && (row[j / 32] & 1u << j % 32);
}

bool reference_visible(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h,
                       int64_t j)
{
	int64_t p = i + reference_n_k(params, b) - reference_n_q(params, b);

	if (params->causal && j > p &&
	    !(params->prefix_lengths && j < (int64_t)params->prefix_lengths[b]))
		return false;
	if (params->chunk_tokens > 0 && floor((double)j / (double)params->chunk_tokens) !=
	                                        floor((double)p / (double)params->chunk_tokens))
		return false;
	if (params->window_left >= 0 && p - j > params->window_left)
		return false;
	if (params->window_right >= 0 && j - p > params->window_right)
		return false;
	if (params->blocks.rows && !blocks_show(params, b, i, h, j))
		return false;
	if (params->pattern.block_tokens &&
	    !reference_pattern_shows(&params->pattern, h, params->heads / params->kv_heads, p, j))
		return false;
	return !params->bits.words || bits_show(&params->bits, b, i, h, j);
}

static double element(const struct fa_attention_params *params, const void *data, int64_t at,
                      const struct fa_attention_scales *scales, const uint32_t *cu, int32_t b,
                      int64_t token, int32_t h)
{
	static float values[256]; /* of codes */
	float scale = 1;

	if (!params->e4m3)
		return get(params->dtype, data, at);
	token += cu ? cu[b] : 0;
	if (scales->data)
		scale = scales->data[b * scales->stride_batch + token * scales->stride_token +
		                     h * scales->stride_head];
	if (values[0x38] == 0)
		for (int code = 0; code < 256; code++)
			values[code] = (float)reference_code_value(FA_PAGED_E4M3, (uint8_t)code);
	return values[((const uint8_t *)data)[at]] * scale;
}

double reference_q(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h,
                   int32_t c)
{
	return element(params, params->q.data, reference_q_at(params, &params->q, b, i, h) + c,
	               &params->q_scales, params->cu_seqlens_q, b, i, h);
}

double reference_k(const struct fa_attention_params *params, int32_t b, int64_t j, int32_t h,
                   int32_t c)
{
	return element(params, params->k.data, reference_k_at(params, &params->k, b, j, h) + c,
	               &params->k_scales, params->cu_seqlens_k, b, j, h);
}

double reference_v(const struct fa_attention_params *params, int32_t b, int64_t j, int32_t h,
                   int32_t c)
{
	return element(params, params->v.data, reference_k_at(params, &params->v, b, j, h) + c,
	               &params->v_scales, params->cu_seqlens_k, b, j, h);
}

static double score(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h,
                    int64_t j, bool rounded)
{
	enum fa_attention_dtype dtype = params->dtype;
	int32_t kv_head = h / (params->heads / params->kv_heads);
	double s = 0;

	for (int32_t c = 0; c < params->head_dim; c++)
		s += reference_q(params, b, i, h, c) * reference_k(params, b, j, kv_head, c);
	s *= (double)params->scale;
	if (rounded)
		s = reference_round(dtype, s);
	if (params->softcap > 0)
		s = params->softcap * tanh(s / params->softcap);
	if (params->alibi_slopes)
		s -= params->alibi_slopes[h] *
		     fabs((double)(j - (i + reference_n_k(params, b) - reference_n_q(params, b))));
	return rounded ? reference_round(dtype, s) : s;
}

void reference_row(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h,
                   bool rounded, double *ret_out, double *ret_lse)
{
	int32_t kv_head = h / (params->heads / params->kv_heads);
	int64_t n_k = reference_n_k(params, b);
	double *scores = malloc(((size_t)n_k + 1) * sizeof(*scores));
	double highest = params->sinks ? params->sinks[h] : -INFINITY, sum = 0;

	for (int32_t c = 0; c < params->head_dim_v; c++)
		ret_out[c] = 0;
	for (int64_t j = 0; j < n_k; j++) {
		scores[j] = -INFINITY;
		if (reference_visible(params, b, i, h, j))
			scores[j] = score(params, b, i, h, j, rounded);
		highest = fmax(highest, scores[j]);
	}
	if (highest == -INFINITY) {
		*ret_lse = -INFINITY;
		free(scores);
		return;
	}

	for (int64_t j = 0; j < n_k; j++)
		sum += exp(scores[j] - highest);
	if (params->sinks)
		sum += exp(params->sinks[h] - highest);
	*ret_lse = highest + log(sum);
	for (int64_t j = 0; j < n_k; j++) {
		double weight = exp(scores[j] - highest) / sum;

		if (!reference_visible(params, b, i, h, j))
			continue;
		if (rounded)
			weight = reference_round(params->dtype, weight);
		for (int32_t c = 0; c < params->head_dim_v; c++)
			ret_out[c] += weight * reference_v(params, b, j, kv_head, c);
	}
	for (int32_t c = 0; c < params->head_dim_v; c++)
		ret_out[c] = rounded ? reference_round(params->dtype, ret_out[c]) : ret_out[c];
	free(scores);
}

/* ---- codes */

double reference_code_value(enum fa_paged_store store, uint8_t code)
{
	const int exponent = code >> 3 & 15, mantissa = code & 7;
	double value;

	if (store == FA_PAGED_INT8)
		return (int8_t)code;
	if ((code & 0x7f) == 0x7f)
		return NAN;
	value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
	return code & 0x80 ? -value : value;
}

uint8_t reference_code(enum fa_paged_store store, double value)
{
	static double values[3][128];
	const uint8_t sign = signbit(value) ? 0x80 : 0;
	uint8_t best = 0;
	double least = INFINITY;

	if (isnan(value))
		return store == FA_PAGED_INT8 ? 0 : 0x7f;
	if (fabs(value) > 448)
		value = copysign(448, value);
	/* Codes of either sign ascend with the magnitude, up to the largest finite one. */
	if (!values[store][127])
		for (int code = 0; code <= 127; code++)
			values[store][code] = reference_code_value(store, (uint8_t)code);
	for (int code = 0; code <= (store == FA_PAGED_INT8 ? 127 : 0x7e); code++) {
		double distance = fabs(fabs(value) - values[store][code]);

		if (distance < least || (distance == least && code % 2 == 0)) {
			least = distance;
			best = (uint8_t)code;
		}
	}
	if (store == FA_PAGED_INT8)
		return (uint8_t)(sign ? -best : best);
	return best | sign;
}

float reference_quantise(enum fa_paged_store store, const float *from, int32_t n, float scale,
                         uint8_t *codes)
{
	const float largest = store == FA_PAGED_INT8 ? 127 : 448;
	const bool of_token = !(scale > 0);
	float inverse, highest = 0;
	bool has_nan = false;

	for (int32_t c = 0; c < n && of_token; c++) {
		float magnitude = isinf(from[c]) ? 3.40282347e38f : fabsf(from[c]);

		has_nan = has_nan || isnan(from[c]);
		if (magnitude > highest)
			highest = magnitude;
	}
	if (of_token)
		scale = highest / largest;
	if (of_token && scale < 0x1p-126f)
		scale = 0;
	inverse = scale > 0 ? 1 / scale : 0;
	for (int32_t c = 0; c < n; c++) {
		float x = isinf(from[c]) ? copysignf(3.40282347e38f, from[c]) : from[c];

		codes[c] = reference_code(store, (double)(x * inverse));
	}
	return of_token && has_nan && store == FA_PAGED_INT8 ? NAN : scale;
}
