/* Attention over the caller's own pages. */
#include "client/cancel.h"
#include "client/client.h"
#include "client/gates.h"
#include "client/last_error.h"
#include "client/numbers.h"
#include "client/reconnect.h"
#include "client/struct_size.h"
#include "client/submit.h"

#include <errno.h>

#define FLAGS (FA_PAGES_CAUSAL | FA_PAGES_WINDOW | FA_PAGES_DETERMINISTIC)

_Static_assert((int)FA_E4M3 == (int)FA_WIRE_DTYPE_E4M3 && (int)FA_I32 == (int)FA_WIRE_DTYPE_I32 &&
                       (int)FA_I64 == (int)FA_WIRE_DTYPE_I64,
               "data types travel as they are");

static int fill_rows(struct fa_client_request *request, struct fa_client *client,
                     const struct fa_pages_attend *attend, struct fa_wire_pages_attend *wire)
{
	int r;

	r = fa_request_tensor(request, "q", client, &attend->q, 3, &wire->q);
	if (r >= 0)
		r = fa_request_output(request, "out", client, &attend->out, 3, &wire->out);
	if (r >= 0 && attend->lse.buffer)
		r = fa_request_output(request, "lse", client, &attend->lse, 2, &wire->lse);
	return r;
}

/* @written: the request appends to it. */
static int fill_pages(struct fa_client_request *request, struct fa_client *client, const char *name,
                      const struct fa_tensor *tensor, uint32_t dtype, bool written,
                      struct fa_wire_view *ret_view)
{
	int r;

	r = fa_request_tensor_of(request, name, client, tensor, dtype, 4, ret_view);
	if (r >= 0)
		request->tensors[request->n_tensors - 1].written = written;
	return r;
}

static int fill_kv(struct fa_client_request *request, struct fa_client *client,
                   const struct fa_pages_attend *attend, struct fa_wire_pages_attend *wire)
{
	const uint32_t dtype = attend->k.dtype == FA_E4M3 ? FA_E4M3 : attend->q.dtype;
	const bool appends = attend->k_new.buffer || attend->v_new.buffer;
	int r;

	if (dtype != FA_E4M3 && (attend->k_scales.buffer || attend->v_scales.buffer))
		return fa_error_set(-EINVAL,
		                    "%s is given, which has no effect as k and v are not FA_E4M3",
		                    attend->k_scales.buffer ? "k_scales" : "v_scales");
	if (appends != !!attend->slots.buffer)
		return fa_error_set(-EINVAL,
		                    appends ? "slots.buffer is NULL; expected a slot for each row "
		                              "of k_new and v_new"
		                            : "slots is given, which has no effect without k_new "
		                              "and v_new");
	r = fill_pages(request, client, "k", &attend->k, dtype, attend->k_new.buffer, &wire->k);
	if (r >= 0)
		r = fill_pages(request, client, "v", &attend->v, dtype, attend->v_new.buffer,
		               &wire->v);
	if (r >= 0 && attend->k_new.buffer)
		r = fa_request_tensor_of(request, "k_new", client, &attend->k_new, attend->q.dtype,
		                         3, &wire->k_new);
	if (r >= 0 && attend->v_new.buffer)
		r = fa_request_tensor_of(request, "v_new", client, &attend->v_new, attend->q.dtype,
		                         3, &wire->v_new);
	if (r >= 0 && appends)
		r = fa_request_tensor_of(request, "slots", client, &attend->slots, FA_I64, 1,
		                         &wire->slots);
	if (r >= 0 && attend->k_scales.buffer)
		r = fa_request_tensor_of(request, "k_scales", client, &attend->k_scales, FA_F32, 1,
		                         &wire->k_scales);
	if (r >= 0 && attend->v_scales.buffer)
		r = fa_request_tensor_of(request, "v_scales", client, &attend->v_scales, FA_F32, 1,
		                         &wire->v_scales);
	return r;
}

static int fill_tables(struct fa_client_request *request, struct fa_client *client,
                       const struct fa_pages_attend *attend, struct fa_wire_pages_attend *wire)
{
	int64_t batch, rows = wire->q.shape[0];
	int r;

	r = fa_request_tensor_of(request, "table", client, &attend->table, FA_I32, 2, &wire->table);
	if (r >= 0)
		r = fa_request_tensor_of(request, "lengths", client, &attend->lengths, FA_I32, 1,
		                         &wire->lengths);
	if (r >= 0 && attend->cu_q.buffer)
		r = fa_request_tensor_of(request, "cu_q", client, &attend->cu_q, FA_I32, 1,
		                         &wire->cu_q);
	if (r >= 0 && attend->prefix_lengths.buffer)
		r = fa_request_tensor_of(request, "prefix_lengths", client, &attend->prefix_lengths,
		                         FA_I32, 1, &wire->prefix_lengths);
	if (r < 0)
		return r;
	wire->max_q = attend->max_q;
	wire->max_k = attend->max_k;
	batch = wire->table.shape[0];
	if (!attend->cu_q.buffer && !attend->max_q && batch)
		wire->max_q = (uint32_t)(rows / batch);
	return 0;
}

static int fill_heads(const struct fa_pages_attend *attend, struct fa_wire_pages_attend *wire)
{
	uint64_t heads = (uint64_t)wire->q.shape[1];

	wire->alibi_slopes = attend->alibi_slopes;
	wire->n_alibi_slopes = attend->alibi_slopes ? heads : 0;
	wire->sinks = attend->sinks;
	wire->n_sinks = attend->sinks ? heads : 0;
	return fa_numbers_check_heads(attend->alibi_slopes, attend->sinks, heads);
}

/* V may be the front of K even though K is written. */
static int check_overlap(struct fa_client_request *request, const struct fa_pages_attend *attend)
{
	struct fa_client_request_tensor *k = NULL, *v = NULL;
	struct fa_client_request others;
	int r;

	for (size_t i = 0; i < request->n_tensors; ++i) {
		const struct fa_wire_view *view = request->tensors[i].view;

		if (view == &request->message.pages_attend.k)
			k = &request->tensors[i];
		else if (view == &request->message.pages_attend.v)
			v = &request->tensors[i];
	}
	if (!k->written || v->written)
		return fa_request_check_overlap(request);
	k->written = false;
	r = fa_request_check_overlap(request);
	k->written = true;
	if (r < 0)
		return r;
	others.n_tensors = 0;
	for (size_t i = 0; i < request->n_tensors; ++i)
		if (&request->tensors[i] != v)
			others.tensors[others.n_tensors++] = request->tensors[i];
	return fa_request_check_overlap(&others);
}

static int fill(struct fa_client *client, const struct fa_pages_attend *attend,
                struct fa_client_request *request)
{
	struct fa_wire_pages_attend *wire = &request->message.pages_attend;
	bool window = attend->flags & FA_PAGES_WINDOW;
	int r;

	if (attend->flags & ~FLAGS)
		return fa_error_set(-EINVAL, "fa_pages_attend.flags has unknown bits: 0x%x",
		                    attend->flags);
	if (attend->reserved)
		return fa_error_set(-EINVAL, "fa_pages_attend.reserved is not 0");
	r = fa_numbers_check_window(window, "FA_PAGES_WINDOW", attend->window_left,
	                            attend->window_right);
	if (r >= 0)
		r = fa_numbers_check_prefixes(attend->prefix_lengths.buffer,
		                              attend->flags & FA_PAGES_CAUSAL, "FA_PAGES_CAUSAL");
	if (r >= 0)
		r = fa_numbers_check_pattern(&attend->pattern);
	if (r < 0)
		return r;
	fa_numbers_put_pattern(wire, &attend->pattern);
	wire->stream = attend->stream;
	if (attend->flags & FA_PAGES_CAUSAL)
		wire->flags |= FA_WIRE_PAGES_CAUSAL;
	if (attend->flags & FA_PAGES_DETERMINISTIC)
		wire->flags |= FA_WIRE_PAGES_DETERMINISTIC;
	wire->scale = attend->scale;
	wire->softcap = attend->softcap;
	wire->chunk_tokens = attend->chunk_tokens;
	wire->window_left = window ? attend->window_left : -1;
	wire->window_right = window ? attend->window_right : -1;
	r = fill_rows(request, client, attend, wire);
	if (r >= 0)
		r = fill_kv(request, client, attend, wire);
	if (r >= 0)
		r = fill_tables(request, client, attend, wire);
	if (r >= 0)
		r = check_overlap(request, attend);
	return r < 0 ? r : fill_heads(attend, wire);
}

int fa_pages_attend(struct fa_client *handle, const struct fa_pages_attend *attend,
                    struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_client_request request = { .message.type = FA_WIRE_PAGES_ATTEND };
	struct fa_pages_attend padded;
	const void *a;
	int r;

	r = fa_struct_in("fa_pages_attend", attend, &padded, sizeof(padded), &a);
	if (r < 0)
		return r;
	attend = a;
	r = fill(client, attend, &request);
	if (r >= 0)
		r = fa_request_gates(&request, attend->gates);
	if (r >= 0)
		r = fa_client_require(client, FA_WIRE_FEATURE_PAGES_ATTEND,
		                      "attention over own pages");
	if (r >= 0 && (attend->chunk_tokens || attend->prefix_lengths.buffer))
		r = fa_client_require_masks(client);
	if (r >= 0 && attend->pattern.block_tokens)
		r = fa_client_require_blocks(client);
	if (r < 0)
		return r;
	request.message.timeout_ns = attend->timeout_ns;
	return fa_request_submit(client, &request, ret_ticket);
}
