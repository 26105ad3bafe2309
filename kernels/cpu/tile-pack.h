/*
 * Packs Q, K and V of a tile into its scratch: Q transposed; K and V as fp32 or paired bf16, row
 * beside row.
 */
#pragma once

#include "kernels/cpu/tile.h"
#include "kernels/quantise.h"

static void pack_q_panel(const struct tile *tile, int32_t panel)
{
	const struct fa_cpu_job *job = tile->job;
	struct scratch *scratch = tile->scratch;
	int32_t rows = job->rows - panel * PANEL;
	int bytes = vec_element_bytes(job->dtype);
	float *const packed = tile_q(tile, panel);

	for (int32_t r = 0; r < PANEL; r++) {
		const char *q;

		if (r >= rows) {
			for (int32_t w = 0; w < tile->q_words; w++)
				packed[w * PANEL + r] = 0;
			continue;
		}
		q = score_q(job, job->row + panel * PANEL + r);
		if (job->q_e4m3) {
			fa_dequantise_row(FA_PAGED_E4M3, (const uint8_t *)q,
			                  score_q_scale(job, job->row + panel * PANEL + r),
			                  scratch->row, job->head_dim);
		} else if (tile->paired) {
			memcpy(scratch->row, q, (size_t)tile->q_words * 4);
		} else {
			int32_t c = 0;

			for (; c + VEC_LANES <= job->head_dim; c += VEC_LANES)
				vec_store(scratch->row + c,
				          vec_load_elements(job->dtype, q + c * bytes, VEC_LANES));
			if (c < job->head_dim)
				vec_store(scratch->row + c,
				          vec_load_elements(job->dtype, q + c * bytes, 8));
		}
		for (int32_t w = 0; w < tile->q_words; w++)
			packed[w * PANEL + r] = scratch->row[w];
	}
}

/* True with @judge: an element is infinite or NaN. */
VEC_INLINE bool pack_row(enum fa_attention_dtype dtype, const char *from, float *to, int32_t dim,
                         const bool judge)
{
	int bytes = vec_element_bytes(dtype);
	vec zeros = vec_set(0.0f);
	int32_t c = 0;

	for (; c + VEC_LANES <= dim; c += VEC_LANES) {
		vec x = vec_load_elements(dtype, from + c * bytes, VEC_LANES);

		vec_store(to + c, x);
		if (judge)
			zeros = vec_fma(x, vec_set(0.0f), zeros);
	}
	if (c < dim) {
		vec x = vec_load_elements(dtype, from + c * bytes, 8);

		vec_store(to + c, x); /* the stride has padding */
		if (judge)
			zeros = vec_fma(x, vec_set(0.0f), zeros);
	}
	return judge && !(vec_sum(zeros) == 0);
}

VEC_INLINE bool pack_rows(enum fa_attention_dtype dtype, const char *from, int64_t from_stride,
                          float *to, int32_t to_stride, int32_t rows, int32_t dim, const bool judge)
{
	bool special = false;

	for (int32_t r = 0; r < rows; r++)
		special |= pack_row(dtype, from + r * from_stride, to + r * to_stride, dim, judge);
	return special;
}

static bool pack_any(enum fa_attention_dtype dtype, const char *from, int64_t from_stride,
                     float *to, int32_t to_stride, int32_t rows, int32_t dim, const bool judge)
{
	switch (dtype) {
	case FA_ATTENTION_F32:
		return pack_rows(FA_ATTENTION_F32, from, from_stride, to, to_stride, rows, dim,
		                 judge);
	case FA_ATTENTION_F16:
		return pack_rows(FA_ATTENTION_F16, from, from_stride, to, to_stride, rows, dim,
		                 judge);
	case FA_ATTENTION_BF16:
		return pack_rows(FA_ATTENTION_BF16, from, from_stride, to, to_stride, rows, dim,
		                 judge);
	}
	return false;
}

static bool pack_codes(const struct fa_cpu_job *job, const char *from, int64_t from_stride,
                       const char *scales, int64_t scale_stride, float scale, float *to,
                       int32_t to_stride, int32_t rows, int32_t dim)
{
	bool special = false;

	for (int32_t r = 0; r < rows; r++) {
		float *row = to + r * to_stride;

		fa_dequantise_row(job->store, (const uint8_t *)from + r * from_stride,
		                  scales ? *(const float *)(scales + r * scale_stride) : scale, row,
		                  dim);
		for (int32_t c = 0; c < dim; c++)
			special |= !isfinite(row[c]);
	}
	return special;
}

static bool pack_v_second(const uint16_t *second, uint32_t *to, int32_t dim)
{
	uint32_t special = 0;

	for (int32_t c = 0; c < dim; c++) {
		uint32_t b = second[c];

		special |= (b & 0x7f80) == 0x7f80;
		to[c] = (to[c] & 0xffff) | b << 16;
	}
	return special != 0;
}

static bool pack_v_pair(const uint16_t *first, const uint16_t *second, uint32_t *to, int32_t dim)
{
	uint32_t special = 0;

	for (int32_t c = 0; c < dim; c++) {
		uint32_t a = first[c], b = second ? second[c] : 0;

		special |= ((a & 0x7f80) == 0x7f80) | ((b & 0x7f80) == 0x7f80);
		to[c] = a | b << 16;
	}
	return special != 0;
}

/* Contiguous keys [first, end) of the round. A pair's keys may be in two pages. */
static void pack_keys(struct tile *tile, int32_t first, int32_t end)
{
	const struct fa_cpu_job *job = tile->job;
	struct scratch *scratch = tile->scratch;
	const char *k = score_k(job, tile->round + first);
	const char *v = score_v(job, tile->round + first);

	if (job->store != FA_PAGED_PLAIN) {
		int64_t key = tile->round + first;

		pack_codes(job, k, job->k_stride,
		           score_scales(job, job->k_scales, job->k_scale_stride, key),
		           job->k_scale_stride, job->k_scale, scratch->k + first * tile->k_stride,
		           tile->k_stride, end - first, job->head_dim);
		tile->v_has_special |= pack_codes(
			job, v, job->v_stride,
			score_scales(job, job->v_scales, job->v_scale_stride, key),
			job->v_scale_stride, job->v_scale, scratch->v + first * tile->v_stride,
			tile->v_stride, end - first, job->head_dim_v);
	} else if (!tile->paired) {
		pack_any(job->dtype, k, job->k_stride, scratch->k + first * tile->k_stride,
		         tile->k_stride, end - first, job->head_dim, false);
		tile->v_has_special |= pack_any(job->dtype, v, job->v_stride,
		                                scratch->v + first * tile->v_stride, tile->v_stride,
		                                end - first, job->head_dim_v, true);
	} else {
		for (int32_t j = first; j < end; j++)
			memcpy(scratch->k + j * tile->k_stride, k + (j - first) * job->k_stride,
			       (size_t)tile->q_words * 4);
		if (first % 2 && first < end)
			tile->v_has_special |= pack_v_second(
				(const uint16_t *)v,
				(uint32_t *)(scratch->v + first / 2 * tile->v_stride),
				job->head_dim_v);
		for (int32_t j = first + first % 2; j < end; j += 2) {
			uint32_t *pair = (uint32_t *)(scratch->v + j / 2 * tile->v_stride);
			const char *row = v + (j - first) * job->v_stride;

			tile->v_has_special |= pack_v_pair(
				(const uint16_t *)row,
				j + 1 < end ? (const uint16_t *)(row + job->v_stride) : NULL, pair,
				job->head_dim_v);
		}
	}
}

static void pack_zeros(struct tile *tile, int32_t key)
{
	struct scratch *scratch = tile->scratch;
	size_t bytes = (size_t)tile->job->head_dim_v * 4;

	memset(scratch->k + key * tile->k_stride, 0, (size_t)tile->q_words * 4);
	if (!tile->paired)
		memset(scratch->v + key * tile->v_stride, 0, bytes);
	else if (key % 2 == 0)
		memset(scratch->v + key / 2 * tile->v_stride, 0, bytes);
}

/* Keys [first, end) of the round, and zeros around them up to multiples of KEY_STEP. */
static void pack_round(struct tile *tile, int32_t first, int32_t end)
{
	int32_t padded = (end + KEY_STEP - 1) / KEY_STEP * KEY_STEP;

	tile->v_has_special = false;
	for (int32_t j = first / KEY_STEP * KEY_STEP; j < first; j++)
		pack_zeros(tile, j);
	for (int32_t key = first, next; key < end; key = next) {
		next = (int32_t)score_clamp(
			score_page_end(tile->job, tile->round + key) - tile->round, 0, end);
		pack_keys(tile, key, next);
	}
	for (int32_t j = end; j < padded; j++)
		pack_zeros(tile, j);
}
