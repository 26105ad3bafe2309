/*
 * Attention requests. The daemon checks shapes and kernels; its error becomes the request's result.
 */
#include "client/cancel.h"
#include "client/gates.h"
#include "client/last_error.h"
#include "client/numbers.h"
#include "client/reconnect.h"
#include "client/struct_size.h"
#include "client/submit.h"

#include <errno.h>

#define FLAGS (FA_ATTENTION_CAUSAL | FA_ATTENTION_WINDOW)

_Static_assert(FA_ATTENTION_CAUSAL == FA_WIRE_ATTENTION_CAUSAL, "flags travel as they are");
_Static_assert((int)FA_F32 == (int)FA_WIRE_DTYPE_F32 && (int)FA_F16 == (int)FA_WIRE_DTYPE_F16 &&
                       (int)FA_BF16 == (int)FA_WIRE_DTYPE_BF16,
               "data types travel as they are");

static int fill_vectors(const struct fa_attention *attention, struct fa_wire_attention *wire)
{
	uint64_t heads = (uint64_t)wire->q.shape[wire->q.rank - 2];

	if (attention->batch) {
		if (!attention->cu_seqlens_q || !attention->cu_seqlens_k)
			return fa_error_set(
				-EINVAL,
				"batch is %u, which makes it ragged, but cu_seqlens_%c is "
				"NULL",
				attention->batch, attention->cu_seqlens_q ? 'k' : 'q');
		wire->cu_seqlens_q = attention->cu_seqlens_q;
		wire->cu_seqlens_k = attention->cu_seqlens_k;
		wire->n_cu_seqlens_q = wire->n_cu_seqlens_k = (size_t)attention->batch + 1;
	} else if (attention->cu_seqlens_q || attention->cu_seqlens_k) {
		return fa_error_set(-EINVAL, "cu_seqlens are given, but batch is 0; expected the "
		                             "number of sequences");
	}
	if (attention->prefix_lengths) {
		uint64_t batch = attention->batch ? attention->batch : (uint64_t)wire->q.shape[0];

		if (batch > FA_WIRE_SEQUENCES_MAX)
			return fa_error_set(-EINVAL,
			                    "q has %llu sequences; with prefix_lengths at most %u",
			                    (unsigned long long)batch, FA_WIRE_SEQUENCES_MAX);
		wire->prefix_lengths = attention->prefix_lengths;
		wire->n_prefix_lengths = (size_t)batch;
	}
	wire->alibi_slopes = attention->alibi_slopes;
	wire->n_alibi_slopes = attention->alibi_slopes ? heads : 0;
	wire->sinks = attention->sinks;
	wire->n_sinks = attention->sinks ? heads : 0;
	return fa_numbers_check_heads(attention->alibi_slopes, attention->sinks, heads);
}

static int fill_masks(struct fa_client *client, const struct fa_attention *attention,
                      struct fa_client_request *request)
{
	struct fa_wire_attention *wire = &request->message.attention;
	int r;

	r = fa_numbers_check_pattern(&attention->pattern);
	if (r < 0)
		return r;
	fa_numbers_put_pattern(wire, &attention->pattern);
	wire->block_rows = attention->block_rows;
	wire->block_keys = attention->block_keys;
	if (attention->block_rows || attention->block_keys) {
		r = fa_request_tensor_of(request, "block_offsets", client,
		                         &attention->block_offsets, FA_I32, 3,
		                         &wire->block_offsets);
		if (r >= 0)
			r = fa_request_tensor_of(request, "block_columns", client,
			                         &attention->block_columns, FA_I32, 3,
			                         &wire->block_columns);
		if (r < 0)
			return r;
	} else if (attention->block_offsets.buffer || attention->block_columns.buffer) {
		return fa_error_set(-EINVAL,
		                    "block_%s is given, which has no effect as block_rows and "
		                    "block_keys are 0",
		                    attention->block_offsets.buffer ? "offsets" : "columns");
	}
	if (attention->mask.buffer)
		return fa_request_tensor_of(request, "mask", client, &attention->mask, FA_I32, 4,
		                            &wire->mask);
	return 0;
}

/* q, k and v are all of e4m3, or none. */
static int fill_inputs(struct fa_client *client, const struct fa_attention *attention,
                       uint32_t rank, struct fa_client_request *request)
{
	struct fa_wire_attention *wire = &request->message.attention;
	const bool e4m3 = attention->q.dtype == FA_E4M3;
	const struct {
		const char *name, *scales_name;
		const struct fa_tensor *tensor, *scales;
		struct fa_wire_view *view, *scales_view;
	} inputs[] = {
		{ "q", "q_scales", &attention->q, &attention->q_scales, &wire->q, &wire->q_scales },
		{ "k", "k_scales", &attention->k, &attention->k_scales, &wire->k, &wire->k_scales },
		{ "v", "v_scales", &attention->v, &attention->v_scales, &wire->v, &wire->v_scales },
	};
	int r = 0;

	for (size_t i = 0; i < 3 && r >= 0; ++i) {
		if (e4m3)
			r = fa_request_tensor_of(request, inputs[i].name, client, inputs[i].tensor,
			                         FA_E4M3, rank, inputs[i].view);
		else
			r = fa_request_tensor(request, inputs[i].name, client, inputs[i].tensor,
			                      rank, inputs[i].view);
		if (r < 0 || !inputs[i].scales->buffer)
			continue;
		if (!e4m3)
			return fa_error_set(-EINVAL,
			                    "%s is given, which has no effect as q, k and v are "
			                    "not FA_E4M3",
			                    inputs[i].scales_name);
		r = fa_request_tensor_of(request, inputs[i].scales_name, client, inputs[i].scales,
		                         FA_F32, 3, inputs[i].scales_view);
	}
	return r;
}

/* Older daemons do not know these masks. */
static bool has_blocks(const struct fa_attention *attention)
{
	return attention->block_rows || attention->block_keys || attention->mask.buffer ||
	       attention->pattern.block_tokens;
}

static int fill_attention(struct fa_client *client, const struct fa_attention *attention,
                          struct fa_client_request *request)
{
	struct fa_wire_attention *wire = &request->message.attention;
	bool window = attention->flags & FA_ATTENTION_WINDOW;
	uint32_t rank = attention->batch ? 3 : 4;
	int r;

	if (attention->flags & ~FLAGS)
		return fa_error_set(-EINVAL, "fa_attention.flags has unknown bits: 0x%x",
		                    attention->flags);
	if (attention->batch > FA_WIRE_SEQUENCES_MAX)
		return fa_error_set(-EINVAL,
		                    "batch is %u; at most %u ragged sequences are possible",
		                    attention->batch, FA_WIRE_SEQUENCES_MAX);

	r = fa_numbers_check_window(window, "FA_ATTENTION_WINDOW", attention->window_left,
	                            attention->window_right);
	if (r >= 0)
		r = fa_numbers_check_prefixes(attention->prefix_lengths,
		                              attention->flags & FA_ATTENTION_CAUSAL,
		                              "FA_ATTENTION_CAUSAL");
	if (r < 0)
		return r;

	wire->stream = attention->stream;
	wire->chunk_tokens = attention->chunk_tokens;
	wire->flags = attention->flags & FA_ATTENTION_CAUSAL;
	wire->scale = attention->scale;
	wire->softcap = attention->softcap;
	wire->window_left = window ? attention->window_left : -1;
	wire->window_right = window ? attention->window_right : -1;
	r = fill_inputs(client, attention, rank, request);
	if (r < 0)
		return r;
	r = fa_request_output(request, "out", client, &attention->out, rank, &wire->out);
	if (r < 0)
		return r;
	if (attention->lse.buffer) {
		r = fa_request_output(request, "lse", client, &attention->lse, rank - 1,
		                      &wire->lse);
		if (r < 0)
			return r;
	}
	r = fill_masks(client, attention, request);
	if (r < 0)
		return r;
	r = fa_request_check_overlap(request);
	return r < 0 ? r : fill_vectors(attention, wire);
}

int fa_attention(struct fa_client *handle, const struct fa_attention *attention,
                 struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_client_request request = { .message.type = FA_WIRE_ATTENTION };
	struct fa_attention padded;
	const void *a;
	int r;

	r = fa_struct_in("fa_attention", attention, &padded, sizeof(padded), &a);
	if (r < 0)
		return r;
	attention = a;
	r = fill_attention(client, attention, &request);
	if (r < 0)
		return r;
	r = fa_request_gates(&request, attention->gates);
	if (r >= 0 && (attention->chunk_tokens || attention->prefix_lengths))
		r = fa_client_require_masks(client);
	if (r >= 0 && has_blocks(attention))
		r = fa_client_require_blocks(client);
	if (r >= 0 && attention->q.dtype == FA_E4M3)
		r = fa_client_require_e4m3(client);
	if (r < 0)
		return r;
	request.message.timeout_ns = attention->timeout_ns;
	return fa_request_submit(client, &request, ret_ticket);
}
