#include "kernels/cpu/tiling.h"
#include "kernels/cpu/integer.h"

#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

#define TILE_SECONDS 0.03
#define FEW_ROWS_BYTES_PER_SECOND 5e9 /* a thread's, of K and V: a low estimate */
#define TILES_WANTED 32               /* enough for threads to share */
/* Tiles of few rows with one KV head cost less. */
#define FEW_ROWS_TILES_WANTED 64
/* The kernel for many rows computes few rows over codes, and takes as long as for a panel of rows. */
#define CODES_PER_SECOND 5e8 /* a thread's, of K and V: a low estimate */
#define CODES_TILES_MAX 512  /* what their tiles leave fits the workspace */
#define SPLIT_KEYS_MIN 1024  /* fewer take no longer than waking a thread */
#define SPLIT_KEYS_STEP 256  /* a multiple of every kernel's round */
#define ROWS_STEP 16         /* rows that vectors of every instruction set divide */

bool fa_cpu_tiling_masks_of_heads(const struct fa_attention_params *params)
{
	const struct fa_attention_blocks *blocks = &params->blocks;

	return (blocks->rows && (blocks->offsets_stride_head || blocks->columns_stride_head)) ||
	       (params->bits.words && params->bits.stride_head) ||
	       fa_cpu_pattern_per_head(&params->pattern, params->heads / params->kv_heads);
}

/* Rows of two row blocks in one panel see the keys of both, and panels of one vector are slow. Returns
 * the largest number up to a third above @rows that divides a row block, or, if that is far below,
 * @rows. */
static int32_t align_to_blocks(const struct fa_attention_params *params, int32_t rows)
{
	int64_t of_block = params->blocks.rows * (int64_t)(params->heads / params->kv_heads);
	int32_t most = (int32_t)min64(rows * 4 / 3, FA_CPU_TILE_ROWS_MAX) / ROWS_STEP * ROWS_STEP;

	for (int32_t n = most; of_block && n >= rows / 2; n -= ROWS_STEP) {
		if (of_block % n == 0)
			return n;
	}
	return rows;
}

static int32_t tile_rows(const struct fa_cpu_isa *isa, const struct fa_attention_params *params)
{
	int64_t group = params->heads / params->kv_heads;
	int64_t total, keys = params->seqlen_k;
	double row_flop, rows;

	if (params->window_left >= 0 && (params->causal || params->window_right >= 0))
		keys = min64(keys,
		             min64(params->window_left, keys) + 1 +
		                     (params->causal ? 0 : min64(params->window_right, keys)));
	if (params->chunk_tokens)
		keys = min64(keys, params->chunk_tokens);
	row_flop = 2.0 * (double)max64(keys, 1) * (params->head_dim + params->head_dim_v);
	rows = TILE_SECONDS * isa->flops / row_flop;
	if (rows > FA_CPU_TILE_ROWS_MAX)
		rows = FA_CPU_TILE_ROWS_MAX;

	if (params->cu_seqlens_q)
		total = params->cu_seqlens_q[params->batch] * group * params->kv_heads;
	else
		total = params->seqlen_q * params->batch * params->heads;
	if (rows > (double)total / TILES_WANTED) {
		/* Half the size costs a few per cent; below that, more than it gains. */
		double least = rows < FA_CPU_TILE_ROWS_MAX / 2 ? rows : FA_CPU_TILE_ROWS_MAX / 2;

		rows = (double)total / TILES_WANTED;
		if (rows < least)
			rows = least;
	}

	return align_to_blocks(params, (int32_t)max64((int64_t)rows / isa->panel_rows, 1) *
	                                       isa->panel_rows);
}

int64_t fa_cpu_tiling_head_tiles(const struct fa_attention_params *params,
                                 const struct fa_cpu_tiling *tiling)
{
	int64_t group = params->heads / params->kv_heads;

	if (params->cu_seqlens_q)
		return params->cu_seqlens_q[params->batch] * group / tiling->block + params->batch;
	return ceil_div(params->seqlen_q * group, tiling->block) * params->batch;
}

/* The number is read once, as a request's tiling must not change. */
static int64_t processors(void)
{
	static atomic_int_fast64_t known;
	int64_t n = atomic_load_explicit(&known, memory_order_relaxed), nothing = 0;

	if (n == 0) {
		n = max64(sysconf(_SC_NPROCESSORS_ONLN), 1);
		if (!atomic_compare_exchange_strong(&known, &nothing, n))
			n = nothing;
	}
	return n;
}

/* Returns the KV heads per tile such that every processor has work, for @lists of @keys keys
 * each. One if heads have masks of their own, or with codes. */
static int32_t few_rows_heads(const struct fa_attention_params *params, int64_t lists, int64_t keys)
{
	bool one = params->e4m3 || fa_cpu_tiling_masks_of_heads(params) ||
	           (params->pattern.block_tokens && params->pattern.head_step);
	int64_t heads = one ? 1 : lists / processors();
	double head_bytes = (double)keys * (params->head_dim + params->head_dim_v) * 4;

	if ((double)heads * head_bytes > TILE_SECONDS * FEW_ROWS_BYTES_PER_SECOND)
		heads = (int64_t)(TILE_SECONDS * FEW_ROWS_BYTES_PER_SECOND / head_bytes);
	heads = min64(heads, min64(params->kv_heads, FA_CPU_TILE_HEADS_MAX));
	return (int32_t)max64(heads, 1);
}

/* ---- along the keys */

static int64_t sequence_span(const struct fa_attention_params *params,
                             const struct fa_cpu_tiling *tiling, int32_t b,
                             struct fa_cpu_tiling_sequence *sequence)
{
	int64_t group = params->heads / params->kv_heads, n_q, n_k, far, left, right, tokens;
	int64_t chunk = params->chunk_tokens, span;

	if (params->cu_seqlens_q) {
		n_q = params->cu_seqlens_q[b + 1] - params->cu_seqlens_q[b];
		n_k = params->cu_seqlens_k[b + 1] - params->cu_seqlens_k[b];
	} else {
		n_q = params->seqlen_q;
		n_k = params->seqlen_k;
	}
	far = n_q + n_k;
	left = window(params->window_left, far);
	right = params->causal && !(params->prefix_lengths && params->prefix_lengths[b])
	                ? 0
	                : window(params->window_right, far);
	tokens = min64((tiling->block - 1) / group + 2, n_q); /* of the block's rows */
	*sequence = (struct fa_cpu_tiling_sequence){
		.n_q = n_q,
		.n_k = n_k,
		.n_blocks = ceil_div(n_q * group, tiling->block),
	};
	span = min64(n_k, left + right + tokens);
	/* The rows' positions are in so many chunks at most. */
	if (chunk > 0 && chunk < n_k)
		span = min64(span, (ceil_div(max64(tokens - 1, 0), chunk) + 1) * chunk);
	return span;
}

/* With less than half of @wanted tiles, keys are split into about as many, of one length, unless
 * sequences are short. @tiles: with one KV head each. */
static int64_t choose_split_keys(const struct fa_attention_params *params,
                                 const struct fa_cpu_tiling *tiling, int64_t tiles, int64_t wanted)
{
	struct fa_cpu_tiling_sequence sequence;
	int64_t total = 0, longest = 0, least;

	if (2 * tiles >= wanted)
		return 0;
	for (int32_t b = 0; b < params->batch; b++) {
		int64_t span = sequence_span(params, tiling, b, &sequence);

		total += sequence.n_blocks * params->kv_heads * span;
		if (sequence.n_blocks > 0)
			longest = max64(longest, span);
	}
	least = max64(SPLIT_KEYS_MIN, ceil_div(total, wanted));
	if (longest < 2 * least)
		return 0;
	return ceil_div(ceil_div(longest, longest / least), SPLIT_KEYS_STEP) * SPLIT_KEYS_STEP;
}

/* Returns how many tiles of few rows there had best be, with one of @lists KV heads each. */
static int64_t few_rows_wanted(const struct fa_attention_params *params, int64_t lists)
{
	double codes = (double)params->seqlen_k * (params->head_dim + params->head_dim_v), wanted;

	if (!params->e4m3)
		return FEW_ROWS_TILES_WANTED;
	wanted = (double)lists * codes / (CODES_PER_SECOND * TILE_SECONDS);
	return max64((int64_t)fmin(wanted, CODES_TILES_MAX), FEW_ROWS_TILES_WANTED);
}

void fa_cpu_tiling_sequence(const struct fa_attention_params *params,
                            const struct fa_cpu_tiling *tiling, int32_t sequence,
                            struct fa_cpu_tiling_sequence *ret_sequence)
{
	int64_t span = sequence_span(params, tiling, sequence, ret_sequence);

	ret_sequence->n_splits = max64(ceil_div(span, tiling->split_keys), 1);
}

void fa_cpu_tiling_choose(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                          struct fa_cpu_tiling *ret_cut)
{
	int64_t lists = (int64_t)params->batch * params->kv_heads, splits = 0;
	struct fa_cpu_tiling tiling = { .block = FA_CPU_FEW_ROWS_MAX };
	struct fa_cpu_tiling_sequence sequence;

	if (params->seqlen_q * (params->heads / params->kv_heads) > FA_CPU_FEW_ROWS_MAX) {
		tiling.block = tile_rows(isa, params);
		tiling.split_keys = choose_split_keys(
			params, &tiling,
			fa_cpu_tiling_head_tiles(params, &tiling) * params->kv_heads, TILES_WANTED);
		*ret_cut = tiling;
		return;
	}
	tiling.split_keys = choose_split_keys(params, &tiling, lists,
	                                      few_rows_wanted(params, lists));
	if (!tiling.split_keys) {
		tiling.heads = few_rows_heads(params, lists, params->seqlen_k);
		*ret_cut = tiling;
		return;
	}
	for (int32_t b = 0; b < params->batch; b++) {
		fa_cpu_tiling_sequence(params, &tiling, b, &sequence);
		splits += sequence.n_blocks * sequence.n_splits;
	}
	tiling.heads = few_rows_heads(params, splits * params->kv_heads, tiling.split_keys);
	*ret_cut = tiling;
}
