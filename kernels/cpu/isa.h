/*
 * Inside the CPU kernels: one row of the table of instruction sets, and the job
 * that a row's kernels are given. A job is one tile with its sequence and heads
 * resolved, so that what is compiled for an instruction set holds arithmetic
 * alone. Nothing here owns anything.
 */
#pragma once

#include "kernels/paged.h"

/* Rows of a tile at most: a multiple of every row's panel (48, 24, 8). */
#define FA_CPU_TILE_ROWS 192

/* Up to so many rows the thin kernel is the faster one, whatever the lanes. */
#define FA_CPU_THIN_ROWS 8

/* KV heads of a tile at most; more than one only in thin tiles. */
#define FA_CPU_THIN_HEADS 16

struct fa_cpu_job {
	/* Token 0 of the sequence; q and out at the first query head of the group. With a
	 * table, key j lies at k + table[(uint32_t)(table_start + j / page_tokens)] * slot_bytes +
	 * its place in the page. */
	const char *q, *k, *v;
	char *out;
	float *lse;                            /* or NULL */
	int64_t q_stride_token, q_stride_head; /* all strides in bytes, but lse's */
	int64_t k_stride, v_stride;            /* from token to token */
	int64_t k_stride_head, v_stride_head;
	/* Codes, in pages: where the scale of token 0 is, if tokens have their own; else NULL,
	 * and the head's. Only the wide kernel takes them. */
	enum fa_paged_store store;
	const char *k_scales, *v_scales;
	float k_scale, v_scale;
	const uint32_t *table; /* or NULL: keys follow one another */
	uint32_t table_start;
	int64_t page_tokens, slot_bytes;
	int64_t out_stride_token, out_stride_head;
	int64_t lse_stride_token, lse_stride_head;

	enum fa_attention_dtype dtype;
	int32_t head_dim, head_dim_v;
	int64_t n_q, n_k;

	/* Packed rows: row r is token r / group, head r % group of the group. */
	int32_t group;
	int32_t n_heads; /* KV heads, from the one that k and v point to */
	int32_t rows;    /* at most FA_CPU_TILE_ROWS, at least 1 */
	int64_t row;     /* the first */

	/* Row i sees keys [i + n_k - n_q - left, i + n_k - n_q + right]; clamped so
	 * that no sum overflows. Of those, the ones in [begin, end). */
	int64_t left, right;
	int64_t begin, end;

	/* A tree: of the last n_q keys, row i sees those in its mask. The rows' and those
	 * keys' positions are not in order of tokens; NULL if neither window nor ALiBi asks. */
	const uint32_t *tree;      /* [n_q][tree_words], or NULL */
	const uint32_t *positions; /* [n_q] */
	int64_t tree_words;

	/* Where rows end that see only a part of their keys, instead of in out and lse:
	 * [KV head][row of the job][fa_cpu_partial_floats()]; or NULL. */
	float *partial;

	const bool *stop; /* set from outside; or NULL */

	float scale, softcap;
	const float *alibi_slopes, *sinks; /* of the group's first head, or NULL */
};

static inline bool fa_cpu_job_stopped(const struct fa_cpu_job *job)
{
	return job->stop && __atomic_load_n(job->stop, __ATOMIC_RELAXED);
}

/* A partial row: the sums of head_dim_v, up to a multiple of 16, then the maximum (log2)
 * that they are relative to and the sum of weights. */
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
	int32_t panel_rows; /* query rows that the wide kernel takes at once */
	float flops;        /* a cautious guess per second and thread, to size tiles */
	size_t scratch_bytes;
	void (*wide)(const struct fa_cpu_job *job, void *scratch);
	void (*thin)(const struct fa_cpu_job *job, void *scratch);

	/* Ends the rows of @job, whose @n partial results lie @stride floats apart. */
	void (*reduce)(const struct fa_cpu_job *job, const float *partials, int64_t n,
	               int64_t stride);
	/* @dim elements: @to = @weight_a * @a + @weight_b * @b; of weight 0, not read. */
	void (*blend)(enum fa_attention_dtype dtype, void *to, const void *a, float weight_a,
	              const void *b, float weight_b, int32_t dim);
	/* Rotates the first @dim elements of a row by angles whose cosines and sines are
	 * given, [dim / 2]; @to may be @from. */
	void (*rotate)(enum fa_attention_dtype dtype, void *to, const void *from, const float *cos,
	               const float *sin, int32_t dim, bool interleaved);
};

extern const struct fa_cpu_isa fa_cpu_isa_avx512bf16, fa_cpu_isa_avx512, fa_cpu_isa_avx2,
	fa_cpu_isa_generic;
