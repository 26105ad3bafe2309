/*
 * A stream's requests are numbered as they are sent, and run in that order.
 */
#include "client/submit.h"

#include "client/cancel.h"
#include "client/gates.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/post.h"
#include "client/receive.h"
#include "client/reconnect.h"
#include "client/result_wait.h"
#include "client/results.h"
#include "client/step_state.h"
#include "client/tensor.h"
#include "client/waiter.h"

#include <errno.h>
#include <stdlib.h>

/* A caller that spins on the completion page does not read the socket: completions are read once in
 * so many requests. */
#define READ_BEHIND 32

/* ---- with the mutex */

struct slot_waiter {
	struct fa_client_waiter waiter;
	uint64_t n;
};

static bool has_slots(const struct fa_client *client, uint64_t n)
{
	return client->in_flight + client->sending + n <= client->max_requests;
}

static bool slot_ready(const struct fa_client *client, struct fa_client_waiter *waiter)
{
	return client->state == FA_CLIENT_LOST ||
	       has_slots(client, fa_container_of(waiter, const struct slot_waiter, waiter)->n);
}

/* The daemon has yet to confirm a success that the device signalled. */
static bool has_early_success(const struct fa_client *client)
{
	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i) {
		const struct fa_client_stream *stream = &client->streams[i];

		if (stream->finished < stream->submitted &&
		    fa_result_probe(client, i, stream->finished + 1, true) > 0)
			return true;
	}
	return false;
}

static bool early_ready(const struct fa_client *client, struct fa_client_waiter *waiter)
{
	return slot_ready(client, waiter) || !has_early_success(client);
}

/* Successes that the device signalled must not count against max_requests. A leader may have a
 * record and wait for the mutex. */
static void receive_early(struct fa_client *client, uint64_t n)
{
	struct slot_waiter early = { .waiter.ready = early_ready, .n = n };
	const uint64_t until_ns = fa_deadline_ns(FA_EARLY_NS);

	do {
		fa_client_receive(client, true);
		if (client->leader)
			(void)fa_client_await(client, &early.waiter, until_ns);
	} while (!early_ready(client, &early.waiter) && fa_now_ns() < until_ns);
}

static int wait_in_flight(struct fa_client *client, struct fa_step *step, uint64_t n,
                          uint64_t deadline_ns)
{
	struct slot_waiter room = { .waiter.ready = slot_ready, .n = n };
	int r = 0;

	if (has_slots(client, n))
		return 0;
	if (n > client->max_requests)
		return fa_error_set(-EINVAL,
		                    "%llu layers are more requests than may be in flight; "
		                    "at most %llu are possible",
		                    (unsigned long long)n,
		                    (unsigned long long)client->max_requests);
	receive_early(client, n);
	while (client->state == FA_CLIENT_LOST || !has_slots(client, n)) {
		if (step)
			r = fa_step_check(step);
		if (r < 0)
			return r;
		if (client->state == FA_CLIENT_LOST)
			r = fa_client_reconnect(client, client->reconnect_ns);
		else
			r = fa_client_await(client, &room.waiter, deadline_ns);
		if (r == -EAGAIN && client->state == FA_CLIENT_CONNECTED)
			r = fa_error_set(-EAGAIN,
			                 "%llu requests are in flight, and no more are "
			                 "possible; wait for one",
			                 (unsigned long long)client->in_flight);
		if (r < 0)
			return r;
	}
	return step ? fa_step_check(step) : 0;
}

static int check_objects(struct fa_client *client, const struct fa_client_request *request,
                         uint32_t id)
{
	struct fa_client_stream *stream = &client->streams[id];
	int r;

	if (request->step) {
		r = fa_step_check(request->step);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < request->n_tensors; ++i) {
		r = fa_tensor_check(request->tensors[i].name, request->tensors[i].registration);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < request->n_more; ++i) {
		r = fa_tensor_check(request->more[i].name, request->more[i].registration);
		if (r < 0)
			return r;
	}
	if (stream->state != FA_STREAM_OPEN)
		return fa_error_set(-EINVAL, "there is no stream %u", id);
	if (!stream->results) {
		stream->results = calloc(FA_RESULTS, sizeof(*stream->results));
		if (!stream->results)
			return fa_error_set(-ENOMEM, "no memory for a stream's results");
	}
	return 0;
}

/* For the timeline and room in max_requests: each wait may undo the other. */
static int await_ready(struct fa_client *client, const struct fa_client_request *request,
                       uint64_t n, bool gated, uint64_t deadline_ns)
{
	int r;

	do {
		r = gated ? fa_gates_prepare(client, request) : 0;
		if (r >= 0)
			r = wait_in_flight(client, request->step, n, deadline_ns);
		if (r >= 0 && gated && request->step)
			r = fa_step_check(request->step);
		if (r < 0)
			return r;
	} while (gated && !fa_gates_are_ready(client));
	return 0;
}

int fa_request_send(struct fa_client *client, struct fa_client_request *request,
                    uint64_t deadline_ns, uint64_t *ret_value)
{
	uint64_t *value;
	uint32_t id = *fa_request_stream(&request->message, &value);
	struct fa_client_stream *stream = &client->streams[id];
	const uint64_t n = fa_request_values(&request->message);
	const bool gated = fa_request_is_gated(request);
	bool resend = !request->step && !gated && request->message.type != FA_WIRE_STEP_BEGIN;
	int r;

	for (;;) {
		const uint32_t epoch = client->epoch;

		r = check_objects(client, request, id);
		if (r >= 0)
			r = await_ready(client, request, n, gated, deadline_ns);
		if (r < 0)
			return r;
		/* Another daemon may lack objects that were checked. */
		if (client->epoch != epoch)
			continue;
		request->message.id = ++client->last_id;
		/* Sending may release the mutex, so the room is reserved. */
		client->sending += n;
		r = fa_request_post(client, &request->message, id, value);
		client->sending -= n;
		if (r >= 0)
			break;
		fa_client_wake(client);
		if (!resend || r == -ETIMEDOUT ||
		    (client->state != FA_CLIENT_LOST && client->epoch == epoch))
			return r;
		resend = false;
		r = fa_client_reconnect(client, client->reconnect_ns);
		if (r < 0)
			return r;
	}
	*ret_value = stream->submitted += n;
	if (gated)
		fa_gates_sent(client, request);
	if (request->message.type == FA_WIRE_STEP_END)
		request->step->ended = true;
	client->in_flight += n;
	if (client->in_flight % READ_BEHIND < n)
		fa_client_receive(client, false);
	return 0;
}

/* ---- without the mutex */

int fa_request_submit(struct fa_client *client, struct fa_client_request *request,
                      struct fa_ticket *ret_ticket)
{
	uint64_t *unused, value = 0;
	uint32_t *stream = fa_request_stream(&request->message, &unused);
	const uint32_t number = *stream;
	int r;

	r = request->step ? fa_client_enter(client) : fa_client_enter_connected(client);
	if (r < 0)
		return r;
	*stream = number % FA_COMPLETION_SLOTS;
	if (client->streams[*stream].number != number)
		r = fa_error_set(-EINVAL, "stream is %u, which was freed, or never was a stream",
		                 number);
	else
		r = fa_request_send(client, request, ret_ticket ? 0 : FA_NS_NEVER, &value);
	if (r >= 0 && ret_ticket)
		*ret_ticket = (struct fa_ticket){ .value = value,
			                          .stream = number,
			                          .client = client->tag };
	else if (r >= 0)
		r = fa_result_wait(client, *stream, value, FA_NS_NEVER, NULL);
	fa_client_leave(client);
	return r;
}

int fa_request_submit_write(struct fa_client *client, struct fa_client_request *request,
                            uint64_t sequence, struct fa_ticket *ret_ticket)
{
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	request->step = fa_step_of_sequence(client, sequence);
	fa_client_leave(client);
	r = fa_request_submit(client, request, ret_ticket);
	if (request->step) {
		pthread_mutex_lock(&client->lock);
		fa_step_unref(request->step);
		fa_client_leave(client);
	}
	return r;
}

int fa_marker(struct fa_client *handle, uint32_t stream, const struct fa_gates *gates,
              struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_client_request request;
	int r;

	request.message.type = FA_WIRE_MARKER;
	request.message.timeout_ns = 0;
	request.message.waits = request.message.signals = NULL;
	request.message.n_waits = request.message.n_signals = 0;
	request.message.marker.stream = stream;
	request.n_tensors = request.n_more = 0;
	request.step = NULL;
	r = fa_request_gates(&request, gates);
	return r < 0 ? r : fa_request_submit(client, &request, ret_ticket);
}
