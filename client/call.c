#include "client/call.h"

#include "client/connection.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/receive.h"
#include "client/reconnect.h"
#include "client/send.h"
#include "client/waiter.h"

#include <errno.h>

static bool call_ready(const struct fa_client *client, struct fa_client_waiter *waiter)
{
	return fa_container_of(waiter, const struct fa_client_call, waiter)->done;
}

static bool are_fds_due(const struct fa_client *client)
{
	struct fa_list *pos;

	if (client->sending_for_fds)
		return true;
	fa_list_for_each(pos, &client->calls) {
		const struct fa_client_call *call = fa_container_of(pos, struct fa_client_call,
		                                                    link);

		if (call->expect_fds && !call->done)
			return true;
	}
	return false;
}

static bool no_fds_due_ready(const struct fa_client *client, struct fa_client_waiter *waiter)
{
	return client->state == FA_CLIENT_LOST || !are_fds_due(client);
}

/* One call at a time reserves descriptors: the check opens them for a moment, and the reply to
 * another call would find none. */
static int reserve_fds(struct fa_client *client, bool resend, struct fa_client_call *call)
{
	int r;

	while (are_fds_due(client)) {
		struct fa_client_waiter turn = { .ready = no_fds_due_ready };

		if (client->state == FA_CLIENT_LOST && !resend)
			return fa_client_lost_error(client);
		if (client->state == FA_CLIENT_LOST) {
			r = fa_client_reconnect(client, client->reconnect_ns);
			if (r < 0)
				return r;
		}
		/* The calls ahead have deadlines of their own. */
		(void)fa_client_await(client, &turn, FA_NS_NEVER);
	}
	r = fa_connection_check_fds(client->event_fd, call->expect_fds, &call->error);
	return r < 0 ? fa_error_copy(r, &call->error) : 0;
}

int fa_call_begin(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                  size_t n_fds, bool resend, struct fa_client_call *call)
{
	int r;

	call->type = message->type;
	call->waiter.ready = call_ready;
	call->done = false;
	call->status = 0;
	call->fd = call->second_fd = -1;
	if (call->expect_fds) {
		r = reserve_fds(client, resend, call);
		if (r < 0)
			return r;
		client->sending_for_fds = true;
	}
	message->id = call->id = ++client->last_id;

	r = fa_send(client, message, fds, n_fds, FA_DEADLINE_REPLY, resend);
	if (call->expect_fds)
		client->sending_for_fds = false;
	if (r < 0) {
		if (call->expect_fds)
			fa_client_wake(client);
		return r;
	}
	/* The time for a reply starts now, after any reconnect. */
	call->deadline_ns = fa_deadline_ns(client->reply_ns);
	call->epoch = client->epoch;
	fa_list_append(&client->calls, &call->link);
	return 0;
}

int fa_call_timed_out(struct fa_client *client, enum fa_wire_type type)
{
	fa_client_lose(client, -ECONNRESET, "the daemon did not answer %s in time",
	               fa_wire_type_name(type));
	return fa_error_copy(-ETIMEDOUT, &client->lost_error);
}

int fa_call_end(struct fa_client *client, struct fa_client_call *call)
{
	int r;

	r = fa_client_await(client, &call->waiter, call->deadline_ns);
	fa_list_remove(&call->link);
	if (r == -EAGAIN)
		return fa_call_timed_out(client, call->type);
	return call->status < 0 ? fa_error_copy(call->status, &call->error) : 0;
}

int fa_call_run(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                size_t n_fds, bool resend, struct fa_client_call *call)
{
	int r;

	r = fa_call_begin(client, message, fds, n_fds, resend, call);
	return r < 0 ? r : fa_call_end(client, call);
}

int fa_call_detached(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                     size_t n_fds)
{
	int r;

	message->id = ++client->last_id | FA_ID_DETACHED;
	r = fa_send(client, message, fds, n_fds, fa_deadline_ns(client->reply_ns), false);
	if (r == 0)
		++client->detached_replies;
	return r;
}
