#include "kernels/cpu/cut.h"
#include "kernels/cpu/integer.h"

#include <stdatomic.h>
#include <unistd.h>

#define TILE_SECONDS 0.03
#define THIN_BYTES_PER_SECOND 5e9 /* a cautious guess of a thread's speed on K and V */
#define TILES_WANTED 32           /* for threads to share; what one more costs is small beside it */
#define THIN_TILES_WANTED 64      /* of one KV head: it costs less still */
#define CHUNK_MIN 1024            /* less is done sooner than another thread wakes up */
#define CHUNK_STEP 256            /* a multiple of every kernel's round */

static int32_t tile_rows(const struct fa_cpu_isa *isa, const struct fa_attention_params *params)
{
	int64_t group = params->heads / params->kv_heads;
	int64_t total, keys = params->seqlen_k;
	double row_flop, rows;

	if (params->window_left >= 0 && (params->causal || params->window_right >= 0))
		keys = min64(keys,
		             min64(params->window_left, keys) + 1 +
		                     (params->causal ? 0 : min64(params->window_right, keys)));
	row_flop = 2.0 * (double)max64(keys, 1) * (params->head_dim + params->head_dim_v);
	rows = TILE_SECONDS * isa->flops / row_flop;
	if (rows > FA_CPU_TILE_ROWS)
		rows = FA_CPU_TILE_ROWS;

	if (params->cu_seqlens_q)
		total = params->cu_seqlens_q[params->batch] * group * params->kv_heads;
	else
		total = params->seqlen_q * params->batch * params->heads;
	if (rows > (double)total / TILES_WANTED) {
		/* A tile of half the size costs a few per cent more; less does not pay. */
		double least = rows < FA_CPU_TILE_ROWS / 2 ? rows : FA_CPU_TILE_ROWS / 2;

		rows = (double)total / TILES_WANTED;
		if (rows < least)
			rows = least;
	}

	return (int32_t)max64((int64_t)rows / isa->panel_rows, 1) * isa->panel_rows;
}

int64_t fa_cpu_cut_head_tiles(const struct fa_attention_params *params,
                              const struct fa_cpu_cut *cut)
{
	int64_t group = params->heads / params->kv_heads;

	if (params->cu_seqlens_q)
		return params->cu_seqlens_q[params->batch] * group / cut->block + params->batch;
	return ceil_div(params->seqlen_q * group, cut->block) * params->batch;
}

/* Asked once, so that a request is cut in the same way from its first tile to its last. */
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

/* Of @lists that are made of @keys each, heads and parts counted: so many that there is
 * work for every processor. */
static int32_t thin_heads(const struct fa_attention_params *params, int64_t lists, int64_t keys)
{
	int64_t heads = lists / processors();
	double head_bytes = (double)keys * (params->head_dim + params->head_dim_v) * 4;

	if ((double)heads * head_bytes > TILE_SECONDS * THIN_BYTES_PER_SECOND)
		heads = (int64_t)(TILE_SECONDS * THIN_BYTES_PER_SECOND / head_bytes);
	heads = min64(heads, min64(params->kv_heads, FA_CPU_THIN_HEADS));
	return (int32_t)max64(heads, 1);
}

/* ---- along the keys */

/* A sequence's lengths and blocks; returns how many keys a block sees at most. */
static int64_t sequence_span(const struct fa_attention_params *params, const struct fa_cpu_cut *cut,
                             int32_t b, struct fa_cpu_cut_sequence *sequence)
{
	int64_t group = params->heads / params->kv_heads, n_q, n_k, far, left, right, tokens;

	if (params->cu_seqlens_q) {
		n_q = params->cu_seqlens_q[b + 1] - params->cu_seqlens_q[b];
		n_k = params->cu_seqlens_k[b + 1] - params->cu_seqlens_k[b];
	} else {
		n_q = params->seqlen_q;
		n_k = params->seqlen_k;
	}
	far = n_q + n_k;
	left = window(params->window_left, far);
	right = params->causal ? 0 : window(params->window_right, far);
	tokens = min64((cut->block - 1) / group + 2, n_q); /* that the block's rows are of */
	*sequence = (struct fa_cpu_cut_sequence){
		.n_q = n_q,
		.n_k = n_k,
		.n_blocks = ceil_div(n_q * group, cut->block),
	};
	return min64(n_k, left + right + tokens);
}

/*
 * What has less than half the tiles that are wanted is divided so that it has about as many,
 * into parts of one length, unless its sequences are short. @tiles: of one KV head each.
 */
static int64_t choose_chunk(const struct fa_attention_params *params, const struct fa_cpu_cut *cut,
                            int64_t tiles, int64_t wanted)
{
	struct fa_cpu_cut_sequence sequence;
	int64_t total = 0, longest = 0, least;

	if (2 * tiles >= wanted)
		return 0;
	/* There are few sequences, then. */
	for (int32_t b = 0; b < params->batch; b++) {
		int64_t span = sequence_span(params, cut, b, &sequence);

		total += sequence.n_blocks * params->kv_heads * span;
		if (sequence.n_blocks > 0)
			longest = max64(longest, span);
	}
	least = max64(CHUNK_MIN, ceil_div(total, wanted));
	if (longest < 2 * least)
		return 0;
	return ceil_div(ceil_div(longest, longest / least), CHUNK_STEP) * CHUNK_STEP;
}

void fa_cpu_cut_sequence(const struct fa_attention_params *params, const struct fa_cpu_cut *cut,
                         int32_t sequence, struct fa_cpu_cut_sequence *ret_sequence)
{
	int64_t span = sequence_span(params, cut, sequence, ret_sequence);

	ret_sequence->n_parts = max64(ceil_div(span, cut->chunk), 1);
}

void fa_cpu_cut(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                struct fa_cpu_cut *ret_cut)
{
	int64_t lists = (int64_t)params->batch * params->kv_heads, parts = 0;
	struct fa_cpu_cut cut = { .block = FA_CPU_THIN_ROWS };
	struct fa_cpu_cut_sequence sequence;

	if (params->seqlen_q * (params->heads / params->kv_heads) > FA_CPU_THIN_ROWS) {
		cut.block = tile_rows(isa, params);
		cut.chunk = choose_chunk(params, &cut,
		                         fa_cpu_cut_head_tiles(params, &cut) * params->kv_heads,
		                         TILES_WANTED);
		*ret_cut = cut;
		return;
	}
	cut.chunk = choose_chunk(params, &cut, lists, THIN_TILES_WANTED);
	if (!cut.chunk) {
		cut.heads = thin_heads(params, lists, params->seqlen_k);
		*ret_cut = cut;
		return;
	}
	for (int32_t b = 0; b < params->batch; b++) {
		fa_cpu_cut_sequence(params, &cut, b, &sequence);
		parts += sequence.n_blocks * sequence.n_parts;
	}
	cut.heads = thin_heads(params, parts * params->kv_heads, cut.chunk);
	*ret_cut = cut;
}
