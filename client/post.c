#include "client/post.h"

#include "client/loss.h"
#include "client/pending.h"
#include "client/poll_until.h"
#include "client/receive.h"
#include "client/ring_setup.h"
#include "client/send.h"
#include "client/step_state.h"
#include "client/waiter.h"

#include <errno.h>
#include <sys/eventfd.h>

/* A ring's put checks the socket after such a pause. */
#define PAUSE_NS FA_NS_PER_MS

struct room_waiter {
	struct fa_client_waiter waiter;
	size_t length;
	uint32_t epoch;
};

static bool room_ready(const struct fa_client *client, struct fa_client_waiter *waiter)
{
	const struct room_waiter *room = fa_container_of(waiter, const struct room_waiter, waiter);

	if (client->state == FA_CLIENT_LOST || client->epoch != room->epoch ||
	    fa_ring_has_room(&client->connection.ring.end, room->length))
		return true;
	/* The wake-up came for less room than this request needs. */
	fa_ring_arm_room((struct fa_ring_producer *)&client->connection.ring.end);
	return fa_ring_has_room(&client->connection.ring.end, room->length);
}

static int await_ring_room(struct fa_client *client, size_t length, uint64_t deadline_ns)
{
	struct room_waiter room = { .waiter.ready = room_ready,
		                    .length = length,
		                    .epoch = client->epoch };
	int r;

	fa_ring_arm_room(&client->connection.ring.end);
	r = fa_client_await(client, &room.waiter, deadline_ns);
	if (client->epoch != room.epoch || client->state == FA_CLIENT_LOST)
		return fa_client_lost_error(client);
	return r < 0 ? fa_send_give_up(client) : 0;
}

/* A ring accepts messages even if the daemon is dead. */
static int check_after_pause(struct fa_client *client)
{
	struct fa_client_ring *ring = &client->connection.ring;
	uint64_t now_ns = fa_now_ns(), pause_ns = now_ns - ring->put_ns;

	ring->put_ns = now_ns;
	if (pause_ns < PAUSE_NS)
		return 0;
	fa_client_receive(client, true);
	return client->state == FA_CLIENT_LOST ? fa_client_lost_error(client) : 0;
}

static int put_in_ring(struct fa_client *client, const void *bytes, size_t length)
{
	struct fa_client_ring *ring = &client->connection.ring;
	int r;

	if (client->fd_watched)
		fa_client_ring_arm(&client->connection.ring);
	r = fa_ring_put(&ring->end, bytes, length);
	if (r == -EPROTO) {
		fa_client_lose(client, -EPROTO, "the daemon's ring is out of order");
		return fa_client_lost_error(client);
	}
	/* A full eventfd wakes already. poll() first: the daemon may have cleared O_NONBLOCK. */
	if (r == 0 && fa_ring_needs_doorbell(&ring->end) && !fa_poll(ring->doorbell, POLLOUT, 0))
		(void)eventfd_write(ring->doorbell, 1);
	return r;
}

int fa_request_post(struct fa_client *client, struct fa_wire_message *message, uint32_t id,
                    uint64_t *value)
{
	const struct fa_client_stream *stream = &client->streams[id];
	uint64_t deadline_ns = FA_DEADLINE_REPLY;
	int r;

	message->fds = 0;
	for (;;) {
		const uint32_t epoch = client->epoch;
		const void *bytes;
		size_t length;
		bool by_ring;

		while (client->state == FA_CLIENT_CONNECTED && fa_ring_setup_is_due(client)) {
			fa_ring_setup(client);
			if (client->epoch != epoch)
				return fa_client_lost_error(client);
		}
		/* The connecting thread uses client->out, without the mutex. */
		if (client->state == FA_CLIENT_LOST)
			return fa_client_lost_error(client);
		/* Set last: another thread may have sent a request meanwhile. */
		*value = stream->submitted + 1 - stream->base;
		by_ring = client->connection.ring.memory;
		/* The connection changed meanwhile. The caller then sends a packet. */
		if (message->type == FA_WIRE_STEP_BEGIN && !fa_step_begins_by_ring(client))
			return fa_client_lost_error(client);
		r = by_ring ? check_after_pause(client) : 0;
		if (r == 0)
			r = fa_encode(client, message, &bytes, &length);
		if (r < 0)
			return r;
		r = by_ring ? put_in_ring(client, bytes, length)
		            : fa_send_once(client, bytes, length, NULL, 0);
		if (r != -EAGAIN)
			return r;
		if (deadline_ns == FA_DEADLINE_REPLY)
			deadline_ns = fa_deadline_ns(client->reply_ns);
		r = by_ring ? await_ring_room(client, length, deadline_ns)
		            : fa_send_await_socket(client, false, deadline_ns);
		if (r < 0)
			return r;
	}
}
