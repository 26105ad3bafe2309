/*
 * Operations on single rows: reducing partial results, blending, rotary embedding. Compiled for
 * each instruction set; pure functions, any thread.
 */
#include "kernels/cpu/isa-symbols.h"
#include "kernels/cpu/score.h"

#define ROW_MAX FA_ATTENTION_ROW_MAX

void FA_CPU_REDUCE(const struct fa_cpu_job *job, const float *partials, int64_t n, int64_t stride)
{
	int64_t values = fa_cpu_partial_values(job);
	double sums[ROW_MAX];
	float row[ROW_MAX + 16] = { 0 };

	for (int32_t r = 0; r < job->rows; r++, partials += fa_cpu_partial_floats(job)) {
		float highest = -INFINITY, base;
		double sum = 0;

		for (int64_t i = 0; i < n; i++) {
			float of_part = partials[i * stride + values];

			if (!(of_part <= highest))
				highest = of_part;
		}
		base = highest == -INFINITY ? 0 : highest;
		memset(sums, 0, sizeof(sums));
		for (int64_t i = 0; i < n; i++) {
			const float *part = partials + i * stride;
			float weight = exp2f(part[values] - base);

			sum += (double)(part[values + 1] * weight);
			for (int32_t c = 0; c < job->head_dim_v; c++)
				sums[c] += (double)(part[c] * weight);
		}
		for (int32_t c = 0; c < job->head_dim_v; c++)
			row[c] = (float)sums[c];
		score_store(job, job->row + r, row, score_finish(job, job->row + r, highest, sum));
	}
}

/* ---- rows of any type as fp32 */

VEC_INLINE void load(enum fa_attention_dtype dtype, float *to, const char *from, int32_t dim)
{
	int bytes = vec_element_bytes(dtype);
	int32_t c = 0;

	for (; c + VEC_LANES <= dim; c += VEC_LANES)
		vec_store(to + c, vec_load_elements(dtype, from + c * bytes, VEC_LANES));
	if (c < dim)
		vec_store(to + c, vec_load_elements(dtype, from + c * bytes, 8));
}

VEC_INLINE void store(enum fa_attention_dtype dtype, char *to, const float *from, int32_t dim)
{
	int bytes = vec_element_bytes(dtype);
	int32_t c = 0;

	for (; c + VEC_LANES <= dim; c += VEC_LANES)
		vec_store_elements(dtype, to + c * bytes, vec_load(from + c), VEC_LANES);
	if (c < dim)
		vec_store_elements(dtype, to + c * bytes, vec_load(from + c), 8);
}

static void load_any(enum fa_attention_dtype dtype, float *to, const char *from, int32_t dim)
{
	switch (dtype) {
	case FA_ATTENTION_F32:
		load(FA_ATTENTION_F32, to, from, dim);
		break;
	case FA_ATTENTION_F16:
		load(FA_ATTENTION_F16, to, from, dim);
		break;
	case FA_ATTENTION_BF16:
		load(FA_ATTENTION_BF16, to, from, dim);
		break;
	}
}

static void store_any(enum fa_attention_dtype dtype, char *to, const float *from, int32_t dim)
{
	switch (dtype) {
	case FA_ATTENTION_F32:
		store(FA_ATTENTION_F32, to, from, dim);
		break;
	case FA_ATTENTION_F16:
		store(FA_ATTENTION_F16, to, from, dim);
		break;
	case FA_ATTENTION_BF16:
		store(FA_ATTENTION_BF16, to, from, dim);
		break;
	}
}

void FA_CPU_BLEND(enum fa_attention_dtype dtype, void *to, const void *a, float weight_a,
                  const void *b, float weight_b, int32_t dim)
{
	float sum[ROW_MAX + 16], row[ROW_MAX + 16];

	memset(sum, 0, sizeof(sum));
	if (weight_a != 0) {
		load_any(dtype, row, a, dim);
		for (int32_t c = 0; c < dim; c++)
			sum[c] = row[c] * weight_a;
	}
	if (weight_b != 0) {
		load_any(dtype, row, b, dim);
		for (int32_t c = 0; c < dim; c++)
			sum[c] += row[c] * weight_b;
	}
	store_any(dtype, to, sum, dim);
}

void FA_CPU_ROTATE(enum fa_attention_dtype dtype, void *to, const void *from, const float *cos,
                   const float *sin, int32_t dim, bool interleaved)
{
	int32_t half = dim / 2, padded = (dim + 7) / 8 * 8, bytes = vec_element_bytes(dtype);
	float row[ROW_MAX + 16], rotated[ROW_MAX + 16];
	char stored[(ROW_MAX + 16) * 4];

	/* Rows have a multiple of 8 elements, so this reads nothing past the end. */
	load_any(dtype, row, from, padded);
	memcpy(rotated, row, (size_t)padded * sizeof(float));
	if (interleaved) {
		for (int32_t i = 0; i < half; i++) {
			float x = row[2 * i], y = row[2 * i + 1];

			rotated[2 * i] = x * cos[i] - y * sin[i];
			rotated[2 * i + 1] = y * cos[i] + x * sin[i];
		}
	} else {
		for (int32_t i = 0; i < half; i++) {
			float x = row[i], y = row[i + half];

			rotated[i] = x * cos[i] - y * sin[i];
			rotated[i + half] = y * cos[i] + x * sin[i];
		}
	}
	store_any(dtype, stored, rotated, padded);
	memcpy(to, stored, (size_t)(dim * bytes));
}
