/*
 * Attention requests: from the caller's struct to a message without a copy in
 * between. What needs the daemon's knowledge (which kernels there are, whether
 * shapes agree) it judges itself, and its answer comes as the request's result.
 */
#include "client/tensor.h"

#include <errno.h>

/* A caller that spins on the completion page leaves its Completions in the socket;
 * now and then they are read, many in one go. */
#define READ_BEHIND 32

#define FLAGS (FA_ATTENTION_CAUSAL | FA_ATTENTION_WINDOW)

_Static_assert(FA_ATTENTION_CAUSAL == FA_WIRE_ATTENTION_CAUSAL, "flags travel as they are");
_Static_assert((int)FA_F32 == (int)FA_WIRE_DTYPE_F32 && (int)FA_F16 == (int)FA_WIRE_DTYPE_F16 &&
                       (int)FA_BF16 == (int)FA_WIRE_DTYPE_BF16,
               "data types travel as they are");

/* Per-head vectors and lengths are as long as the shapes and the batch say. */
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
	if ((attention->alibi_slopes || attention->sinks) && heads > FA_WIRE_HEADS_MAX)
		return fa_error_set(-EINVAL,
		                    "q has %llu heads; with alibi_slopes or sinks at most %u",
		                    (unsigned long long)heads, FA_WIRE_HEADS_MAX);
	if (attention->alibi_slopes) {
		wire->alibi_slopes = attention->alibi_slopes;
		wire->n_alibi_slopes = heads;
	}
	if (attention->sinks) {
		wire->sinks = attention->sinks;
		wire->n_sinks = heads;
	}
	return 0;
}

static int fill_attention(struct fa_client *client, const struct fa_attention *attention,
                          struct fa_wire_attention *wire)
{
	bool window = attention->flags & FA_ATTENTION_WINDOW;
	uint32_t rank = attention->batch ? 3 : 4;
	int r;

	if (attention->flags & ~FLAGS)
		return fa_error_set(-EINVAL, "fa_attention.flags has unknown bits: 0x%x",
		                    attention->flags);
	if (attention->stream >= FA_COMPLETION_SLOTS)
		return fa_error_set(-EINVAL, "stream is %u; expected less than %u",
		                    attention->stream, FA_COMPLETION_SLOTS);
	if (attention->batch > FA_WIRE_SEQUENCES_MAX)
		return fa_error_set(-EINVAL,
		                    "batch is %u; at most %u ragged sequences are possible",
		                    attention->batch, FA_WIRE_SEQUENCES_MAX);

	wire->stream = attention->stream;
	wire->flags = attention->flags & FA_ATTENTION_CAUSAL;
	wire->scale = attention->scale;
	wire->softcap = attention->softcap;
	wire->window_left = window ? attention->window_left : -1;
	wire->window_right = window ? attention->window_right : -1;
	r = fa_tensor_view("q", client, &attention->q, rank, &wire->q);
	if (r < 0)
		return r;
	r = fa_tensor_view("k", client, &attention->k, rank, &wire->k);
	if (r < 0)
		return r;
	r = fa_tensor_view("v", client, &attention->v, rank, &wire->v);
	if (r < 0)
		return r;
	r = fa_tensor_view("out", client, &attention->out, rank, &wire->out);
	if (r < 0)
		return r;
	if (attention->lse.buffer) {
		r = fa_tensor_view("lse", client, &attention->lse, rank - 1, &wire->lse);
		if (r < 0)
			return r;
	}
	return fill_vectors(attention, wire);
}

/* With the mutex. */
static int check_buffers(const struct fa_attention *attention)
{
	int r;

	r = fa_tensor_check("q", &attention->q);
	if (r >= 0)
		r = fa_tensor_check("k", &attention->k);
	if (r >= 0)
		r = fa_tensor_check("v", &attention->v);
	if (r >= 0)
		r = fa_tensor_check("out", &attention->out);
	if (r >= 0 && attention->lse.buffer)
		r = fa_tensor_check("lse", &attention->lse);
	return r;
}

static bool room_ready(const struct fa_client *client, const struct fa_waiter *waiter)
{
	return client->state == FA_CLIENT_LOST || client->in_flight < client->max_requests;
}

/* With the mutex: waits, if @wait, until another request may be sent. */
static int wait_in_flight(struct fa_client *client, bool wait)
{
	struct fa_waiter waiter = { .ready = room_ready };
	int r;

	if (client->in_flight < client->max_requests)
		return 0;
	fa_io_receive(client, true);
	while (client->state == FA_CLIENT_LOST || client->in_flight >= client->max_requests) {
		if (client->state == FA_CLIENT_LOST)
			r = fa_client_restore(client, client->reconnect_ns);
		else if (wait)
			r = fa_io_await(client, &waiter, FA_NS_NEVER);
		else
			r = fa_error_set(-EAGAIN,
			                 "%llu requests are in flight, and no more are "
			                 "possible; wait for one",
			                 (unsigned long long)client->in_flight);
		if (r < 0)
			return r;
	}
	return 0;
}

/* With the mutex: sends it as the next request of its stream. */
static int submit(struct fa_client *client, struct fa_wire_message *message, bool wait,
                  uint64_t *ret_value)
{
	struct fa_client_stream *stream = &client->streams[message->attention.stream];
	int r;

	if (stream->state != FA_STREAM_OPEN)
		return fa_error_set(-EINVAL, "there is no stream %u", message->attention.stream);
	if (!stream->results) {
		stream->results = calloc(FA_RESULTS, sizeof(*stream->results));
		if (!stream->results)
			return fa_error_set(-ENOMEM, "no memory for a stream's results");
	}
	r = wait_in_flight(client, wait);
	if (r < 0)
		return r;
	message->id = ++client->last_id;
	r = fa_io_post(client, message, NULL, 0, fa_deadline_ns(client->call_ns), true);
	if (r < 0)
		return r;
	*ret_value = ++stream->submitted;
	if (++client->in_flight % READ_BEHIND == 0)
		fa_io_receive(client, false);
	return 0;
}

int fa_attention(struct fa_client *client, const struct fa_attention *attention,
                 struct fa_ticket *ret_ticket)
{
	struct fa_wire_message message = { .type = FA_WIRE_ATTENTION };
	struct fa_attention known;
	const void *a;
	uint64_t value = 0;
	int r;

	r = fa_struct_in("fa_attention", attention, &known, sizeof(known), &a);
	if (r < 0)
		return r;
	attention = a;
	r = fill_attention(client, attention, &message.attention);
	if (r < 0)
		return r;
	message.timeout_ns = attention->timeout_ns;

	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	r = check_buffers(attention);
	if (r >= 0)
		r = submit(client, &message, !ret_ticket, &value);
	if (r >= 0 && ret_ticket)
		*ret_ticket = (struct fa_ticket){ .value = value,
			                          .stream = attention->stream,
			                          .client = client->tag };
	else if (r >= 0)
		r = fa_result_wait(client, attention->stream, value, FA_NS_NEVER, NULL);
	fa_client_leave(client);
	return r;
}
