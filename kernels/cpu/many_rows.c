/*
 * One tile of attention for many query rows: lanes are query rows. Compiled for every instruction
 * set; pure functions of a job and its scratch, any thread.
 *
 * Panels are rows of a few vectors. Q is transposed, so that S^T = K Q^T and O^T = V^T P^T are sums
 * of outer products of a vector of rows and a scalar of K or V, in a block of registers. K and V
 * come in rounds of SCORE_KEYS keys, packed once for all panels, as fp32 or, with bf16 dot
 * products, as words of two bf16: adjacent dims in K and Q, adjacent keys in V and P.
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
                               const int vectors, int32_t first, int32_t end, bool hidden,
                               bool masked)
{
	panel_scores(tile, panel, paired, vectors, first, end);
	if (hidden || tile->map.capped || tile->job->alibi_slopes)
		panel_finish_scores(tile, panel, vectors, first, end, hidden);
	if (masked)
		panel_mask(tile, panel, vectors, first, end, -INFINITY);
	panel_softmax(tile, panel, vectors, first, end);
	if ((hidden || masked) && tile->v_has_special) {
		if (masked) /* panel_values_seen() skips negative weights */
			panel_mask(tile, panel, vectors, first, end, -1);
		panel_values_seen(tile, panel, vectors, first, end, masked);
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
	                 bool hidden, bool masked)                                                 \
	{                                                                                          \
		panel_round_of(tile, panel, paired, vectors, first, end, hidden, masked);          \
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
                            bool hidden, bool masked);

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

/* The first key in @words, or SCORE_KEYS, and the end of the last, or 0. */
static int32_t first_bit(const uint32_t words[MASK_WORDS])
{
	for (int32_t w = 0; w < MASK_WORDS; w++) {
		if (words[w])
			return w * 32 + __builtin_ctz(words[w]);
	}
	return SCORE_KEYS;
}

static int32_t bits_end(const uint32_t words[MASK_WORDS])
{
	for (int32_t w = MASK_WORDS; w-- > 0;) {
		if (words[w])
			return w * 32 + 32 - __builtin_clz(words[w]);
	}
	return 0;
}

/* Narrows keys [*first, *end) of the round to those that some row may see; false: none. */
static bool tile_masks(struct tile *tile, struct mask *mask, int32_t *first, int32_t *end)
{
	const struct fa_cpu_job *job = tile->job;
	struct scratch *scratch = tile->scratch;
	int32_t padded = (job->rows + PANEL - 1) / PANEL * PANEL;
	int32_t in_group = (int32_t)(job->row % job->group);
	const uint32_t *words = scratch->token_seen;
	uint32_t any[MASK_WORDS];

	mask_round(mask, tile->round, MASK_WORDS, scratch->token_seen, any);
	*first = first_bit(any) > *first ? first_bit(any) : *first;
	*end = bits_end(any) < *end ? bits_end(any) : *end;
	if (*first >= *end)
		return false;
	for (int32_t r = 0; r < padded; r++) {
		for (int32_t w = 0; w < MASK_WORDS; w++)
			scratch->seen[w][r] = words[w];
		/* Padding rows repeat the last row. */
		if (++in_group == job->group && r + 1 < job->rows) {
			in_group = 0;
			words += MASK_WORDS;
		}
	}
	return true;
}

/* Narrows the panel's keys [*first, *end) to those that some row may see. Returns true if rows do not
 * see all that are left. */
static bool panel_narrow(const struct tile *tile, int32_t panel, int32_t *first, int32_t *end)
{
	uint32_t any[MASK_WORDS], all[MASK_WORDS];

	for (int32_t w = 0; w < MASK_WORDS; w++) {
		const uint32_t *words = tile->scratch->seen[w] + panel * PANEL;

		any[w] = 0;
		all[w] = UINT32_MAX;
		for (int32_t r = 0; r < PANEL; r++) {
			any[w] |= words[r];
			all[w] &= words[r];
		}
	}
	*first = first_bit(any) > *first ? first_bit(any) : *first;
	*end = bits_end(any) < *end ? bits_end(any) : *end;
	for (int32_t j = *first; j < *end; j = (j / 32 + 1) * 32) {
		uint32_t missing = ~all[j / 32] >> j % 32;
		int32_t keys = *end - j < 32 - j % 32 ? *end - j : 32 - j % 32;

		if (missing && __builtin_ctz(missing) < keys)
			return true;
	}
	return false;
}

static void panel_round(const struct tile *tile, int32_t panel)
{
	const struct fa_cpu_job *job = tile->job;
	struct scratch *scratch = tile->scratch;
	int64_t row = job->row + panel * PANEL;
	int32_t rows = job->rows - panel * PANEL < PANEL ? job->rows - panel * PANEL : PANEL;
	int64_t last = row + rows - 1, round = tile->round;
	int32_t low_first, low_last, high_first, high_last, first, end;
	bool hidden, masked = false;

	/* In token order both bounds only rise; a tree's rows get the widest bounds. */
	low_first = (int32_t)score_clamp(score_low_of(job, row, last) - round, 0, SCORE_KEYS);
	low_last = (int32_t)score_clamp(score_low(job, last) - round, 0, SCORE_KEYS);
	high_first = (int32_t)score_clamp(score_high(job, row) - round, 0, SCORE_KEYS);
	high_last = (int32_t)score_clamp(score_high_of(job, row, last) - round, 0, SCORE_KEYS);
	if (tile->masked)
		masked = panel_narrow(tile, panel, &low_first, &high_last);
	first = low_first / KEY_STEP * KEY_STEP;
	end = (high_last + KEY_STEP - 1) / KEY_STEP * KEY_STEP;
	if (low_first >= high_last)
		return;
	hidden = low_last > first || high_first < end || job->tree;
	/* Zeros are packed around the narrowed keys, which rows may see. */
	masked = masked || (tile->masked && (low_first > first || high_last < end));

	if (hidden || masked || job->alibi_slopes) {
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
	panel_rounds[tile->paired][(rows - 1) / VEC_LANES](tile, panel, first, end, hidden, masked);
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
	struct mask mask;
	int64_t begin = score_low_of(job, job->row, job->row + job->rows - 1);
	int64_t end = score_high_of(job, job->row, job->row + job->rows - 1);

	tile.q_words = tile.paired ? job->head_dim / 2 : job->head_dim;
	tile.k_stride = tile.q_words <= K_NARROW ? K_STRIDE_NARROW : K_STRIDE_WIDE;
	score_map_init(&tile.map, job);
	tile.masked = mask_given(job);
	if (tile.masked)
		mask_init(&mask, job);
	for (int32_t panel = 0; panel < panels; panel++)
		panel_begin(&tile, panel);

	for (tile.round = begin / SCORE_KEYS * SCORE_KEYS; tile.round < end;
	     tile.round += SCORE_KEYS) {
		int32_t first = (int32_t)score_clamp(begin - tile.round, 0, SCORE_KEYS), last;

		if (fa_cpu_job_stopped(job))
			return;
		if (tile.masked) {
			int64_t next = mask_next(&mask, tile.round);

			if (next >= end)
				break;
			tile.round = next / SCORE_KEYS * SCORE_KEYS;
			first = (int32_t)score_clamp(begin - tile.round, 0, SCORE_KEYS);
		}
		last = (int32_t)score_clamp(end - tile.round, 0, SCORE_KEYS);
		if (tile.masked && !tile_masks(&tile, &mask, &first, &last))
			continue;
		if (near++ == SCORE_NEAR_ROUNDS) {
			for (int32_t panel = 0; panel < panels; panel++)
				panel_carry(&tile, panel);
			tile.carried = true;
			near = 1;
		}
		tile.tree = job->tree && tile.round + SCORE_KEYS > job->n_k - job->n_q;
		pack_round(&tile, first, last);
		for (int32_t panel = 0; panel < panels; panel++)
			panel_round(&tile, panel);
	}

	for (int32_t panel = 0; panel < panels; panel++)
		panel_end(&tile, panel);
}

/* Data only: no code of this instruction set runs before the choice. */
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
