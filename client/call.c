#include "client/call.h"

#include "client/connection.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/receive.h"
#include "client/reconnect.h"
#include "client/send.h"
#include "client/waiter.h"

#include <errno.h>

static bool call_ready(const struct fa_client *client, struct fa_waiter *waiter)
{
	return fa_container_of(waiter, const struct fa_call, waiter)->done;
}

/* Whether an answer may come with descriptors. */
static bool are_fds_due(const struct fa_client *client)
{
	struct fa_list *pos;

	if (client->posting_for_fds)
		return true;
	fa_list_for_each(pos, &client->calls) {
		const struct fa_call *call = fa_container_of(pos, struct fa_call, link);

		if (call->expect_fds && !call->done)
			return true;
	}
	return false;
}

static bool no_fds_ready(const struct fa_client *client, struct fa_waiter *waiter)
{
	return client->state == FA_CLIENT_LOST || !are_fds_due(client);
}

/*
 * Sees that the descriptors of an answer will find room. One call at a time: whoever tries takes
 * them for a moment, in which another's would find none, and both would count on the same.
 */
static int make_sure_of_fds(struct fa_client *client, bool again, struct fa_call *call)
{
	int r;

	while (are_fds_due(client)) {
		struct fa_waiter turn = { .ready = no_fds_ready };

		if (client->state == FA_CLIENT_LOST && !again)
			return fa_client_lost_error(client);
		if (client->state == FA_CLIENT_LOST) {
			r = fa_client_reconnect(client, client->reconnect_ns);
			if (r < 0)
				return r;
		}
		/* Each has its own time to be answered in. */
		(void)fa_client_await(client, &turn, FA_NS_NEVER);
	}
	r = fa_connection_check_fds(client->event_fd, call->expect_fds, &call->error);
	return r < 0 ? fa_error_copy(r, &call->error) : 0;
}

int fa_call_begin(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                  size_t n_fds, bool again, struct fa_call *call)
{
	int r;

	call->type = message->type;
	call->waiter.ready = call_ready;
	call->done = false;
	call->status = 0;
	call->fd = call->second_fd = -1;
	if (call->expect_fds) {
		r = make_sure_of_fds(client, again, call);
		if (r < 0)
			return r;
		client->posting_for_fds = true;
	}
	message->id = call->id = ++client->last_id;

	r = fa_send(client, message, fds, n_fds, FA_DEADLINE_REPLY, again);
	if (call->expect_fds)
		client->posting_for_fds = false;
	if (r < 0) {
		/* The next of those calls. */
		if (call->expect_fds)
			fa_client_wake(client);
		return r;
	}
	/* Whatever time the daemon took to come back: it has its own to answer. */
	call->deadline_ns = fa_deadline_ns(client->call_ns);
	call->epoch = client->epoch;
	fa_list_append(&client->calls, &call->link);
	return 0;
}

int fa_call_end(struct fa_client *client, struct fa_call *call)
{
	int r;

	r = fa_client_await(client, &call->waiter, call->deadline_ns);
	fa_list_remove(&call->link);
	if (r == -EAGAIN) {
		fa_client_lose(client, -ECONNRESET, "the daemon did not answer %s in time",
		               fa_wire_type_name(call->type));
		return fa_error_copy(-ETIMEDOUT, &client->lost_error);
	}
	return call->status < 0 ? fa_error_copy(call->status, &call->error) : 0;
}

int fa_call_run(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                size_t n_fds, bool again, struct fa_call *call)
{
	int r;

	r = fa_call_begin(client, message, fds, n_fds, again, call);
	return r < 0 ? r : fa_call_end(client, call);
}

int fa_call_detached(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                     size_t n_fds)
{
	int r;

	message->id = ++client->last_id | FA_ID_DETACHED;
	r = fa_send(client, message, fds, n_fds, fa_deadline_ns(client->call_ns), false);
	if (r == 0)
		++client->detached;
	return r;
}
