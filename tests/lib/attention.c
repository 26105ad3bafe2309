#include "tests/lib/attention.h"

#include "tests/lib/check.h"
#include "tests/lib/raw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- number formats */

size_t fa_case_dtype_bytes(enum fa_wire_dtype dtype)
{
	return dtype == FA_WIRE_DTYPE_F32 ? 4 : 2;
}

static double load_f16(uint16_t bits)
{
	int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
	double value;

	if (exponent == 31)
		value = mantissa ? NAN : INFINITY;
	else if (exponent)
		value = ldexp(1024 + mantissa, exponent - 25);
	else
		value = ldexp(mantissa, -24);
	return bits & 0x8000 ? -value : value;
}

static double load_bf16(uint16_t bits)
{
	uint32_t wide = (uint32_t)bits << 16;
	float value;

	memcpy(&value, &wide, sizeof(value));
	return value;
}

double fa_case_dtype_load(enum fa_wire_dtype dtype, const void *data, int64_t index)
{
	switch (dtype) {
	case FA_WIRE_DTYPE_F16:
		return load_f16(((const uint16_t *)data)[index]);
	case FA_WIRE_DTYPE_BF16:
		return load_bf16(((const uint16_t *)data)[index]);
	default:
		return ((const float *)data)[index];
	}
}

/* To nearest, for moderate numbers only. */
static uint16_t store_f16(double value)
{
	uint16_t sign = signbit(value) ? 0x8000 : 0;
	int exponent;
	long mantissa;

	value = fabs(value);
	if (value < ldexp(1, -14)) /* subnormal */
		return sign | (uint16_t)lrint(ldexp(value, 24));
	frexp(value, &exponent); /* value = [0.5, 1) * 2^exponent */
	mantissa = lrint(ldexp(value, 11 - exponent));
	if (mantissa == 2048) {
		mantissa = 1024;
		exponent++;
	}
	return sign | (uint16_t)(((exponent + 14) << 10) | (mantissa - 1024));
}

static uint16_t store_bf16(double value)
{
	float narrow = (float)value;
	uint32_t bits;

	memcpy(&bits, &narrow, sizeof(bits));
	bits += 0x7fff + ((bits >> 16) & 1);
	return (uint16_t)(bits >> 16);
}

void fa_case_dtype_store(enum fa_wire_dtype dtype, void *data, int64_t index, double value)
{
	switch (dtype) {
	case FA_WIRE_DTYPE_F16:
		((uint16_t *)data)[index] = store_f16(value);
		break;
	case FA_WIRE_DTYPE_BF16:
		((uint16_t *)data)[index] = store_bf16(value);
		break;
	default:
		((float *)data)[index] = (float)value;
		break;
	}
}

/* ---- layout: packed tensors, each aligned to 64 bytes */

static uint64_t place(uint64_t *end, int64_t elements, size_t element_bytes)
{
	uint64_t offset = (*end + 63) & ~63ull;

	*end = offset + (uint64_t)elements * element_bytes;
	return offset;
}

static void set_default(int64_t *value, int64_t otherwise)
{
	if (!*value)
		*value = otherwise;
}

static int64_t mask_heads(const struct fa_case *a)
{
	return a->mask_heads ? a->heads : 1;
}

void fa_case_plan(struct fa_case *attention)
{
	struct fa_case *a = attention;
	struct fa_test_random random = { a->seed ^ 0xa11b1 };
	uint64_t end = 0;
	size_t size;

	if (!a->dtype)
		a->dtype = FA_WIRE_DTYPE_F32;
	set_default(&a->batch, 1);
	set_default(&a->heads, 1);
	set_default(&a->kv_heads, a->heads);
	set_default(&a->head_dim, 64);
	set_default(&a->head_dim_v, a->head_dim);
	set_default(&a->seqlen_q, 16);
	set_default(&a->seqlen_k, a->seqlen_q);
	fa_check(a->batch <= FA_CASE_SEQUENCES_MAX && a->heads <= FA_CASE_HEADS_MAX);

	for (int64_t b = 0; b < a->batch; ++b) {
		int64_t part = a->ragged ? b + 1 : a->batch;

		a->cu_seqlens_q[b + 1] = a->cu_seqlens_q[b] +
		                         (uint32_t)(a->seqlen_q * part / a->batch);
		a->cu_seqlens_k[b + 1] = a->cu_seqlens_k[b] +
		                         (uint32_t)(a->seqlen_k * part / a->batch);
	}
	a->tokens_q = a->cu_seqlens_q[a->batch];
	a->tokens_k = a->cu_seqlens_k[a->batch];
	for (int64_t h = 0; h < a->heads; ++h) {
		a->alibi_slopes[h] = (float)exp2(-8.0 * (double)(h + 1) / (double)a->heads);
		a->sink_values[h] = (float)fa_test_random_below(&random, 1000) / 500.0f - 1.0f;
	}

	size = fa_case_dtype_bytes(a->dtype);
	a->offset_q = place(&end, a->tokens_q * a->heads * a->head_dim, size);
	a->offset_k = place(&end, a->tokens_k * a->kv_heads * a->head_dim, size);
	a->offset_v = place(&end, a->tokens_k * a->kv_heads * a->head_dim_v, size);
	if (a->block_rows) {
		a->row_blocks = (a->seqlen_q + a->block_rows - 1) / a->block_rows;
		a->columns = a->row_blocks * ((a->seqlen_k + a->block_keys - 1) / a->block_keys);
		a->offset_offsets = place(&end, mask_heads(a) * (a->row_blocks + 1), 4);
		a->offset_columns = place(&end, mask_heads(a) * a->columns, 4);
	}
	if (a->bits) {
		a->row_words = (a->seqlen_k + 31) / 32;
		a->offset_bits = place(&end, mask_heads(a) * a->seqlen_q * a->row_words, 4);
	}
	a->offset_out = place(&end, a->tokens_q * a->heads * a->head_dim_v, size);
	a->offset_lse = place(&end, a->lse ? a->tokens_q * a->heads : 0, sizeof(float));
	a->bytes = (end + 4095) & ~4095ull;
}

/* Roughly normal: the sum of four uniform numbers. */
static double random_number(struct fa_test_random *random)
{
	uint64_t bits = fa_test_random(random);
	double sum = 0;

	for (int i = 0; i < 4; ++i, bits >>= 16)
		sum += (double)(bits & 0xffff) / 65536 - 0.5;
	return sum * 1.7;
}

static void fill(const struct fa_case *a, void *data, int64_t n, struct fa_test_random *random)
{
	for (int64_t i = 0; i < n; ++i)
		fa_case_dtype_store(a->dtype, data, i, random_number(random));
}

/* Some columns are no key block, or out of order, and do not count. */
static void fill_masks(const struct fa_case *a, unsigned char *data, struct fa_test_random *random)
{
	int32_t *offsets = (void *)(data + a->offset_offsets);
	int32_t *columns = (void *)(data + a->offset_columns);
	uint32_t *words = (void *)(data + a->offset_bits);

	for (int64_t h = 0; h < mask_heads(a); ++h) {
		int32_t n = 0;

		for (int64_t r = 0; r < a->row_blocks; ++r) {
			*offsets++ = n;
			for (int64_t c = 0; c < a->columns / a->row_blocks; ++c)
				if (fa_test_random_below(random, 2))
					columns[n++] = fa_test_random_below(random, 9)
					                       ? (int32_t)c
					                       : (int32_t)fa_test_random(random);
		}
		if (a->row_blocks)
			*offsets++ = n;
		columns += a->columns;
		for (int64_t i = 0; i < a->seqlen_q * a->row_words; ++i)
			*words++ = (uint32_t)fa_test_random(random);
	}
}

void fa_case_fill(const struct fa_case *attention, void *data)
{
	const struct fa_case *a = attention;
	struct fa_test_random random = { a->seed };
	unsigned char *bytes = data;

	memset(bytes, 0xff, a->bytes); /* NaN in every format */
	fill(a, bytes + a->offset_q, a->tokens_q * a->heads * a->head_dim, &random);
	fill(a, bytes + a->offset_k, a->tokens_k * a->kv_heads * a->head_dim, &random);
	fill(a, bytes + a->offset_v, a->tokens_k * a->kv_heads * a->head_dim_v, &random);
	fill_masks(a, bytes, &random);
}

bool fa_case_untouched(const struct fa_case *attention, const void *data)
{
	const unsigned char *bytes = data;

	for (uint64_t i = attention->offset_out; i < attention->bytes; ++i)
		if (bytes[i] != 0xff)
			return false;
	return true;
}

static struct fa_wire_view view(const struct fa_case *a, uint32_t buffer, uint64_t offset,
                                int64_t tokens, int64_t seqlen, int64_t heads, int64_t dim)
{
	struct fa_wire_view v = { .buffer = buffer, .offset = offset, .dtype = (uint8_t)a->dtype };
	int i = 0;

	if (!a->ragged) {
		v.shape[i] = a->batch;
		v.strides[i++] = seqlen * heads * dim;
	}
	v.shape[i] = a->ragged ? tokens : seqlen;
	v.strides[i++] = heads * dim;
	v.shape[i] = heads;
	v.strides[i++] = dim;
	v.shape[i] = dim;
	v.strides[i++] = 1;
	v.rank = (uint8_t)i;
	return v;
}

/* int32 [1, heads or 1, n]. */
static struct fa_wire_view list_view(const struct fa_case *a, uint32_t buffer, uint64_t offset,
                                     int64_t n)
{
	return (struct fa_wire_view){
		.buffer = buffer,
		.offset = offset,
		.dtype = FA_WIRE_DTYPE_I32,
		.rank = 3,
		.shape = { 1, mask_heads(a), n },
		.strides = { mask_heads(a) * n, n, 1 },
	};
}

struct fa_wire_message fa_case_message(const struct fa_case *attention, uint32_t buffer,
                                       uint64_t base, uint32_t stream, uint64_t value)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_ATTENTION);
	struct fa_wire_attention *to = &message.attention;
	const struct fa_case *a = attention;

	message.id = value;
	to->stream = stream;
	to->value = value;
	to->flags = a->causal ? FA_WIRE_ATTENTION_CAUSAL : 0;
	to->q = view(a, buffer, base + a->offset_q, a->tokens_q, a->seqlen_q, a->heads,
	             a->head_dim);
	to->k = view(a, buffer, base + a->offset_k, a->tokens_k, a->seqlen_k, a->kv_heads,
	             a->head_dim);
	to->v = view(a, buffer, base + a->offset_v, a->tokens_k, a->seqlen_k, a->kv_heads,
	             a->head_dim_v);
	to->out = view(a, buffer, base + a->offset_out, a->tokens_q, a->seqlen_q, a->heads,
	               a->head_dim_v);
	if (a->lse) {
		int64_t tokens = a->ragged ? a->tokens_q : a->seqlen_q;
		int i = 0;

		to->lse.buffer = buffer;
		to->lse.offset = base + a->offset_lse;
		to->lse.dtype = FA_WIRE_DTYPE_F32;
		if (!a->ragged) {
			to->lse.shape[i] = a->batch;
			to->lse.strides[i++] = a->heads * tokens;
		}
		to->lse.shape[i] = a->heads;
		to->lse.strides[i++] = tokens;
		to->lse.shape[i] = tokens;
		to->lse.strides[i++] = 1;
		to->lse.rank = (uint8_t)i;
	}
	to->scale = a->scale;
	to->softcap = a->softcap;
	to->window_left = a->windowed ? a->window_left : -1;
	to->window_right = a->windowed ? a->window_right : -1;
	to->chunk_tokens = a->chunk_tokens;
	to->pattern_block_tokens = a->pattern_tokens;
	to->pattern_local_blocks = a->pattern_local;
	to->pattern_vert_stride = a->pattern_stride;
	to->pattern_head_step = a->pattern_step;
	if (a->block_rows) {
		to->block_rows = (uint32_t)a->block_rows;
		to->block_keys = (uint32_t)a->block_keys;
		to->block_offsets = list_view(a, buffer, base + a->offset_offsets,
		                              a->row_blocks + 1);
		to->block_columns = list_view(a, buffer, base + a->offset_columns, a->columns);
	}
	if (a->bits) {
		to->mask = list_view(a, buffer, base + a->offset_bits, a->seqlen_q * a->row_words);
		to->mask.rank = 4;
		to->mask.shape[2] = a->seqlen_q;
		to->mask.strides[2] = a->row_words;
		to->mask.shape[3] = a->row_words;
		to->mask.strides[3] = 1;
	}
	if (a->prefixed) {
		to->prefix_lengths = a->prefix_lengths;
		to->n_prefix_lengths = (size_t)a->batch;
	}
	if (a->ragged) {
		to->cu_seqlens_q = a->cu_seqlens_q;
		to->cu_seqlens_k = a->cu_seqlens_k;
		to->n_cu_seqlens_q = to->n_cu_seqlens_k = (size_t)a->batch + 1;
	}
	if (a->alibi) {
		to->alibi_slopes = a->alibi_slopes;
		to->n_alibi_slopes = (size_t)a->heads;
	}
	if (a->sinks) {
		to->sinks = a->sink_values;
		to->n_sinks = (size_t)a->heads;
	}
	return message;
}

/* ---- reference */

/* Returns the number of a position's chunk; that of position -1 is -1. */
static int64_t chunk_of(const struct fa_case *a, int64_t p)
{
	const int64_t tokens = (int64_t)a->chunk_tokens;

	return p < 0 ? -((tokens - 1 - p) / tokens) : p / tokens;
}

static bool masks_show(const struct fa_case *a, const unsigned char *data, int64_t h, int64_t i,
                       int64_t n_k, int64_t p, int64_t j)
{
	const int64_t set = a->mask_heads ? h : 0;
	const int32_t *offsets = (const void *)(data + a->offset_offsets);
	const int32_t *columns = (const void *)(data + a->offset_columns);
	const uint32_t *words = (const void *)(data + a->offset_bits);

	if (a->block_rows) {
		const int64_t n = (n_k + a->block_keys - 1) / a->block_keys;
		int64_t highest = -1;

		offsets += set * (a->row_blocks + 1) + i / a->block_rows;
		columns += set * a->columns;
		for (int32_t at = offsets[0]; at < offsets[1] && at < offsets[0] + n; ++at)
			if (columns[at] > highest && columns[at] < n) {
				highest = columns[at];
				if (highest == j / a->block_keys)
					break;
			}
		if (highest != j / a->block_keys)
			return false;
	}
	if (a->bits && !(words[(set * a->seqlen_q + i) * a->row_words + j / 32] >> j % 32 & 1))
		return false;
	if (a->pattern_tokens) {
		const double tokens = a->pattern_tokens;
		const int64_t block = j / a->pattern_tokens;
		int64_t first = h * a->pattern_step;

		if (a->pattern_step < 0)
			first = h / (a->heads / a->kv_heads) * -a->pattern_step;
		return floor((double)p / tokens) - (double)block < a->pattern_local ||
		       (block + first + 1) % a->pattern_stride == 0;
	}
	return true;
}

static bool visible(const struct fa_case *a, int64_t b, int64_t p, int64_t j)
{
	if (a->causal && j > p && !(a->prefixed && j < (int64_t)a->prefix_lengths[b]))
		return false;
	if (a->chunk_tokens && chunk_of(a, p) != chunk_of(a, j))
		return false;
	if (a->windowed && a->window_left >= 0 && j < p - a->window_left)
		return false;
	if (a->windowed && a->window_right >= 0 && j > p + a->window_right)
		return false;
	return true;
}

/* |got - want| in units of the allowed error. */
static double distance(enum fa_wire_dtype dtype, double got, double want)
{
	double allowed;

	if (isinf(want))
		return got == want ? 0 : INFINITY;
	if (isnan(got) || isinf(got))
		return INFINITY;
	/* Half a unit in the last place of out, and the error of fp32 sums. */
	allowed = 2e-5 + 2e-5 * fabs(want);
	if (dtype == FA_WIRE_DTYPE_F16)
		allowed += ldexp(fabs(want), -10) + 1e-3;
	else if (dtype == FA_WIRE_DTYPE_BF16)
		allowed += ldexp(fabs(want), -7) + 8e-3;
	return fabs(got - want) / allowed;
}

/* Returns the error of one row, relative to what is allowed: query @i of @n_q, head @h, of the sequence
 * whose queries begin at token @start_q and keys at @start_k. */
static double row_error(const struct fa_case *a, const unsigned char *data, double *scores,
                        double *row, int64_t b, int64_t start_q, int64_t start_k, int64_t n_q,
                        int64_t n_k, int64_t i, int64_t h, float got_lse)
{
	int64_t kv_head = h / (a->heads / a->kv_heads), p = i + n_k - n_q;
	const void *q = data + a->offset_q, *k = data + a->offset_k, *v = data + a->offset_v;
	const void *out = data + a->offset_out;
	double scale = a->scale != 0 ? a->scale : 1 / sqrt((double)a->head_dim);
	double max = -INFINITY, sum = 0, lse, error = 0;

	for (int64_t j = 0; j < n_k; ++j) {
		int64_t at_q = ((start_q + i) * a->heads + h) * a->head_dim;
		int64_t at_k = ((start_k + j) * a->kv_heads + kv_head) * a->head_dim;
		double s = 0;

		scores[j] = -INFINITY;
		if (!visible(a, b, p, j) || !masks_show(a, data, h, i, n_k, p, j))
			continue;
		for (int64_t d = 0; d < a->head_dim; ++d)
			s += fa_case_dtype_load(a->dtype, q, at_q + d) *
			     fa_case_dtype_load(a->dtype, k, at_k + d);
		s *= scale;
		if (a->softcap > 0)
			s = a->softcap * tanh(s / a->softcap);
		if (a->alibi)
			s -= a->alibi_slopes[h] * fabs((double)(j - p));
		scores[j] = s;
		max = fmax(max, s);
	}
	if (a->sinks)
		max = fmax(max, a->sink_values[h]);
	for (int64_t j = 0; j < n_k; ++j)
		if (scores[j] != -INFINITY)
			sum += exp(scores[j] - max);
	if (a->sinks)
		sum += exp(a->sink_values[h] - max);
	lse = sum > 0 ? max + log(sum) : -INFINITY;

	memset(row, 0, (size_t)a->head_dim_v * sizeof(*row));
	for (int64_t j = 0; j < n_k; ++j) {
		int64_t at_v = ((start_k + j) * a->kv_heads + kv_head) * a->head_dim_v;
		double weight;

		if (scores[j] == -INFINITY)
			continue;
		weight = exp(scores[j] - lse);
		for (int64_t d = 0; d < a->head_dim_v; ++d)
			row[d] += weight * fa_case_dtype_load(a->dtype, v, at_v + d);
	}
	for (int64_t d = 0; d < a->head_dim_v; ++d) {
		int64_t at = ((start_q + i) * a->heads + h) * a->head_dim_v + d;

		error = fmax(error,
		             distance(a->dtype, fa_case_dtype_load(a->dtype, out, at), row[d]));
	}
	/* fp32 for all dtypes: products of 16-bit numbers are exact in fp32. */
	if (a->lse)
		error = fmax(error, distance(FA_WIRE_DTYPE_F32, got_lse, lse));
	return error;
}

double fa_case_error(const struct fa_case *attention, const void *data)
{
	const struct fa_case *a = attention;
	const float *lse = (const void *)((const unsigned char *)data + a->offset_lse);
	double *scores = calloc((size_t)a->seqlen_k + 1, sizeof(*scores));
	double *row = calloc((size_t)a->head_dim_v, sizeof(*row));
	double error = 0;

	fa_check(scores && row);
	for (int64_t b = 0; b < a->batch; ++b) {
		int64_t start_q = a->cu_seqlens_q[b], n_q = a->cu_seqlens_q[b + 1] - start_q;
		int64_t start_k = a->cu_seqlens_k[b], n_k = a->cu_seqlens_k[b + 1] - start_k;

		for (int64_t h = 0; h < a->heads; ++h)
			for (int64_t i = 0; i < n_q; ++i) {
				int64_t at = a->ragged ? h * a->tokens_q + start_q + i
				                       : (b * a->heads + h) * a->seqlen_q + i;

				error = fmax(error,
				             row_error(a, data, scores, row, b, start_q, start_k,
				                       n_q, n_k, i, h, a->lse ? lse[at] : 0));
			}
	}
	free(scores);
	free(row);
	return error;
}
