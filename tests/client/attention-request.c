#include "tests/client/attention-request.h"

#include <string.h>

static struct fa_tensor tensor(const struct fa_wire_view *view, struct fa_buffer *buffer)
{
	struct fa_tensor tensor = {
		.buffer = buffer, .offset = view->offset, .dtype = view->dtype, .rank = view->rank
	};

	memcpy(tensor.shape, view->shape, sizeof(tensor.shape));
	memcpy(tensor.strides, view->strides, sizeof(tensor.strides));
	return tensor;
}

struct fa_attention fa_case_attention(const struct fa_case *attention, struct fa_buffer *buffer)
{
	struct fa_wire_message message = fa_case_message(attention, 1, 0, 0, 0);
	const struct fa_wire_attention *wire = &message.attention;
	struct fa_attention request = {
		.size = sizeof(request),
		.flags = (wire->flags & FA_WIRE_ATTENTION_CAUSAL ? FA_ATTENTION_CAUSAL : 0) |
		         (attention->windowed ? FA_ATTENTION_WINDOW : 0),
		.batch = wire->n_cu_seqlens_q ? (uint32_t)wire->n_cu_seqlens_q - 1 : 0,
		.q = tensor(&wire->q, buffer),
		.k = tensor(&wire->k, buffer),
		.v = tensor(&wire->v, buffer),
		.out = tensor(&wire->out, buffer),
		.scale = wire->scale,
		.softcap = wire->softcap,
		.window_left = wire->window_left,
		.window_right = wire->window_right,
		.cu_seqlens_q = wire->cu_seqlens_q,
		.cu_seqlens_k = wire->cu_seqlens_k,
		.alibi_slopes = wire->alibi_slopes,
		.sinks = wire->sinks,
		.chunk_tokens = wire->chunk_tokens,
		.prefix_lengths = wire->prefix_lengths,
		.block_rows = wire->block_rows,
		.block_keys = wire->block_keys,
		.pattern = { .block_tokens = wire->pattern_block_tokens,
		             .local_blocks = wire->pattern_local_blocks,
		             .vert_stride = wire->pattern_vert_stride,
		             .head_step = wire->pattern_head_step,
		             .first_head = wire->pattern_first_head },
	};

	if (wire->block_rows) {
		request.block_offsets = tensor(&wire->block_offsets, buffer);
		request.block_columns = tensor(&wire->block_columns, buffer);
	}
	if (wire->mask.rank)
		request.mask = tensor(&wire->mask, buffer);
	if (wire->lse.rank)
		request.lse = tensor(&wire->lse, buffer);
	return request;
}
