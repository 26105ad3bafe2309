/*
 * The table of instruction sets, and the job of their kernels: one tile, its sequence and heads
 * resolved. Nothing here owns memory.
 */
#pragma once

#include "kernels/cpu/integer.h"
#include "kernels/paged.h"

/* A multiple of all panels (48, 24, 8). */
#define FA_CPU_TILE_ROWS_MAX 192

/* Up to this many rows few_rows is faster. */
#define FA_CPU_FEW_ROWS_MAX 12

/* Both kernels get the scratch of many_rows, which needs more. */
#define FA_CPU_FEW_ROWS_SCRATCH_MAX (1792u << 10)

/* Only tiles of few rows have more than one head. */
#define FA_CPU_TILE_HEADS_MAX 16

struct fa_cpu_job {
	/* Token 0 of the sequence; q and out at the group's first query head. With a table, key j
	 * lies at k + page * k_page_bytes + its offset in the page, where page is
	 * table[(uint32_t)(table_start + j / page_tokens)], at most last_page. */
	const char *q, *k, *v;
	char *out;
	float *lse;
	int64_t q_stride_token, q_stride_head; /* strides in bytes, except lse's */
	int64_t k_stride, v_stride;
	int64_t k_stride_head, v_stride_head;
	/* Codes: token 0's scale, or NULL: the head has one. Only many_rows has codes. */
	enum fa_paged_store store;
	const char *k_scales, *v_scales;
	int64_t k_scale_stride, v_scale_stride;
	bool q_e4m3;           /* q is codes, too */
	const float *q_scales; /* token 0's, at the group's first query head; NULL: 1 */
	int64_t q_scale_stride_token, q_scale_stride_head; /* in elements */
	float k_scale, v_scale;
	const uint32_t *table; /* NULL: keys are contiguous; may change at any time */
	uint32_t table_start, last_page;
	int64_t page_tokens, k_page_bytes, v_page_bytes;
	int64_t out_stride_token, out_stride_head;
	int64_t lse_stride_token, lse_stride_head;

	enum fa_attention_dtype dtype;
	int32_t head_dim, head_dim_v;
	int64_t n_q, n_k;

	/* Row r is token r / group, head r % group. */
	int32_t group;
	int32_t n_heads; /* KV heads, from that of k and v */
	int32_t rows;
	int64_t row;

	/* A row at position p sees keys [p - left, p + right], and up to p + right_prefix those
	 * before prefix, of p's chunk (chunk_tokens 0: of all), within [begin, end). Clamped so
	 * that no sum overflows. */
	int64_t left, right;
	int64_t right_prefix, prefix;
	int64_t chunk_tokens;
	int64_t begin, end;

	/* A tree: of the last n_q keys, row i sees those in its mask. positions: NULL unless a
	 * window, chunks or ALiBi need it. */
	const uint32_t *tree;      /* [n_q][tree_words], or NULL */
	const uint32_t *positions; /* [n_q] */
	int64_t tree_words;

	/* Masks of the job's rows and heads. All query heads of the group have the same. */
	int32_t block_rows, block_keys; /* 0: no blocks */
	const int32_t *offsets, *columns;
	int64_t n_columns;
	struct fa_attention_pattern pattern; /* block_tokens 0: none */
	int64_t pattern_shift; /* key blocks b with (b + this) % vert_stride = 0 are seen */
	const uint32_t *bits;  /* [n_q][bits_stride], or NULL */
	int64_t bits_stride, bits_words;

	/* With split keys, rows go here, not to out and lse: [KV head][row of the
	 * job][fa_cpu_partial_floats()]; or NULL. */
	float *partial;

	const bool *stop; /* set by another thread; or NULL */

	float scale, softcap;
	const float *alibi_slopes, *sinks;
};

/* True: query heads of one KV head have different masks, and each is computed alone. */
static inline bool fa_cpu_pattern_per_head(const struct fa_attention_pattern *pattern,
                                           int64_t group)
{
	return pattern->block_tokens &&
	       (pattern->head_step > 0 ||
	        (pattern->head_step < 0 && pattern->first_head % group != 0));
}

/* Sets the pattern of query head @head and those that share its mask. @group: query heads of a KV
 * head. */
static inline void fa_cpu_job_set_pattern(struct fa_cpu_job *job,
                                          const struct fa_attention_pattern *pattern, int64_t head,
                                          int64_t group)
{
	int64_t number = pattern->first_head + head, step = pattern->head_step;

	job->pattern = *pattern;
	job->pattern_shift = (step < 0 ? number / group * -step : number * step) + 1;
}

static inline bool fa_cpu_job_stopped(const struct fa_cpu_job *job)
{
	return job->stop && __atomic_load_n(job->stop, __ATOMIC_RELAXED);
}

/* The first key that a row at @position sees, and the end of its keys; not clamped to those that
 * exist. Neither falls as the position rises. */
static inline int64_t fa_cpu_job_low(const struct fa_cpu_job *job, int64_t position)
{
	int64_t low = position - job->left;

	return job->chunk_tokens ? max64(low, chunk_begin(position, job->chunk_tokens)) : low;
}

static inline int64_t fa_cpu_job_high(const struct fa_cpu_job *job, int64_t position)
{
	int64_t high = position + job->right + 1;

	if (job->prefix)
		high = max64(high, min64(job->prefix, position + job->right_prefix + 1));
	if (job->chunk_tokens)
		high = min64(high, chunk_begin(position, job->chunk_tokens) + job->chunk_tokens);
	return high;
}

/* A partial row: head_dim_v sums, padded to a multiple of 16; the maximum (log2) that they are
 * relative to; the sum of weights. */
static inline int64_t fa_cpu_partial_values(const struct fa_cpu_job *job)
{
	return ((int64_t)job->head_dim_v + 15) / 16 * 16;
}

static inline int64_t fa_cpu_partial_floats_of(int32_t head_dim_v)
{
	return ((int64_t)head_dim_v + 15) / 16 * 16 + 16;
}

static inline int64_t fa_cpu_partial_floats(const struct fa_cpu_job *job)
{
	return fa_cpu_partial_floats_of(job->head_dim_v);
}

struct fa_cpu_isa {
	const char *name;
	int32_t panel_rows;
	float flops; /* a second and thread; a low estimate */
	size_t scratch_bytes;
	void (*many_rows)(const struct fa_cpu_job *job, void *scratch);
	void (*few_rows)(const struct fa_cpu_job *job, void *scratch);

	/* Reduces the job's @n partial results, @stride floats apart, to its rows. */
	void (*reduce)(const struct fa_cpu_job *job, const float *partials, int64_t n,
	               int64_t stride);
	/* @to = @weight_a * @a + @weight_b * @b, @dim elements. What has weight 0 is not read. */
	void (*blend)(enum fa_attention_dtype dtype, void *to, const void *a, float weight_a,
	              const void *b, float weight_b, int32_t dim);
	/* The first @dim elements of a row; cosines and sines: [dim / 2]; @to may be @from. */
	void (*rotate)(enum fa_attention_dtype dtype, void *to, const void *from, const float *cos,
	               const float *sin, int32_t dim, bool interleaved);
};

extern const struct fa_cpu_isa fa_cpu_isa_avx512bf16, fa_cpu_isa_avx512, fa_cpu_isa_avx2,
	fa_cpu_isa_generic;
