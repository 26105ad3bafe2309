/*
 * One tile of attention for many query rows: lanes are query rows. Compiled once for every
 * instruction set; pure functions of a job and its scratch, any thread.
 *
 * Rows are divided into panels of a few vectors. Q is transposed, so that S^T = K Q^T and O^T = V^T
 * P^T are sums of outer products of a vector of rows and a scalar of K or V, in a block of
 * registers; softmax runs across vectors. K and V come in rounds of SCORE_KEYS keys, converted to
 * fp32 and packed once for all panels (strides of whole tokens would map to few cache sets). With
 * bf16 dot products a word holds two bf16: adjacent dims in K and Q, adjacent keys in V and P.
 *
 * Hidden keys get score -inf and weight 0. As 0 times an infinity or NaN of V is NaN, panels with
 * hidden keys accumulate rounds with such values key by key.
 */
#include "kernels/cpu/isa-symbols.h"
#include "kernels/cpu/score.h"
#include "kernels/cpu/tile-pack.h"
#include "kernels/cpu/tile-panel.h"

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

/* The last panel may be narrower. A function per width keeps accumulators in registers. */
#define PANEL_ROUND(name, paired, vectors)                                                         \
	static void name(const struct tile *tile, int32_t panel, int32_t first, int32_t end,       \
	                 bool hidden)                                                              \
	{                                                                                          \
		panel_round_of(tile, panel, paired, vectors, first, end, hidden);                  \
	}

PANEL_ROUND(panel_round_1, false, 1)
PANEL_ROUND(panel_round_2, false, 2)
#if VEC_PANEL_VECTORS > 2
PANEL_ROUND(panel_round_3, false, 3)
#endif
#if VEC_HAS_DOT
PANEL_ROUND(panel_round_paired_1, true, 1)
PANEL_ROUND(panel_round_paired_2, true, 2)
PANEL_ROUND(panel_round_paired_3, true, 3)
#endif

typedef void panel_round_fn(const struct tile *tile, int32_t panel, int32_t first, int32_t end,
                            bool hidden);

static panel_round_fn *const panel_rounds[][VEC_PANEL_VECTORS] = {
	{
		panel_round_1,
		panel_round_2,
#if VEC_PANEL_VECTORS > 2
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

	/* Rows are in token order, so both bounds only rise, except in a tree: its rows get the
	 * widest bounds. */
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
			/* Padding rows repeat the last row. */
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
	float(*o)[PANEL] = tile->carried ? scratch->far[panel] : scratch->o[panel];
	const float *sum = tile->carried ? scratch->far_sum[panel] : scratch->sum[panel];

	if (tile->carried)
		panel_carry(tile, panel);
	for (int32_t r = 0; r < rows; r++) {
		int64_t row = job->row + panel * PANEL + r;
		float factor = score_finish(job, row, scratch->highest[panel][r], sum[r]);

		for (int32_t c = 0; c < job->head_dim_v; c++)
			scratch->row[c] = o[c][r];
		score_store(job, row, scratch->row, factor);
	}
}

static void many_rows(const struct fa_cpu_job *job, void *scratch)
{
	struct tile tile = {
		.job = job,
		.scratch = scratch,
		.paired = VEC_HAS_DOT && job->dtype == FA_ATTENTION_BF16 &&
		          job->store == FA_PAGED_PLAIN,
		/* An odd number of cache lines, padded by half a vector. */
		.v_stride = (((job->head_dim_v + 23) / 16) | 1) * 16,
	};
	int32_t panels = (job->rows + PANEL - 1) / PANEL, near = 0;
	int64_t begin = score_low_of(job, job->row, job->row + job->rows - 1);
	int64_t end = score_high_of(job, job->row, job->row + job->rows - 1);

	tile.q_words = tile.paired ? job->head_dim / 2 : job->head_dim;
	tile.k_stride = tile.q_words <= K_NARROW ? K_STRIDE_NARROW : K_STRIDE_WIDE;
	score_map_init(&tile.map, job);
	for (int32_t panel = 0; panel < panels; panel++)
		panel_begin(&tile, panel);

	for (tile.round = begin / SCORE_KEYS * SCORE_KEYS; tile.round < end;
	     tile.round += SCORE_KEYS) {
		int64_t first = score_clamp(begin - tile.round, 0, SCORE_KEYS);

		if (fa_cpu_job_stopped(job))
			return;
		if (near++ == SCORE_NEAR_ROUNDS) {
			for (int32_t panel = 0; panel < panels; panel++)
				panel_carry(&tile, panel);
			tile.carried = true;
			near = 1;
		}
		tile.tree = job->tree && tile.round + SCORE_KEYS > job->n_k - job->n_q;
		pack_round(&tile, (int32_t)first,
		           (int32_t)score_clamp(end - tile.round, 0, SCORE_KEYS));
		for (int32_t panel = 0; panel < panels; panel++)
			panel_round(&tile, panel);
	}

	for (int32_t panel = 0; panel < panels; panel++)
		panel_end(&tile, panel);
}

/* Data only: no code of this instruction set runs before it is chosen. */
const struct fa_cpu_isa FA_CPU_ISA = {
	.name = FA_CPU_STRING(FA_CPU_NAME),
	.panel_rows = PANEL,
	.flops = VEC_FLOPS,
	.scratch_bytes = sizeof(struct scratch),
	.many_rows = many_rows,
	.few_rows = FA_CPU_FEW_ROWS,
	.reduce = FA_CPU_REDUCE,
	.blend = FA_CPU_BLEND,
	.rotate = FA_CPU_ROTATE,
};
