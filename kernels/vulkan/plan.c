#include "kernels/vulkan/plan.h"

#include "kernels/vulkan/scores.h"
#include "kernels/vulkan/tile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

_Static_assert(sizeof(struct fa_vulkan_sequence) == 40, "GLSL has the same size");

int64_t fa_vulkan_keys_of(int64_t rounds, int32_t head_dim, int32_t head_dim_v)
{
	/* Of a block of keys: its products with Q, the block's keys twice, and sums, with room to spare.
	 * Loops over few columns are unrolled. */
	const int64_t each = head_dim / 4 + 100 + (head_dim_v > 8 * FA_VULKAN_LANES ? 70 : 0);

	/* The first block may have just one key. */
	return (rounds / each - 1) * FA_VULKAN_LANES;
}

int fa_vulkan_check_attention(const struct fa_attention_params *params, char *text,
                              size_t text_bytes)
{
	if (params->e4m3) {
		if (text && text_bytes)
			snprintf(text, text_bytes,
			         "q, k and v of e4m3 are not supported by Vulkan kernels: fp32, "
			         "fp16 or bf16");
		return -ENOTSUP;
	}
	if (params->head_dim <= FA_VULKAN_HEAD_DIM_MAX &&
	    params->head_dim_v <= FA_VULKAN_HEAD_DIM_V_MAX)
		return 0;
	if (text && text_bytes)
		snprintf(text, text_bytes,
		         "head_dim %" PRId32 " and head_dim_v %" PRId32
		         " are not supported by Vulkan kernels: at most %d and %d",
		         params->head_dim, params->head_dim_v, FA_VULKAN_HEAD_DIM_MAX,
		         FA_VULKAN_HEAD_DIM_V_MAX);
	return -ENOTSUP;
}

static uint64_t blocks_of(uint64_t n_q, uint64_t group, uint32_t rows)
{
	return (n_q * group + rows - 1) / rows;
}

/* Stores a ragged batch's sequences. Returns their number of tiles. */
static uint64_t put_sequences(const struct fa_attention_params *p, uint32_t rows,
                              struct fa_vulkan_writer *writer, uint64_t *ret_at)
{
	const uint32_t *q = p->cu_seqlens_q, *k = p->cu_seqlens_k;
	const uint64_t group = (uint64_t)(p->heads / p->kv_heads);
	struct fa_vulkan_sequence *to;
	uint64_t tiles = 0;
	void *host;

	*ret_at = fa_vulkan_reserve(writer, (size_t)p->batch * sizeof(*to), &host);
	to = host;
	for (int32_t b = 0; b < p->batch; b++) {
		if (to)
			to[b] = (struct fa_vulkan_sequence){
				.tile_begin = tiles,
				.q_begin = q[b],
				.k_begin = k[b],
				.n_q = q[b + 1] - q[b],
				.n_k = k[b + 1] - k[b],
				.tree_start = FA_VULKAN_NO_TREE,
				.prefix = p->prefix_lengths ? p->prefix_lengths[b] : 0,
			};
		tiles += blocks_of(q[b + 1] - q[b], group, rows) * (uint64_t)p->kv_heads;
	}
	return tiles;
}

void fa_vulkan_plan_attention(const struct fa_attention_params *params,
                              struct fa_vulkan_writer *writer)
{
	const struct fa_attention_params *p = params;
	const bool ragged = p->cu_seqlens_q;
	const uint64_t group = (uint64_t)(p->heads / p->kv_heads);
	const struct fa_vulkan_scores scores = {
		.scale = p->scale,
		.softcap = p->softcap,
		.causal = p->causal,
		.window_left = p->window_left,
		.window_right = p->window_right,
		.chunk_tokens = p->chunk_tokens,
		.pattern = p->pattern,
		.alibi_slopes = p->alibi_slopes,
		.sinks = p->sinks,
		.heads = p->heads,
	};
	struct fa_vulkan_attend arguments = {
		.q = fa_vulkan_address(p->q.data),
		.k = fa_vulkan_address(p->k.data),
		.v = fa_vulkan_address(p->v.data),
		.result = fa_vulkan_address(p->out.data),
		.lse = fa_vulkan_address(p->lse),
		.q_batch = ragged ? 0 : p->q.stride_batch,
		.q_token = p->q.stride_token,
		.q_head = p->q.stride_head,
		.k_batch = ragged ? 0 : p->k.stride_batch,
		.k_token = p->k.stride_token,
		.k_head = p->k.stride_head,
		.v_batch = ragged ? 0 : p->v.stride_batch,
		.v_token = p->v.stride_token,
		.v_head = p->v.stride_head,
		.result_batch = ragged ? 0 : p->out.stride_batch,
		.result_token = p->out.stride_token,
		.result_head = p->out.stride_head,
		.lse_batch = ragged ? 0 : p->lse_stride_batch,
		.lse_token = p->lse_stride_token,
		.lse_head = p->lse_stride_head,
		.batch = (uint32_t)p->batch,
		.kv_heads = (uint32_t)p->kv_heads,
		.group = (uint32_t)group,
		.head_dim = (uint32_t)p->head_dim,
		.head_dim_v = (uint32_t)p->head_dim_v,
		.n_q = (uint32_t)p->seqlen_q,
		.n_k = (uint32_t)p->seqlen_k,
		.bits = fa_vulkan_address(p->bits.words),
		.bits_batch = p->bits.stride_batch,
		.bits_head = p->bits.stride_head,
		.bits_row = p->bits.stride_row,
		.bits_words = p->bits.row_words,
		.block_rows = p->blocks.rows,
		.block_keys = p->blocks.keys,
		.n_columns = p->blocks.n_columns,
		.offsets = p->blocks.rows ? fa_vulkan_address(p->blocks.offsets) : 0,
		.columns = fa_vulkan_address(p->blocks.columns),
		.offsets_batch = p->blocks.offsets_stride_batch,
		.offsets_head = p->blocks.offsets_stride_head,
		.columns_batch = p->blocks.columns_stride_batch,
		.columns_head = p->blocks.columns_stride_head,
	};
	const int64_t bytes = fa_vulkan_element_bytes(p->dtype);
	const bool batched = p->batch > 1 && !ragged;
	const uint64_t k_begins = fa_vulkan_begins(&p->k, batched, bytes);
	const struct fa_vulkan_request request = {
		.source = FA_VULKAN_DENSE,
		.dtype = p->dtype,
		.store = FA_PAGED_PLAIN,
		.head_dim = p->head_dim,
		.head_dim_v = p->head_dim_v,
		.most_rows = (uint64_t)p->seqlen_q * group,
		.begins = k_begins | fa_vulkan_begins(&p->q, batched, bytes) |
		          fa_vulkan_begins(&p->v, batched, bytes),
		.longest = p->seqlen_k,
		.aligned_k = k_begins % (uint64_t)(4 * bytes) == 0,
		.masks = p->pattern.block_tokens || p->blocks.rows || p->bits.words,
		.adjusts_scores = p->softcap > 0 || p->alibi_slopes,
		.splits = writer->splits,
	};
	struct fa_vulkan_tile tile;
	uint32_t rows;
	uint64_t tiles;

	fa_vulkan_choose_tile(writer->matrices, &request, &tile);
	rows = tile.rows;
	if (ragged) {
		tiles = put_sequences(p, rows, writer, &arguments.sequences);
	} else {
		arguments.prefixes = fa_vulkan_put(writer, p->prefix_lengths,
		                                   (size_t)p->batch * sizeof(uint32_t));
		arguments.blocks = blocks_of((uint64_t)p->seqlen_q, group, rows);
		tiles = arguments.blocks * (uint64_t)p->kv_heads * (uint64_t)p->batch;
	}
	if (!tiles)
		return;
	fa_vulkan_put_scores(writer, &scores, &arguments);
	fa_vulkan_add_attention(writer, &tile, &arguments, tiles,
	                        fa_attention_flops(p) / (double)tiles);
}
