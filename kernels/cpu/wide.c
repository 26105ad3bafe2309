/*
 * One tile of attention for many query rows: lanes are query rows. Compiled once for
 * every instruction set; pure functions of a job and its scratch, any thread.
 *
 * A tile's rows are cut into panels of PANEL rows, a few vectors wide. Q lies transposed
 * in the scratch, so that S^T = K Q^T and O^T = V^T P^T are both sums of outer products:
 * a vector of rows (Q^T, P^T) times a scalar that is the same for all lanes (an element
 * of K or V), accumulated in a block of registers. Softmax runs along keys, thus down the
 * lanes: no step shuffles lanes.
 *
 * K and V come in rounds of SCORE_KEYS keys, converted to fp32 and copied side by side
 * (strides of whole tokens would fall onto few cache sets), once for all panels. With
 * bf16 dot products a 32-bit word holds two bf16 instead: of a key's neighbouring dims
 * in K and Q, of neighbouring keys in V and P; all else is the same.
 *
 * A panel computes the keys from the first to the last that any of its rows sees, in
 * steps of KEY_STEP. Scores of keys that a row does not see become -inf, hence their
 * weight 0. As 0 times an infinity or NaN of V is NaN, a round that holds such values is
 * accumulated key by key for panels with hidden keys: what a row does not see never
 * changes it.
 */
#include "kernels/cpu/row.h"
#include "kernels/cpu/score.h"
#include "kernels/quantise.h"

#define PANEL (VEC_WIDE_VECTORS * VEC_LANES)
#define PANELS (FA_CPU_TILE_ROWS / PANEL)
#define KEY_STEP 8 /* a multiple of VEC_WIDE_SCALARS, and even, for pairs */
#define K_STRIDE (FA_ATTENTION_HEAD_DIM_MAX + 16)   /* words; an odd number of cache lines */
#define V_STRIDE (FA_ATTENTION_HEAD_DIM_V_MAX + 16) /* at most */

_Static_assert(PANELS *PANEL == FA_CPU_TILE_ROWS, "panels fill a tile");
_Static_assert(KEY_STEP % VEC_WIDE_SCALARS == 0 && SCORE_KEYS % KEY_STEP == 0, "steps fit");

/* Words are floats, or (bf16 dot products) pairs of bf16 that are only moved as floats. */
struct scratch {
	float q[PANELS][FA_ATTENTION_HEAD_DIM_MAX][PANEL];   /* [panel][word of d][row] */
	float o[PANELS][FA_ATTENTION_HEAD_DIM_V_MAX][PANEL]; /* [panel][dim of v][row] */
	float s[SCORE_KEYS][PANEL];                          /* scores, then weights */
	float k[SCORE_KEYS * K_STRIDE];                      /* [key][word of d] */
	float v[SCORE_KEYS * V_STRIDE];                      /* [key or pair][dim of v] */
	float highest[PANELS][PANEL], sum[PANELS][PANEL];    /* of a row so far, in log2 */
	float slope[PANELS][PANEL];                          /* ALiBi, in log2 */
	float position[PANEL], low[PANEL], high[PANEL];      /* relative to the round */
	float rescale[PANEL];
	float row[FA_ATTENTION_HEAD_DIM_V_MAX + VEC_LANES];
};

_Static_assert(sizeof(struct scratch) <= FA_CPU_SCRATCH_BYTES_MAX, "scratch is bounded");

struct tile {
	const struct fa_cpu_job *job;
	struct scratch *scratch;
	struct score_map map;
	bool paired;        /* words are pairs of bf16 */
	int32_t q_words;    /* of a row of Q or K */
	int32_t v_stride;   /* words */
	int64_t round;      /* its first key; a multiple of SCORE_KEYS */
	bool v_has_special; /* the round's V holds an infinity or NaN */
	bool tree;          /* the round has keys that rows see by their masks */
};

/* ---- packing */

static void pack_q_panel(const struct tile *tile, int32_t panel)
{
	const struct fa_cpu_job *job = tile->job;
	struct scratch *scratch = tile->scratch;
	int32_t rows = job->rows - panel * PANEL;
	int bytes = vec_element_bytes(job->dtype);

	for (int32_t r = 0; r < PANEL; r++) {
		const char *q;

		if (r >= rows) {
			for (int32_t w = 0; w < tile->q_words; w++)
				scratch->q[panel][w][r] = 0;
			continue;
		}
		q = score_q(job, job->row + panel * PANEL + r);
		if (tile->paired) {
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
			scratch->q[panel][w][r] = scratch->row[w];
	}
}

/* Converts @dim elements to fp32; returns whether one was infinite or NaN, if @judge. */
VEC_INLINE bool pack_row(enum fa_attention_dtype dtype, const char *from, float *to, int32_t dim,
                         const bool judge)
{
	int bytes = vec_element_bytes(dtype);
	vec zeros = vec_set(0.0f); /* stays 0 while all is finite */
	int32_t c = 0;

	for (; c + VEC_LANES <= dim; c += VEC_LANES) {
		vec x = vec_load_elements(dtype, from + c * bytes, VEC_LANES);

		vec_store(to + c, x);
		if (judge)
			zeros = vec_fma(x, vec_set(0.0f), zeros);
	}
	if (c < dim) {
		vec x = vec_load_elements(dtype, from + c * bytes, 8);

		vec_store(to + c, x); /* the stride leaves room */
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

/* Rows of codes as fp32. */
static bool pack_codes(const struct fa_cpu_job *job, const char *from, int64_t from_stride,
                       const float *scales, float scale, float *to, int32_t to_stride, int32_t rows,
                       int32_t dim)
{
	bool special = false;

	for (int32_t r = 0; r < rows; r++) {
		float *row = to + r * to_stride;

		fa_dequantise_row(job->store, (const uint8_t *)from + r * from_stride,
		                  scales ? scales[r] : scale, row, dim);
		for (int32_t c = 0; c < dim; c++)
			special |= !isfinite(row[c]);
	}
	return special;
}

/* Two keys' rows of V side by side; the second may be missing. */
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

/* Packs keys [first, end) of the round, which lie side by side. Pages are of whole steps,
 * so that keys of a pair lie side by side. */
static void pack_keys(struct tile *tile, int32_t first, int32_t end)
{
	const struct fa_cpu_job *job = tile->job;
	struct scratch *scratch = tile->scratch;
	const char *k = score_k(job, tile->round + first);
	const char *v = score_v(job, tile->round + first);

	if (job->store != FA_PAGED_PLAIN) {
		int64_t key = tile->round + first;

		pack_codes(job, k, job->k_stride, score_scales(job, job->k_scales, key),
		           job->k_scale, scratch->k + first * K_STRIDE, K_STRIDE, end - first,
		           job->head_dim);
		tile->v_has_special |= pack_codes(job, v, job->v_stride,
		                                  score_scales(job, job->v_scales, key),
		                                  job->v_scale, scratch->v + first * tile->v_stride,
		                                  tile->v_stride, end - first, job->head_dim_v);
	} else if (!tile->paired) {
		pack_any(job->dtype, k, job->k_stride, scratch->k + first * K_STRIDE, K_STRIDE,
		         end - first, job->head_dim, false);
		tile->v_has_special |= pack_any(job->dtype, v, job->v_stride,
		                                scratch->v + first * tile->v_stride, tile->v_stride,
		                                end - first, job->head_dim_v, true);
	} else {
		for (int32_t j = first; j < end; j++)
			memcpy(scratch->k + j * K_STRIDE, k + (j - first) * job->k_stride,
			       (size_t)tile->q_words * 4);
		for (int32_t j = first; j < end; j += 2) {
			uint32_t *pair = (uint32_t *)(scratch->v + j / 2 * tile->v_stride);
			const char *row = v + (j - first) * job->v_stride;

			tile->v_has_special |= pack_v_pair(
				(const uint16_t *)row,
				j + 1 < end ? (const uint16_t *)(row + job->v_stride) : NULL, pair,
				job->head_dim_v);
		}
	}
}

/* Packs keys [first, end) of the round, and zeros up to a whole step. */
static void pack_round(struct tile *tile, int32_t first, int32_t end)
{
	struct scratch *scratch = tile->scratch;
	int32_t padded = (end + KEY_STEP - 1) / KEY_STEP * KEY_STEP;

	tile->v_has_special = false;
	for (int32_t key = first, next; key < end; key = next) {
		next = (int32_t)score_clamp(
			score_page_end(tile->job, tile->round + key) - tile->round, 0, end);
		pack_keys(tile, key, next);
	}
	for (int32_t j = end; j < padded; j++) {
		memset(scratch->k + j * K_STRIDE, 0, (size_t)tile->q_words * 4);
		if (!tile->paired)
			memset(scratch->v + j * tile->v_stride, 0,
			       (size_t)tile->job->head_dim_v * 4);
		else if (j % 2 == 0)
			memset(scratch->v + j / 2 * tile->v_stride, 0,
			       (size_t)tile->job->head_dim_v * 4);
	}
}

/* ---- the register block */

VEC_INLINE vec multiply_add(const bool paired, vec a, vec b, vec c)
{
#if VEC_HAS_DOT
	if (paired)
		return vec_dot(a, b, c);
#endif
	return vec_fma(a, b, c);
}

/*
 * sums[j][i] += sum over t of rows[t][i] * scalars[t * step_stride + j * stride]: @vectors
 * vectors of query rows, VEC_WIDE_SCALARS scalars.
 */
VEC_INLINE void block(const bool paired, const int vectors, int32_t steps, const float *rows,
                      const float *scalars, const int32_t stride, int32_t step_stride,
                      vec sums[VEC_WIDE_SCALARS][VEC_WIDE_VECTORS])
{
	for (int32_t t = 0; t < steps; t++) {
		vec row[VEC_WIDE_VECTORS];

		VEC_UNROLL
		for (int i = 0; i < vectors; i++)
			row[i] = vec_load(rows + i * VEC_LANES);
		VEC_UNROLL
		for (int j = 0; j < VEC_WIDE_SCALARS; j++) {
			vec scalar = vec_set(scalars[j * stride]);

			VEC_UNROLL
			for (int i = 0; i < vectors; i++)
				sums[j][i] = multiply_add(paired, row[i], scalar, sums[j][i]);
		}
		rows += PANEL;
		scalars += step_stride;
	}
}

/* Scaled scores of keys [first, end) of the round, end - first a multiple of KEY_STEP. */
VEC_INLINE void panel_scores(const struct tile *tile, int32_t panel, const bool paired,
                             const int vectors, int32_t first, int32_t end)
{
	struct scratch *scratch = tile->scratch;
	vec scale = vec_set(tile->map.scale);

	for (int32_t j = first; j < end; j += VEC_WIDE_SCALARS) {
		vec sums[VEC_WIDE_SCALARS][VEC_WIDE_VECTORS];

		VEC_UNROLL
		for (int a = 0; a < VEC_WIDE_SCALARS; a++) {
			VEC_UNROLL
			for (int i = 0; i < vectors; i++)
				sums[a][i] = vec_set(0.0f);
		}
		block(paired, vectors, tile->q_words, scratch->q[panel][0],
		      scratch->k + j * K_STRIDE, K_STRIDE, 1, sums);
		VEC_UNROLL
		for (int a = 0; a < VEC_WIDE_SCALARS; a++) {
			VEC_UNROLL
			for (int i = 0; i < vectors; i++)
				vec_store(scratch->s[j + a] + i * VEC_LANES, sums[a][i] * scale);
		}
	}
}

/* O^T = rescale * O^T + V^T P^T over keys [first, end) of the round. */
VEC_INLINE void panel_values(const struct tile *tile, int32_t panel, const bool paired,
                             const int vectors, int32_t first, int32_t end)
{
	struct scratch *scratch = tile->scratch;
	int32_t keys = paired ? 2 : 1; /* to a step */

	for (int32_t c = 0; c < tile->job->head_dim_v; c += VEC_WIDE_SCALARS) {
		vec sums[VEC_WIDE_SCALARS][VEC_WIDE_VECTORS];

		VEC_UNROLL
		for (int a = 0; a < VEC_WIDE_SCALARS; a++) {
			VEC_UNROLL
			for (int i = 0; i < vectors; i++)
				sums[a][i] = vec_load(scratch->o[panel][c + a] + i * VEC_LANES) *
				             vec_load(scratch->rescale + i * VEC_LANES);
		}
		block(paired, vectors, (end - first) / keys, scratch->s[first / keys],
		      scratch->v + first / keys * tile->v_stride + c, 1, tile->v_stride, sums);
		VEC_UNROLL
		for (int a = 0; a < VEC_WIDE_SCALARS; a++) {
			VEC_UNROLL
			for (int i = 0; i < vectors; i++)
				vec_store(scratch->o[panel][c + a] + i * VEC_LANES, sums[a][i]);
		}
	}
}

/* ---- softmax */

/* Soft cap, bias and mask of keys [first, end): whatever the product alone does not say. */
static void panel_finish_scores(const struct tile *tile, int32_t panel, int vectors, int32_t first,
                                int32_t end, bool hidden)
{
	struct scratch *scratch = tile->scratch;

	for (int32_t j = first; j < end; j++) {
		vec key = vec_set((float)j), stands = key;

		if (tile->tree && tile->round + j < tile->job->n_k)
			stands = vec_set((float)(score_key_position(tile->job, tile->round + j) -
			                         tile->round));
		for (int i = 0; i < vectors; i++) {
			int at = i * VEC_LANES;
			vec score = vec_load(scratch->s[j] + at);

			if (tile->map.capped)
				score = vec_tanh(score) * vec_set(tile->map.cap);
			if (tile->job->alibi_slopes)
				score = score_bias(score, vec_load(scratch->slope[panel] + at),
				                   stands, vec_load(scratch->position + at));
			if (hidden)
				score = score_mask(score, key, vec_load(scratch->low + at),
				                   vec_load(scratch->high + at));
			vec_store(scratch->s[j] + at, score);
		}
	}
}

/* Whether row @r of a panel sees the round's key @j by its mask; rows that only fill the
 * panel do as the last one does. */
static inline bool panel_tree_sees(const struct tile *tile, int32_t panel, int32_t r, int32_t j)
{
	const struct fa_cpu_job *job = tile->job;
	int64_t row = panel * PANEL + r < job->rows ? panel * PANEL + r : job->rows - 1;

	return score_tree_sees(job, job->row + row, tile->round + j);
}

/* Hides from each row the new keys that its mask does not name. */
static void panel_mask_tree(const struct tile *tile, int32_t panel, int vectors, int32_t first,
                            int32_t end)
{
	const struct fa_cpu_job *job = tile->job;

	for (int32_t j = first; j < end && tile->round + j < job->n_k; j++) {
		for (int32_t r = 0; r < vectors * VEC_LANES; r++) {
			if (!panel_tree_sees(tile, panel, r, j))
				tile->scratch->s[j][r] = -INFINITY;
		}
	}
}

/* Scores to weights relative to each row's highest score so far. */
VEC_INLINE void panel_softmax(const struct tile *tile, int32_t panel, const int vectors,
                              int32_t first, int32_t end)
{
	struct scratch *scratch = tile->scratch;
	vec before[VEC_WIDE_VECTORS], highest[VEC_WIDE_VECTORS], base[VEC_WIDE_VECTORS];
	vec sum[VEC_WIDE_VECTORS];

	VEC_UNROLL
	for (int i = 0; i < vectors; i++)
		highest[i] = before[i] = vec_load(scratch->highest[panel] + i * VEC_LANES);
	for (int32_t j = first; j < end; j++) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++)
			highest[i] = vec_max(vec_load(scratch->s[j] + i * VEC_LANES), highest[i]);
	}

	VEC_UNROLL
	for (int i = 0; i < vectors; i++) {
		base[i] = score_base(highest[i]);
		sum[i] = vec_set(0.0f);
	}
	for (int32_t j = first; j < end; j++) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++) {
			vec weight = vec_exp2(vec_load(scratch->s[j] + i * VEC_LANES) - base[i]);

			sum[i] = sum[i] + weight;
			vec_store(scratch->s[j] + i * VEC_LANES, weight);
		}
	}

	VEC_UNROLL
	for (int i = 0; i < vectors; i++) {
		vec rescale = vec_exp2(before[i] - base[i]);
		float *total = scratch->sum[panel] + i * VEC_LANES;

		vec_store(scratch->rescale + i * VEC_LANES, rescale);
		vec_store(scratch->highest[panel] + i * VEC_LANES, highest[i]);
		vec_store(total, vec_fma(vec_load(total), rescale, sum[i]));
	}
}

#if VEC_HAS_DOT
/* Weights of two keys into one word each, in place. */
static void panel_pair_weights(const struct tile *tile, int vectors, int32_t first, int32_t end)
{
	struct scratch *scratch = tile->scratch;

	for (int32_t j = first; j < end; j += 2) {
		for (int i = 0; i < vectors; i++) {
			int at = i * VEC_LANES;

			vec_store(scratch->s[j / 2] + at,
			          vec_pair_bf16(vec_load(scratch->s[j] + at),
			                        vec_load(scratch->s[j + 1] + at)));
		}
	}
}
#endif

/* Makes the weights of new keys that a row's mask does not name -1, for what follows. */
static void panel_mark_tree(const struct tile *tile, int32_t panel, int vectors, int32_t first,
                            int32_t end)
{
	const struct fa_cpu_job *job = tile->job;

	for (int32_t j = first; j < end && tile->round + j < job->n_k; j++) {
		for (int32_t r = 0; r < vectors * VEC_LANES; r++) {
			if (!panel_tree_sees(tile, panel, r, j))
				tile->scratch->s[j][r] = -1;
		}
	}
}

/* Like panel_values, but what a row does not see is not even multiplied by 0. */
static void panel_values_seen(const struct tile *tile, int32_t panel, int vectors, int32_t first,
                              int32_t end)
{
	struct scratch *scratch = tile->scratch;

	for (int32_t c = 0; c < tile->job->head_dim_v; c++) {
		for (int i = 0; i < vectors; i++) {
			float *o = scratch->o[panel][c] + i * VEC_LANES;
			vec low = vec_load(scratch->low + i * VEC_LANES);
			vec high = vec_load(scratch->high + i * VEC_LANES);
			vec sum = vec_load(o) * vec_load(scratch->rescale + i * VEC_LANES);

			for (int32_t j = first; j < end; j++) {
				vec key = vec_set((float)j), added;
				float value;

				if (tile->paired) {
					uint32_t pair;

					memcpy(&pair, scratch->v + j / 2 * tile->v_stride + c, 4);
					pair = j % 2 == 0 ? pair << 16 : pair & 0xffff0000u;
					memcpy(&value, &pair, 4);
				} else {
					value = scratch->v[j * tile->v_stride + c];
				}
				added = vec_fma(vec_load(scratch->s[j] + i * VEC_LANES),
				                vec_set(value), sum);
				added = vec_select(vec_less(key, low), sum, added);
				if (tile->tree)
					added = vec_select(
						vec_less(vec_load(scratch->s[j] + i * VEC_LANES),
					                 vec_set(0.0f)),
						sum, added);
				sum = vec_select(vec_less(key, high), added, sum);
			}
			vec_store(o, sum);
		}
	}
}

/* ---- panels and rounds */

VEC_INLINE void panel_round_of(const struct tile *tile, int32_t panel, const bool paired,
                               const int vectors, int32_t first, int32_t end, bool hidden)
{
	panel_scores(tile, panel, paired, vectors, first, end);
	if (hidden || tile->map.capped || tile->job->alibi_slopes)
		panel_finish_scores(tile, panel, vectors, first, end, hidden);
	if (tile->tree)
		panel_mask_tree(tile, panel, vectors, first, end);
	panel_softmax(tile, panel, vectors, first, end);
	if (hidden && tile->v_has_special) {
		if (tile->tree)
			panel_mark_tree(tile, panel, vectors, first, end);
		panel_values_seen(tile, panel, vectors, first, end);
		return;
	}
#if VEC_HAS_DOT
	if (paired)
		panel_pair_weights(tile, vectors, first, end);
#endif
	panel_values(tile, panel, paired, vectors, first, end);
}

/* The last panel may be narrower; each width is a function, for its registers' sake. */
#define PANEL_ROUND(name, paired, vectors)                                                         \
	static void name(const struct tile *tile, int32_t panel, int32_t first, int32_t end,       \
	                 bool hidden)                                                              \
	{                                                                                          \
		panel_round_of(tile, panel, paired, vectors, first, end, hidden);                  \
	}

PANEL_ROUND(panel_round_1, false, 1)
PANEL_ROUND(panel_round_2, false, 2)
#if VEC_WIDE_VECTORS > 2
PANEL_ROUND(panel_round_3, false, 3)
#endif
#if VEC_HAS_DOT
PANEL_ROUND(panel_round_paired_1, true, 1)
PANEL_ROUND(panel_round_paired_2, true, 2)
PANEL_ROUND(panel_round_paired_3, true, 3)
#endif

typedef void panel_round_fn(const struct tile *tile, int32_t panel, int32_t first, int32_t end,
                            bool hidden);

static panel_round_fn *const panel_rounds[][VEC_WIDE_VECTORS] = {
	{
		panel_round_1,
		panel_round_2,
#if VEC_WIDE_VECTORS > 2
		panel_round_3,
#endif
	},
#if VEC_HAS_DOT
	{ panel_round_paired_1, panel_round_paired_2, panel_round_paired_3 },
#endif
};

static void panel_round(const struct tile *tile, int32_t panel)
{
	const struct fa_cpu_job *job = tile->job;
	struct scratch *scratch = tile->scratch;
	int64_t row = job->row + panel * PANEL;
	int32_t rows = job->rows - panel * PANEL < PANEL ? job->rows - panel * PANEL : PANEL;
	int64_t last = row + rows - 1, round = tile->round;
	int32_t low_first, low_last, high_first, high_last, first, end;
	bool hidden;

	/* Rows are in order of tokens, so both ends of what they see only rise. Those of
	 * trees are not: they are taken to see as little and as much as any. */
	low_first = (int32_t)score_clamp(score_low_of(job, row, last) - round, 0, SCORE_KEYS);
	low_last = (int32_t)score_clamp(score_low(job, last) - round, 0, SCORE_KEYS);
	high_first = (int32_t)score_clamp(score_high(job, row) - round, 0, SCORE_KEYS);
	high_last = (int32_t)score_clamp(score_high_of(job, row, last) - round, 0, SCORE_KEYS);
	first = low_first / KEY_STEP * KEY_STEP;
	end = (high_last + KEY_STEP - 1) / KEY_STEP * KEY_STEP;
	if (low_first >= high_last)
		return;
	hidden = low_last > first || high_first < end || job->tree;

	if (hidden || job->alibi_slopes) {
		for (int32_t r = 0; r < PANEL; r++) {
			/* Rows that only fill the panel do as the last one does. */
			int64_t at = r < rows ? row + r : last;

			scratch->position[r] = (float)(score_position(job, at) - round);
			scratch->low[r] = (float)score_clamp(score_low(job, at) - round, 0,
			                                     SCORE_KEYS);
			scratch->high[r] = (float)score_clamp(score_high(job, at) - round, 0,
			                                      SCORE_KEYS);
		}
	}
	panel_rounds[tile->paired][(rows - 1) / VEC_LANES](tile, panel, first, end, hidden);
}

static void panel_begin(const struct tile *tile, int32_t panel)
{
	const struct fa_cpu_job *job = tile->job;
	struct scratch *scratch = tile->scratch;

	pack_q_panel(tile, panel);
	memset(scratch->o[panel], 0, (size_t)job->head_dim_v * PANEL * sizeof(float));
	memset(scratch->sum[panel], 0, sizeof(scratch->sum[panel]));
	for (int32_t r = 0; r < PANEL; r++) {
		int64_t row = job->row + panel * PANEL + r;

		scratch->highest[panel][r] = -INFINITY;
		scratch->slope[panel][r] = job->alibi_slopes
		                                   ? (float)(job->alibi_slopes[row % job->group] *
		                                             VEC_LOG2E)
		                                   : 0;
	}
}

static void panel_end(const struct tile *tile, int32_t panel)
{
	const struct fa_cpu_job *job = tile->job;
	struct scratch *scratch = tile->scratch;
	int32_t rows = job->rows - panel * PANEL < PANEL ? job->rows - panel * PANEL : PANEL;

	for (int32_t r = 0; r < rows; r++) {
		int64_t row = job->row + panel * PANEL + r;
		float factor = score_finish(job, row, scratch->highest[panel][r],
		                            scratch->sum[panel][r]);

		for (int32_t c = 0; c < job->head_dim_v; c++)
			scratch->row[c] = scratch->o[panel][c][r];
		score_store(job, row, scratch->row, factor);
	}
}

static void wide(const struct fa_cpu_job *job, void *scratch)
{
	struct tile tile = {
		.job = job,
		.scratch = scratch,
		.paired = VEC_HAS_DOT && job->dtype == FA_ATTENTION_BF16 &&
		          job->store == FA_PAGED_PLAIN,
		/* An odd number of cache lines, with room for half a vector. */
		.v_stride = (((job->head_dim_v + 23) / 16) | 1) * 16,
	};
	int32_t panels = (job->rows + PANEL - 1) / PANEL;
	int64_t begin = score_low_of(job, job->row, job->row + job->rows - 1);
	int64_t end = score_high_of(job, job->row, job->row + job->rows - 1);

	tile.q_words = tile.paired ? job->head_dim / 2 : job->head_dim;
	score_map_init(&tile.map, job);
	for (int32_t panel = 0; panel < panels; panel++)
		panel_begin(&tile, panel);

	for (tile.round = begin / SCORE_KEYS * SCORE_KEYS; tile.round < end;
	     tile.round += SCORE_KEYS) {
		int64_t first = score_clamp(begin - tile.round, 0, SCORE_KEYS);

		if (fa_cpu_job_stopped(job))
			return;
		tile.tree = job->tree && tile.round + SCORE_KEYS > job->n_k - job->n_q;
		pack_round(&tile, (int32_t)first / KEY_STEP * KEY_STEP,
		           (int32_t)score_clamp(end - tile.round, 0, SCORE_KEYS));
		for (int32_t panel = 0; panel < panels; panel++)
			panel_round(&tile, panel);
	}

	for (int32_t panel = 0; panel < panels; panel++)
		panel_end(&tile, panel);
}

/* Data alone: nothing compiled for an instruction set runs before it was chosen. */
const struct fa_cpu_isa FA_CPU_ROW = {
	.name = FA_CPU_STRING(FA_CPU_NAME),
	.panel_rows = PANEL,
	.flops = VEC_FLOPS,
	.scratch_bytes = sizeof(struct scratch),
	.wide = wide,
	.thin = FA_CPU_THIN,
	.reduce = FA_CPU_REDUCE,
	.blend = FA_CPU_BLEND,
	.rotate = FA_CPU_ROTATE,
};
