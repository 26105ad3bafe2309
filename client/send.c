#include "client/send.h"

#include "client/last_error.h"
#include "client/loss.h"
#include "client/pending.h"
#include "client/poll_until.h"
#include "client/receive.h"
#include "client/reconnect.h"
#include "client/waiter.h"
#include "common/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* Time limit while sockets of this user hold too many unread descriptors. */
#define TOO_MANY_FDS_NS (2 * FA_NS_PER_SEC)

/* Time limit for the reason that the daemon sent before it closed. */
#define LAST_WORDS_NS FA_NS_PER_SEC

struct end_waiter {
	struct fa_client_waiter waiter;
	uint32_t epoch;
};

/* The connection is lost, and there may be another one. */
static bool end_ready(const struct fa_client *client, struct fa_client_waiter *waiter)
{
	return client->state == FA_CLIENT_LOST ||
	       client->epoch != fa_container_of(waiter, const struct end_waiter, waiter)->epoch;
}

int fa_encode(struct fa_client *client, const struct fa_wire_message *message,
              const void **ret_bytes, size_t *ret_length)
{
	int r;

	r = fa_wire_encode(message, client->out, FA_WIRE_BYTES_MAX, ret_bytes, ret_length);
	if (r == -EMSGSIZE)
		return fa_error_set(r,
		                    "the request is too long: what comes with it (lengths, "
		                    "masks, positions, items) has more than about %u bytes",
		                    FA_WIRE_BYTES_MAX - FA_WIRE_FIXED_BYTES_MAX);
	if (r < 0)
		return fa_error_set(r, "the request cannot be encoded: %s", strerror(-r));
	return 0;
}

int fa_send_once(struct fa_client *client, const void *bytes, size_t length, const int *fds,
                 size_t n_fds)
{
	struct end_waiter end = { .waiter.ready = end_ready, .epoch = client->epoch };
	int r;

	r = fa_packet_send(client->connection.socket, bytes, length, fds, n_fds, MSG_DONTWAIT);
	if (r == 0 || r == -EAGAIN || r == -ETOOMANYREFS)
		return r;
	if (r != -EPIPE && r != -ECONNRESET && r != -ENOTCONN)
		return fa_error_set(r, "the request cannot be sent: %s", strerror(-r));

	/* The daemon may have sent its reason before it closed. */
	(void)fa_client_await(client, &end.waiter, fa_deadline_ns(LAST_WORDS_NS));
	if (!end_ready(client, &end.waiter))
		fa_client_lose(client, -ECONNRESET, "the daemon went away: %s", strerror(-r));
	return fa_client_lost_error(client);
}

int fa_send_give_up(struct fa_client *client)
{
	fa_client_lose(client, -ECONNRESET, "the daemon takes no more requests");
	return fa_error_copy(-ETIMEDOUT, &client->lost_error);
}

static void poll_pinned(struct fa_client *client, short events, uint64_t deadline_ns)
{
	int fd = client->connection.socket;

	fa_client_pin(client);
	(void)fa_poll(fd, events, deadline_ns);
	fa_client_unpin(client);
}

/*
 * Waits until the socket takes a message or, if it holds too many descriptors, for a pause. Reads
 * replies even if another thread leads: the daemon may have stopped reading because they pile up.
 */
int fa_send_await_socket(struct fa_client *client, bool too_many_fds, uint64_t deadline_ns)
{
	const uint64_t soon_ns = too_many_fds ? fa_deadline_ns(FA_TOO_MANY_FDS_PAUSE_NS)
	                                      : FA_NS_NEVER;
	uint32_t epoch = client->epoch;

	if (deadline_ns != FA_NS_NEVER && fa_now_ns() >= deadline_ns)
		return too_many_fds
		               ? fa_error_set(-EMFILE, "as many descriptors of this user as a "
		                                       "process may have lie in sockets, unread")
		               : fa_send_give_up(client);
	poll_pinned(client, (short)(too_many_fds ? 0 : POLLIN | POLLOUT),
	            soon_ns < deadline_ns ? soon_ns : deadline_ns);
	if (client->epoch == epoch)
		fa_client_receive(client, true);
	if (client->epoch != epoch || client->state == FA_CLIENT_LOST)
		return fa_client_lost_error(client);
	return 0;
}

int fa_send(struct fa_client *client, struct fa_wire_message *message, const int *fds, size_t n_fds,
            uint64_t deadline_ns, bool resend)
{
	const uint64_t given_ns = deadline_ns;
	uint64_t too_many_fds_ns = FA_NS_NEVER;
	int r;

	message->fds = (uint8_t)n_fds;
	for (;;) {
		const uint32_t epoch = client->epoch;
		const void *bytes;
		size_t length;

		/* The connecting thread uses client->out, without the mutex. */
		if (client->state == FA_CLIENT_LOST)
			r = fa_client_lost_error(client);
		else
			r = fa_encode(client, message, &bytes, &length);
		if (r == 0)
			r = fa_send_once(client, bytes, length, fds, n_fds);
		if (r == -EAGAIN || r == -ETOOMANYREFS) {
			const bool too_many_fds = r == -ETOOMANYREFS;

			if (deadline_ns == FA_DEADLINE_REPLY)
				deadline_ns = fa_deadline_ns(client->reply_ns);
			if (too_many_fds && too_many_fds_ns == FA_NS_NEVER)
				too_many_fds_ns = fa_deadline_ns(TOO_MANY_FDS_NS);
			r = fa_send_await_socket(client, too_many_fds,
			                         too_many_fds && too_many_fds_ns < deadline_ns
			                                 ? too_many_fds_ns
			                                 : deadline_ns);
			if (r == 0)
				continue;
		}
		if (r < 0 && r != -ETIMEDOUT && resend &&
		    (client->state == FA_CLIENT_LOST || client->epoch != epoch)) {
			resend = false;
			deadline_ns = given_ns;
			too_many_fds_ns = FA_NS_NEVER;
			r = fa_client_reconnect(client, client->reconnect_ns);
			if (r == 0)
				continue;
		}
		return r;
	}
}
