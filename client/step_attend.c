/* The layers of a step. */
#include "client/cancel.h"
#include "client/gates.h"
#include "client/last_error.h"
#include "client/numbers.h"
#include "client/reconnect.h"
#include "client/request.h"
#include "client/step_state.h"
#include "client/struct_size.h"
#include "client/submit.h"

#include <errno.h>

#define FLAGS_ATTEND                                                                               \
	(FA_STEP_CAUSAL | FA_STEP_WINDOW | FA_STEP_ROTARY_INTERLEAVED | FA_STEP_DETERMINISTIC)

#define ROTARY_BASE_DEFAULT 10000.0

_Static_assert(FA_STEP_CAUSAL == FA_WIRE_STEP_CAUSAL, "flags travel as they are");

static int fill_heads(const struct fa_step_attend *attend, size_t n_items,
                      struct fa_wire_step_attend *wire)
{
	uint64_t heads = (uint64_t)wire->q.shape[1];

	if ((attend->alibi_slopes || attend->sinks) && !attend->out.buffer)
		return fa_error_set(-EINVAL,
		                    "%s is given, which has no effect as out.buffer is NULL",
		                    attend->alibi_slopes ? "alibi_slopes" : "sinks");
	if ((attend->chunk_tokens || attend->prefix_lengths) && !attend->out.buffer)
		return fa_error_set(-EINVAL,
		                    "%s is given, which has no effect as out.buffer is NULL",
		                    attend->chunk_tokens ? "chunk_tokens" : "prefix_lengths");
	if (attend->pattern.block_tokens && !attend->out.buffer)
		return fa_error_set(-EINVAL,
		                    "pattern is given, which has no effect as out.buffer is NULL");
	fa_numbers_put_pattern(wire, &attend->pattern);
	wire->chunk_tokens = attend->chunk_tokens;
	wire->prefix_lengths = attend->prefix_lengths;
	wire->n_prefix_lengths = attend->prefix_lengths ? n_items : 0;
	wire->alibi_slopes = attend->alibi_slopes;
	wire->n_alibi_slopes = attend->alibi_slopes ? heads : 0;
	wire->sinks = attend->sinks;
	wire->n_sinks = attend->sinks ? heads : 0;
	return fa_numbers_check_heads(attend->alibi_slopes, attend->sinks, heads);
}

/* Fields without effect are refused. */
static int check_rotary(const struct fa_step_attend *attend)
{
	const bool interleaved = attend->flags & FA_STEP_ROTARY_INTERLEAVED;
	const bool tables = attend->cos.buffer || attend->sin.buffer;
	const char *unused = NULL;

	if (!attend->rotary_dim)
		unused = interleaved            ? "FA_STEP_ROTARY_INTERLEAVED"
		         : tables               ? "cos or sin"
		         : attend->positions    ? "positions"
		         : attend->rotary_base  ? "rotary_base"
		         : attend->rotary_scale ? "rotary_scale"
		         : attend->rotary_first ? "rotary_first"
		                                : NULL;
	if (unused)
		return fa_error_set(-EINVAL, "%s is given, which has no effect as rotary_dim is 0",
		                    unused);
	if (tables && (attend->rotary_base || attend->rotary_scale))
		return fa_error_set(
			-EINVAL, "%s is %g, which has no effect as there are tables; expected 0",
			attend->rotary_base ? "rotary_base" : "rotary_scale",
			attend->rotary_base ? attend->rotary_base : attend->rotary_scale);
	return 0;
}

static int fill_rotary(struct fa_client_request *request, struct fa_client *client,
                       const struct fa_step_attend *attend, struct fa_wire_step_attend *wire)
{
	int64_t rows = wire->q.rank ? wire->q.shape[0] : wire->k.shape[0];
	int r;

	r = check_rotary(attend);
	if (r < 0)
		return r;

	if (attend->positions) {
		if (rows > FA_WIRE_TOKENS_MAX)
			return fa_error_set(-EINVAL,
			                    "positions are given for %lld tokens; at most %u are "
			                    "possible",
			                    (long long)rows, FA_WIRE_TOKENS_MAX);
		wire->positions = attend->positions;
		wire->n_positions = (size_t)rows;
	}
	if (!attend->rotary_dim)
		return 0;
	wire->rotary_dim = attend->rotary_dim;
	wire->rotary_first = attend->rotary_first;
	if (attend->rotary_first)
		wire->flags |= FA_WIRE_STEP_ROTARY_FIRST;
	wire->rotary_base = attend->rotary_base ? attend->rotary_base : ROTARY_BASE_DEFAULT;
	wire->rotary_scale = attend->rotary_scale ? attend->rotary_scale : 1;
	if (!attend->cos.buffer != !attend->sin.buffer)
		return fa_error_set(-EINVAL, "only one of cos and sin has a buffer");
	if (!attend->cos.buffer)
		return 0;
	r = fa_request_tensor(request, "cos", client, &attend->cos, 2, &wire->cos);
	return r < 0 ? r : fa_request_tensor(request, "sin", client, &attend->sin, 2, &wire->sin);
}

static int fill_tensors(struct fa_client_request *request, struct fa_client *client,
                        const struct fa_step_attend *attend, struct fa_wire_step_attend *wire)
{
	int r = 0;

	if (!attend->out.buffer && !attend->k_new.buffer)
		return fa_error_set(-EINVAL,
		                    "neither out nor k_new has a buffer: nothing is asked");
	if (attend->v_new.buffer && !attend->k_new.buffer)
		return fa_error_set(-EINVAL, "v_new is given, but k_new.buffer is NULL");
	if (attend->out.buffer) {
		r = fa_request_tensor(request, "q", client, &attend->q, 3, &wire->q);
		if (r >= 0)
			r = fa_request_output(request, "out", client, &attend->out, 3, &wire->out);
		if (r >= 0 && attend->lse.buffer)
			r = fa_request_output(request, "lse", client, &attend->lse, 2, &wire->lse);
	} else if (attend->q.buffer || attend->lse.buffer) {
		r = fa_error_set(-EINVAL, "%s is given, which has no effect as out.buffer is NULL",
		                 attend->lse.buffer ? "lse" : "q");
	}
	if (r >= 0 && attend->k_new.buffer)
		r = fa_request_tensor(request, "k_new", client, &attend->k_new, 3, &wire->k);
	if (r >= 0 && attend->v_new.buffer)
		r = fa_request_tensor(request, "v_new", client, &attend->v_new, 3, &wire->v);
	return r;
}

static int expect(const char *name, const struct fa_wire_view *view, unsigned int i,
                  int64_t expected, const char *meaning)
{
	if (!view->rank || view->shape[i] == expected)
		return 0;
	return fa_error_set(-EINVAL, "%s.shape[%u] is %lld; expected %lld, %s", name, i,
	                    (long long)view->shape[i], (long long)expected, meaning);
}

/* As far as the client knows which sequences are in which cache. */
static int check_tokens(const struct fa_step *step, const struct fa_step_attend *attend,
                        const struct fa_wire_step_attend *wire)
{
	const bool asks = wire->q.rank != 0;
	const char *first = asks ? "q" : "k_new", *meaning;
	const int64_t tokens = asks ? wire->q.shape[0] : wire->k.shape[0];
	uint64_t least, most;
	int r;

	fa_step_tokens(step, attend->cache, &least, &most);
	if ((uint64_t)tokens < least || (uint64_t)tokens > most)
		return fa_error_set(-EINVAL,
		                    "%s.shape[0] is %lld; expected %s%llu, the new tokens of the "
		                    "step's items%s",
		                    first, (long long)tokens, least < most ? "at most " : "",
		                    (unsigned long long)most,
		                    attend->cache ? " in that cache" : "");
	meaning = asks ? "the tokens of q" : "the tokens of k_new";
	r = expect("out", &wire->out, 0, tokens, meaning);
	if (r == 0)
		r = expect("lse", &wire->lse, 1, tokens, meaning);
	if (r == 0)
		r = expect("k_new", &wire->k, 0, tokens, meaning);
	return r == 0 ? expect("v_new", &wire->v, 0, tokens, meaning) : r;
}

/* A layer that the daemon refuses makes its step fail. */
static int check_shapes(const struct fa_step *step, const struct fa_step_attend *attend,
                        const struct fa_wire_step_attend *wire)
{
	const struct fa_wire_view *q = &wire->q, *k = &wire->k, *v = &wire->v, *out = &wire->out;
	const uint8_t dtype = q->rank ? q->dtype : k->dtype;
	int r;

	r = check_tokens(step, attend, wire);
	if (r == 0)
		r = expect("out", out, 1, q->shape[1], "the heads of q");
	if (r == 0)
		r = expect("lse", &wire->lse, 0, q->shape[1], "the heads of q");
	if (r == 0)
		r = expect("v_new", v, 1, k->shape[1], "the heads of k_new");
	if (r == 0 && q->rank)
		r = expect("k_new", k, 2, q->shape[2], "the head dim of q");
	if (r == 0 && v->rank)
		r = expect("out", out, 2, v->shape[2], "the head dim of v_new");
	if (r < 0)
		return r;
	if (q->rank && k->rank && (!k->shape[1] || q->shape[1] % k->shape[1]))
		return fa_error_set(-EINVAL,
		                    "q.shape[1], the heads, is %lld; expected a multiple of the "
		                    "heads of k_new, %lld",
		                    (long long)q->shape[1], (long long)k->shape[1]);
	if ((out->rank && out->dtype != dtype) || (k->rank && k->dtype != dtype) ||
	    (v->rank && v->dtype != dtype))
		return fa_error_set(-EINVAL, "q, k_new, v_new and out have several dtypes; "
		                             "expected one, the cache's");
	return 0;
}

/* @padded: an older caller's struct, needed as long as the request. */
static int fill_attend(struct fa_client_request *request, struct fa_step *step,
                       const struct fa_step_attend *attend, struct fa_step_attend *padded,
                       struct fa_wire_step_attend *wire)
{
	bool window;
	const void *a;
	int r;

	r = fa_struct_in("fa_step_attend", attend, padded, sizeof(*padded), &a);
	if (r < 0)
		return r;
	attend = a;
	if (attend->flags & ~FLAGS_ATTEND)
		return fa_error_set(-EINVAL, "fa_step_attend.flags has unknown bits: 0x%x",
		                    attend->flags);

	window = attend->flags & FA_STEP_WINDOW;
	wire->stream = attend->stream;
	wire->step = step->id;
	wire->cache = attend->cache;
	wire->layer = attend->layer;
	wire->flags = attend->flags & FA_STEP_CAUSAL;
	if (attend->flags & FA_STEP_ROTARY_INTERLEAVED)
		wire->flags |= FA_WIRE_STEP_ROTARY_INTERLEAVED;
	if (attend->flags & FA_STEP_DETERMINISTIC)
		wire->flags |= FA_WIRE_STEP_DETERMINISTIC;
	wire->scale = attend->scale;
	wire->softcap = attend->softcap;
	wire->window_left = window ? attend->window_left : -1;
	wire->window_right = window ? attend->window_right : -1;
	r = fa_numbers_check_window(window, "FA_STEP_WINDOW", attend->window_left,
	                            attend->window_right);
	if (r >= 0)
		r = fa_numbers_check_prefixes(attend->prefix_lengths,
		                              attend->flags & FA_STEP_CAUSAL, "FA_STEP_CAUSAL");
	if (r >= 0)
		r = fa_numbers_check_pattern(&attend->pattern);
	if (r >= 0)
		r = fill_tensors(request, step->client, attend, wire);
	if (r >= 0)
		r = fill_heads(attend, step->n_items, wire);
	if (r >= 0)
		r = fill_rotary(request, step->client, attend, wire);
	if (r >= 0)
		r = check_shapes(step, attend, wire);
	if (r >= 0)
		r = fa_request_check_overlap(request);
	if (r >= 0)
		r = fa_request_gates(request, attend->gates);
	if (r >= 0 && (attend->chunk_tokens || attend->prefix_lengths))
		r = fa_client_require_masks(step->client);
	if (r >= 0 && attend->pattern.block_tokens)
		r = fa_client_require_blocks(step->client);
	request->message.timeout_ns = attend->timeout_ns;
	return r;
}

int fa_step_attend(struct fa_step *handle, const struct fa_step_attend *attend,
                   struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_step *step = fa_step_of(handle);
	struct fa_client_request request = { .message.type = FA_WIRE_STEP_ATTEND, .step = step };
	struct fa_step_attend padded;
	int r;

	if (!step)
		return fa_error_set(-EINVAL, "the step is NULL, or was freed");
	r = fill_attend(&request, step, attend, &padded, &request.message.step_attend);
	return r < 0 ? r : fa_request_submit(step->client, &request, ret_ticket);
}

/* ---- all layers by one request */

static int fill_layer_gate(const char *what, const struct fa_gate *gate, bool may_be_out,
                           bool *ret_has, struct fa_wire_gate *ret_gate)
{
	if (!gate)
		return 0;
	*ret_has = true;
	*ret_gate = (struct fa_wire_gate){ .slot = gate->slot,
		                           .reserved = gate->reserved,
		                           .value = gate->value };
	return fa_gate_check(what, gate, may_be_out);
}

/* A slot's value only grows, by less than 2^63 over the layers; that of signals grows with each
 * layer. */
static int check_increment(const char *name, const struct fa_gate *gate, uint64_t increment,
                           uint64_t least, uint32_t n_layers)
{
	uint64_t most = n_layers > 1 ? INT64_MAX / (n_layers - 1) : UINT64_MAX;

	if (!gate && increment)
		return fa_error_set(-EINVAL,
		                    "%s_increment is %llu, which has no effect as %s is "
		                    "NULL; expected 0",
		                    name, (unsigned long long)increment, name);
	if (!gate || n_layers < 2 || (increment >= least && increment <= most))
		return 0;
	return fa_error_set(-EINVAL, "%s_increment is %llu; expected %llu to %llu with %u layers",
	                    name, (unsigned long long)increment, (unsigned long long)least,
	                    (unsigned long long)most, n_layers);
}

/* Checks the layers after the first. The message stays as it was. */
static int check_overlaps(struct fa_client_request *request,
                          const struct fa_step_attend_layers *layers)
{
	struct fa_wire_step_attend *attend = &request->message.step_attend_layers.attend;
	const uint64_t offsets[] = { attend->q.offset, attend->k.offset, attend->v.offset,
		                     attend->out.offset, attend->lse.offset };
	int r = 0;

	for (uint64_t i = 1; i < layers->n_layers && r == 0; ++i) {
		attend->q.offset = offsets[0] + i * layers->q_bytes;
		attend->k.offset = offsets[1] + i * layers->k_bytes;
		attend->v.offset = offsets[2] + i * layers->v_bytes;
		attend->out.offset = offsets[3] + i * layers->out_bytes;
		attend->lse.offset = offsets[4] + i * layers->lse_bytes;
		r = fa_request_check_overlap(request);
	}
	attend->q.offset = offsets[0];
	attend->k.offset = offsets[1];
	attend->v.offset = offsets[2];
	attend->out.offset = offsets[3];
	attend->lse.offset = offsets[4];
	return r;
}

int fa_step_attend_layers(struct fa_step *handle, const struct fa_step_attend_layers *layers,
                          struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_step *step = fa_step_of(handle);
	struct fa_client_request request = { .message.type = FA_WIRE_STEP_ATTEND_LAYERS,
		                             .step = step };
	struct fa_wire_step_attend_layers *wire = &request.message.step_attend_layers;
	struct fa_step_attend_layers padded;
	struct fa_step_attend attend;
	const void *l;
	int r;

	if (!step)
		return fa_error_set(-EINVAL, "the step is NULL, or was freed");
	r = fa_struct_in("fa_step_attend_layers", layers, &padded, sizeof(padded), &l);
	if (r < 0)
		return r;
	layers = l;
	if (!layers->attend)
		return fa_error_set(-EINVAL, "fa_step_attend_layers.attend is NULL");
	if (!layers->n_layers || layers->n_layers > FA_WIRE_LAYERS_MAX)
		return fa_error_set(-EINVAL, "n_layers is %u; expected 1 to %d", layers->n_layers,
		                    FA_WIRE_LAYERS_MAX);
	r = fill_attend(&request, step, layers->attend, &attend, &wire->attend);
	if (r >= 0)
		r = fill_layer_gate("wait", layers->wait, true, &wire->has_wait, &wire->wait);
	if (r >= 0)
		r = fill_layer_gate("signal", layers->signal, false, &wire->has_signal,
		                    &wire->signal);
	if (r >= 0)
		r = check_increment("wait", layers->wait, layers->wait_increment, 0,
		                    layers->n_layers);
	if (r >= 0)
		r = check_increment("signal", layers->signal, layers->signal_increment, 1,
		                    layers->n_layers);
	if (r >= 0)
		r = check_overlaps(&request, layers);
	if (r < 0)
		return r;
	wire->n_layers = layers->n_layers;
	wire->q_bytes = layers->q_bytes;
	wire->k_bytes = layers->k_bytes;
	wire->v_bytes = layers->v_bytes;
	wire->out_bytes = layers->out_bytes;
	wire->lse_bytes = layers->lse_bytes;
	wire->wait_increment = layers->wait_increment;
	wire->signal_increment = layers->signal_increment;
	return fa_request_submit(step->client, &request, ret_ticket);
}
