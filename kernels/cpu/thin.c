/*
 * One tile of attention for few query rows, as in decoding: lanes are dims. Compiled once
 * for every instruction set; pure functions of a job and its scratch, any thread.
 *
 * With so few rows each element of K and V is used only a few times, so the kernel's time
 * is memory's: K and V are read where they lie, once, converted on the way, and asked for
 * ahead, since tokens usually lie too far apart for the processor to guess. Scores
 * are sums over lanes; softmax runs along keys, a row at a time; the accumulators of
 * a row's output are vectors again.
 *
 * Keys come in rounds of SCORE_KEYS. A row whose view of a round is partial is accumulated
 * alone over just the keys that it sees, so that no others' V can matter to it.
 */
#include "kernels/cpu/row.h"
#include "kernels/cpu/score.h"

#define ROWS FA_CPU_THIN_ROWS
#define PREFETCH_KEYS 16
#define LINE_BYTES 64

struct scratch {
	float q[ROWS][FA_ATTENTION_HEAD_DIM_MAX + 16];   /* fp32; zeros up to a whole vector */
	float o[ROWS][FA_ATTENTION_HEAD_DIM_V_MAX + 16]; /* likewise */
	float s[ROWS][SCORE_KEYS];                       /* scores, then weights */
	float highest[ROWS], sum[ROWS], rescale[ROWS];
};

_Static_assert(sizeof(struct scratch) <= 64u << 10, "less than any wide kernel's");

/* A round, as the rows see it: keys relative to its first. */
struct round {
	const char *k, *v; /* its first key */
	int32_t end;       /* keys [0, end) are seen by some row */
	int32_t low[ROWS], high[ROWS];
	int64_t key; /* its first, in the sequence */
};

VEC_INLINE void prefetch_row(const char *row, int32_t bytes)
{
	for (int32_t at = 0; at < bytes; at += LINE_BYTES)
		__builtin_prefetch(row + at, 0, 3);
}

/* Products of @rows rows of Q with @keys keys. */
VEC_INLINE void products(enum fa_attention_dtype dtype, const int rows, const int keys,
                         const struct fa_cpu_job *job, struct scratch *scratch, int32_t row,
                         const char *k, int32_t key)
{
	int bytes = vec_element_bytes(dtype);
	vec sums[8][4];
	int32_t c = 0;

	VEC_UNROLL
	for (int j = 0; j < keys; j++) {
		VEC_UNROLL
		for (int r = 0; r < rows; r++)
			sums[j][r] = vec_set(0.0f);
	}
	for (; c + VEC_LANES <= job->head_dim; c += VEC_LANES) {
		VEC_UNROLL
		for (int j = 0; j < keys; j++) {
			vec x = vec_load_elements(dtype, k + j * job->k_stride + c * bytes,
			                          VEC_LANES);

			VEC_UNROLL
			for (int r = 0; r < rows; r++)
				sums[j][r] = vec_fma(vec_load(scratch->q[row + r] + c), x,
				                     sums[j][r]);
		}
	}
	if (c < job->head_dim) {
		VEC_UNROLL
		for (int j = 0; j < keys; j++) {
			vec x = vec_load_elements(dtype, k + j * job->k_stride + c * bytes, 8);

			VEC_UNROLL
			for (int r = 0; r < rows; r++)
				sums[j][r] = vec_fma(vec_load(scratch->q[row + r] + c), x,
				                     sums[j][r]);
		}
	}
	VEC_UNROLL
	for (int j = 0; j < keys; j++) {
		VEC_UNROLL
		for (int r = 0; r < rows; r++)
			scratch->s[row + r][key + j] = vec_sum(sums[j][r]);
	}
}

/* All rows' products with keys [key, key + keys), rows four at a time where there are. */
VEC_INLINE void products_of_rows(enum fa_attention_dtype dtype, const int keys,
                                 const struct fa_cpu_job *job, struct scratch *scratch,
                                 const char *k, int32_t key)
{
	int32_t row = 0;

	for (; row + 4 <= job->rows; row += 4) {
		for (int j = 0; j < keys; j += 2)
			products(dtype, 4, keys < 2 ? keys : 2, job, scratch, row,
			         k + j * job->k_stride, key + j);
	}
	for (; row + 2 <= job->rows; row += 2) {
		for (int j = 0; j < keys; j += 4)
			products(dtype, 2, keys < 4 ? keys : 4, job, scratch, row,
			         k + j * job->k_stride, key + j);
	}
	if (row < job->rows)
		products(dtype, 1, keys, job, scratch, row, k, key);
}

VEC_INLINE void round_products(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                               struct scratch *scratch, const struct round *round)
{
	int bytes = vec_element_bytes(dtype);
	int64_t ahead = job->n_k - round->key; /* keys of the sequence from here on */
	int32_t key = 0;

	/* While this round's K is read, its V and the next keys of K are on their way. */
	for (; key + 8 <= round->end; key += 8) {
		for (int j = 0; j < 8; j++) {
			prefetch_row(round->v + (key + j) * job->v_stride, job->head_dim_v * bytes);
			if (key + j + PREFETCH_KEYS < ahead)
				prefetch_row(round->k + (key + j + PREFETCH_KEYS) * job->k_stride,
				             job->head_dim * bytes);
		}
		products_of_rows(dtype, 8, job, scratch, round->k + key * job->k_stride, key);
	}
	for (; key < round->end; key++)
		products_of_rows(dtype, 1, job, scratch, round->k + key * job->k_stride, key);
}

/* Scores and weights of one row; those of keys it does not see become 0. */
static void row_softmax(const struct fa_cpu_job *job, const struct score_map *map,
                        struct scratch *scratch, const struct round *round, int32_t row)
{
	float *s = scratch->s[row];
	vec low = vec_set((float)round->low[row]), high = vec_set((float)round->high[row]);
	vec position = vec_set((float)(score_position(job, job->row + row) - round->key));
	vec top = vec_set(-INFINITY), sum = vec_set(0.0f), slope, base;
	float lanes[VEC_LANES], before = scratch->highest[row], highest;

	for (int i = 0; i < VEC_LANES; i++)
		lanes[i] = (float)i;
	slope = vec_set(
		job->alibi_slopes
			? (float)(job->alibi_slopes[(job->row + row) % job->group] * VEC_LOG2E)
			: 0);

	for (int32_t j = 0; j < round->end; j += VEC_LANES) {
		vec key = vec_load(lanes) + vec_set((float)j);
		vec score = vec_load(s + j) * vec_set(map->scale);

		if (map->capped)
			score = vec_tanh(score) * vec_set(map->cap);
		if (job->alibi_slopes)
			score = score_bias(score, slope, key, position);
		score = score_mask(score, key, low, high);
		vec_store(s + j, score);
		top = vec_max(score, top);
	}
	highest = vec_highest(top);
	highest = highest > before ? highest : before;
	base = score_base(vec_set(highest));
	for (int32_t j = 0; j < round->end; j += VEC_LANES) {
		vec weight = vec_exp2(vec_load(s + j) - base);

		vec_store(s + j, weight);
		sum = sum + weight;
	}

	vec_store(lanes, vec_exp2(vec_set(before) - base));
	scratch->rescale[row] = lanes[0];
	scratch->highest[row] = highest;
	scratch->sum[row] = scratch->sum[row] * lanes[0] + vec_sum(sum);
}

/* @vectors vectors of the output from dim @c on, of @rows rows, over keys [first, end). */
VEC_INLINE void values(enum fa_attention_dtype dtype, const int rows, const int vectors,
                       const int lanes, const struct fa_cpu_job *job, struct scratch *scratch,
                       int32_t row, int32_t c, const char *v, int32_t first, int32_t end)
{
	int bytes = vec_element_bytes(dtype);
	vec sums[4][8];

	VEC_UNROLL
	for (int r = 0; r < rows; r++) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++)
			sums[r][i] = vec_load(scratch->o[row + r] + c + i * VEC_LANES) *
			             vec_set(scratch->rescale[row + r]);
	}
	v += first * job->v_stride + c * bytes;
	for (int32_t j = first; j < end; j++, v += job->v_stride) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++) {
			vec x = vec_load_elements(dtype, v + i * VEC_LANES * bytes, lanes);

			VEC_UNROLL
			for (int r = 0; r < rows; r++)
				sums[r][i] = vec_fma(vec_set(scratch->s[row + r][j]), x,
				                     sums[r][i]);
		}
	}
	VEC_UNROLL
	for (int r = 0; r < rows; r++) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++)
			vec_store(scratch->o[row + r] + c + i * VEC_LANES, sums[r][i]);
	}
}

VEC_INLINE void values_of_rows(enum fa_attention_dtype dtype, const int rows,
                               const struct fa_cpu_job *job, struct scratch *scratch, int32_t row,
                               const char *v, int32_t first, int32_t end)
{
	const int vectors = VEC_THIN_ACCUMULATORS / rows < 8 ? VEC_THIN_ACCUMULATORS / rows : 8;
	int32_t c = 0;

	for (; c + vectors * VEC_LANES <= job->head_dim_v; c += vectors * VEC_LANES)
		values(dtype, rows, vectors, VEC_LANES, job, scratch, row, c, v, first, end);
	for (; c + VEC_LANES <= job->head_dim_v; c += VEC_LANES)
		values(dtype, rows, 1, VEC_LANES, job, scratch, row, c, v, first, end);
	if (c < job->head_dim_v)
		values(dtype, rows, 1, 8, job, scratch, row, c, v, first, end);
}

VEC_INLINE void round_values(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                             struct scratch *scratch, const struct round *round)
{
	int32_t row = 0;
	bool hidden = false;

	for (int32_t r = 0; r < job->rows; r++)
		hidden |= round->low[r] > 0 || round->high[r] < round->end;
	if (hidden) {
		for (; row < job->rows; row++)
			values_of_rows(dtype, 1, job, scratch, row, round->v, round->low[row],
			               round->high[row]);
		return;
	}
	for (; row + 4 <= job->rows; row += 4)
		values_of_rows(dtype, 4, job, scratch, row, round->v, 0, round->end);
	for (; row + 2 <= job->rows; row += 2)
		values_of_rows(dtype, 2, job, scratch, row, round->v, 0, round->end);
	if (row < job->rows)
		values_of_rows(dtype, 1, job, scratch, row, round->v, 0, round->end);
}

VEC_INLINE void thin(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                     struct scratch *scratch)
{
	int bytes = vec_element_bytes(dtype);
	int64_t begin = score_low(job, job->row);
	int64_t end = score_high(job, job->row + job->rows - 1);
	struct score_map map;

	score_map_init(&map, job);
	memset(scratch, 0, sizeof(*scratch));
	for (int32_t r = 0; r < job->rows; r++) {
		const char *q = score_q(job, job->row + r);

		for (int32_t c = 0; c < job->head_dim; c += 8)
			for (int32_t i = 0; i < 8; i += VEC_LANES)
				vec_store(scratch->q[r] + c + i,
				          vec_load_elements(dtype, q + (c + i) * bytes, 8));
		scratch->highest[r] = -INFINITY;
	}

	/* The first round is short if it must be, so that others start at multiples. */
	for (int64_t key = begin; key < end;) {
		int64_t next = (key / SCORE_KEYS + 1) * SCORE_KEYS;
		struct round round = {
			.k = job->k + key * job->k_stride,
			.v = job->v + key * job->v_stride,
			.end = (int32_t)((next < end ? next : end) - key),
			.key = key,
		};

		for (int32_t r = 0; r < job->rows; r++) {
			round.low[r] = (int32_t)score_clamp(score_low(job, job->row + r) - key, 0,
			                                    round.end);
			round.high[r] = (int32_t)score_clamp(score_high(job, job->row + r) - key, 0,
			                                     round.end);
		}
		round_products(dtype, job, scratch, &round);
		for (int32_t r = 0; r < job->rows; r++)
			row_softmax(job, &map, scratch, &round, r);
		round_values(dtype, job, scratch, &round);
		key = next;
	}

	for (int32_t r = 0; r < job->rows; r++)
		score_store(job, job->row + r, scratch->o[r],
		            score_finish(job, job->row + r, scratch->highest[r], scratch->sum[r]));
}

void FA_CPU_THIN(const struct fa_cpu_job *job, void *scratch)
{
	switch (job->dtype) {
	case FA_ATTENTION_F32:
		thin(FA_ATTENTION_F32, job, scratch);
		break;
	case FA_ATTENTION_F16:
		thin(FA_ATTENTION_F16, job, scratch);
		break;
	case FA_ATTENTION_BF16:
		thin(FA_ATTENTION_BF16, job, scratch);
		break;
	}
}
