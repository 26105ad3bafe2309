#include "client/result_wait.h"

#include "client/call.h"
#include "client/cancel.h"
#include "client/last_error.h"
#include "client/receive.h"
#include "client/results.h"
#include "client/struct_size.h"
#include "client/waiter.h"
#include "common/cpu.h"

#include <errno.h>
#include <string.h>

/* How long a thread spins before it reads the socket. */
#define SPIN_SLICE_NS (50 * FA_NS_PER_US)

/* How often the page is read before the clock is. */
#define SPIN_LOOKS 16

struct ticket_waiter {
	struct fa_client_waiter waiter;
	uint32_t stream;
	uint64_t value;
	/* Copied, as it may be overwritten before this thread runs. */
	bool seen;
	struct fa_result result;
	struct fa_error error; /* holds result.text */
};

static bool ticket_ready(const struct fa_client *client, struct fa_client_waiter *waiter)
{
	struct ticket_waiter *ticket = fa_container_of(waiter, struct ticket_waiter, waiter);
	const struct fa_client_stream *stream = &client->streams[ticket->stream];

	if (stream->finished < ticket->value)
		return false;
	if (!ticket->seen && stream->finished - ticket->value < FA_RESULTS) {
		ticket->seen = true;
		ticket->result = stream->results[ticket->value % FA_RESULTS];
		if (ticket->result.text) {
			(void)fa_fail(&ticket->error, 0, "%s", ticket->result.text);
			ticket->result.text = ticket->error.text;
		}
	}
	return true;
}

/* Polls the page without the mutex until it tells the end, the connection is lost or @spin_ns is
 * over. Other threads read meanwhile, and give @ticket its result. */
static int spin(struct fa_client *client, struct ticket_waiter *ticket, bool early,
                uint64_t spin_ns)
{
	uint64_t deadline = fa_deadline_ns(spin_ns);
	int r;

	fa_list_append(&client->spinning, &ticket->waiter.link);
	fa_client_pin(client);
	do {
		for (int i = 0; i < SPIN_LOOKS; ++i) {
			r = fa_result_probe(client, ticket->stream, ticket->value, early);
			if (r || atomic_load_explicit(&client->lost, memory_order_acquire))
				goto end;
			fa_cpu_spin_pause(client->spin_yields);
		}
	} while (fa_now_ns() < deadline);
end:
	fa_client_unpin(client);
	fa_list_remove(&ticket->waiter.link);
	return r;
}

static int spin_slices(struct fa_client *client, struct ticket_waiter *ticket, bool early,
                       uint64_t spin_ns)
{
	const struct fa_client_stream *s = &client->streams[ticket->stream];
	int r = 0;

	while (spin_ns && ticket->value > s->finished && client->state == FA_CLIENT_CONNECTED) {
		uint64_t slice = spin_ns < SPIN_SLICE_NS ? spin_ns : SPIN_SLICE_NS;

		r = spin(client, ticket, early, slice);
		if (r)
			break;
		spin_ns -= slice;
		if (spin_ns)
			fa_client_receive(client, true);
	}
	return r;
}

static int report(const struct fa_result *result, struct fa_completion *ret_completion,
                  uint64_t *ret_number)
{
	if (ret_completion) {
		struct fa_completion completion = { .status = result->status,
			                            .queued_ns = result->queued_ns,
			                            .started_ns = result->started_ns,
			                            .finished_ns = result->finished_ns };

		fa_struct_out(ret_completion, &completion, sizeof(completion));
	}
	if (result->status < 0)
		return fa_error_set(result->status, "%s",
		                    result->text ? result->text : strerror(-result->status));
	if (ret_number)
		*ret_number = result->number;
	return 0;
}

static int stored_result(const struct fa_client_stream *stream, uint64_t value,
                         struct fa_completion *ret_completion, uint64_t *ret_number)
{
	if (stream->finished - value >= FA_RESULTS)
		return fa_error_set(-ESTALE,
		                    "request %llu ended so long ago that its result is forgotten; "
		                    "the last %u of a stream are kept",
		                    (unsigned long long)value, FA_RESULTS);
	return report(&stream->results[value % FA_RESULTS], ret_completion, ret_number);
}

static int wait_for_result(struct fa_client *client, uint32_t stream, uint64_t value,
                           uint64_t timeout_ns, struct fa_completion *ret_completion,
                           uint64_t *ret_number)
{
	const struct fa_client_stream *s = &client->streams[stream];
	struct ticket_waiter ticket;
	int r;

	/* Clearing the whole struct takes longer. */
	ticket.waiter.ready = ticket_ready;
	ticket.stream = stream;
	ticket.value = value;
	ticket.seen = false;

	const bool by_ring = client->connection.ring.memory;
	/* The page and the device's signal tell no more than success. */
	const bool wants_record = ret_completion || ret_number;
	const bool early = !wants_record;

	/* A call without times may have reported the end: -EAGAIN would contradict it. */
	if (value > s->finished && !early && timeout_ns < FA_EARLY_NS &&
	    fa_result_probe(client, stream, value, true))
		timeout_ns = FA_EARLY_NS;
	if (value > s->finished && (by_ring || !wants_record)) {
		uint64_t spin_ns = client->spin_ns < timeout_ns ? client->spin_ns : timeout_ns;
		uint64_t begin_ns = spin_ns ? fa_now_ns() : 0;

		r = fa_result_probe(client, stream, value, early);
		if (!r && spin_ns) {
			r = spin_slices(client, &ticket, early, spin_ns);
			if (timeout_ns != FA_NS_NEVER) {
				uint64_t spun = fa_now_ns() - begin_ns;

				timeout_ns -= spun < timeout_ns ? spun : timeout_ns;
			}
		}
		if (r > 0 && value > s->finished && !wants_record)
			return 0;
		/* The record has the times. Collecting it may also satisfy other threads. */
		if (r && fa_client_collect(client, stream))
			fa_client_wake(client);
	}
	if (value > s->finished && timeout_ns)
		(void)fa_client_await(client, &ticket.waiter, fa_deadline_ns(timeout_ns));
	if (ticket.seen)
		return report(&ticket.result, ret_completion, ret_number);
	if (value > s->finished)
		fa_client_receive(client, false);
	if (value > s->finished)
		return fa_error_set(-EAGAIN, "request %llu of stream %u is not finished yet",
		                    (unsigned long long)value, stream);
	return stored_result(s, value, ret_completion, ret_number);
}

int fa_result_wait(struct fa_client *client, uint32_t stream, uint64_t value, uint64_t timeout_ns,
                   struct fa_completion *ret_completion)
{
	return wait_for_result(client, stream, value, timeout_ns, ret_completion, NULL);
}

int fa_result_wait_number(struct fa_client *client, uint32_t stream, uint64_t value,
                          uint64_t timeout_ns, uint64_t *ret_number)
{
	return wait_for_result(client, stream, value, timeout_ns, NULL, ret_number);
}

static int check_ticket(const struct fa_client *client, const struct fa_ticket *ticket,
                        uint32_t *ret_stream)
{
	if (!ticket)
		return fa_error_set(-EINVAL, "the ticket is NULL");
	/* A ticket outlives its stream: the next one's values are higher. */
	*ret_stream = ticket->stream % FA_COMPLETION_SLOTS;
	if (ticket->client != client->tag || !ticket->value ||
	    ticket->stream > client->streams[*ret_stream].number ||
	    ticket->value > client->streams[*ret_stream].submitted)
		return fa_error_set(-EINVAL, "the ticket is not of this client");
	return 0;
}

int fa_wait(struct fa_client *handle, const struct fa_ticket *ticket, uint64_t timeout_ns,
            struct fa_completion *ret_completion)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	uint32_t stream = 0;
	int r;

	if (ret_completion) {
		r = fa_struct_out_check("fa_completion", ret_completion);
		if (r < 0)
			return r;
	}
	r = fa_client_enter(client);
	if (r < 0)
		return r;
	r = check_ticket(client, ticket, &stream);
	if (r >= 0)
		r = fa_result_wait(client, stream, ticket->value, timeout_ns, ret_completion);
	fa_client_leave(client);
	return r;
}

int fa_cancel(struct fa_client *handle, const struct fa_ticket *ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_CANCEL };
	struct fa_client_call call = { .expect = FA_WIRE_REPLY };
	const struct fa_client_stream *stream;
	uint32_t id = 0;
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	r = check_ticket(client, ticket, &id);
	if (r < 0)
		goto leave;
	stream = &client->streams[id];
	if (ticket->value <= stream->finished || fa_result_probe(client, id, ticket->value, true)) {
		r = fa_error_set(-ENOENT, "the request has finished");
		goto leave;
	}
	message.cancel.stream = id;
	message.cancel.value = ticket->value - stream->base;
	r = fa_call_run(client, &message, NULL, 0, false, &call);
leave:
	fa_client_leave(client);
	return r;
}
