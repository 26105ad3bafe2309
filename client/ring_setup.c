#include "client/ring_setup.h"

#include "client/call.h"
#include "client/loss.h"
#include "common/cleanup.h"

#include <errno.h>
#include <sys/epoll.h>

/* With more in flight none is asked for: the daemon stops reading while too many refusals are
 * queued. */
#define RETRY_IN_FLIGHT_MAX 16

/* The longest back-off. */
#define RETRY_LAST_NS (10 * FA_NS_PER_SEC)

static void set_up(struct fa_client *client)
{
	struct fa_wire_message message = { .type = FA_WIRE_RING_SETUP };
	struct fa_client_call call = { .expect = FA_WIRE_RING_REPLY,
		                       .expect_fds = FA_WIRE_RING_FDS };
	struct fa_client_ring *ring = &client->connection.ring;
	struct epoll_event event = { .events = EPOLLIN };
	uint32_t epoch = client->epoch;
	struct fa_error error;
	int r;

	for (size_t i = 0; i < FA_WIRE_RING_FDS; ++i)
		call.ring_fds[i] = -1;
	message.ring_setup.bytes = FA_RING_BYTES_DEFAULT;
	/* If the daemon refuses, requests go by the socket. */
	if (fa_call_run(client, &message, NULL, 0, false, &call) == 0 && client->epoch == epoch &&
	    client->state == FA_CLIENT_CONNECTED) {
		r = fa_client_ring_open(&call.ring, call.ring_fds, &error, ring);
		if (r < 0)
			fa_client_lose(client, -EPROTO, "the daemon's ring is unusable: %.180s",
			               error.text);
		else
			(void)epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, ring->wake, &event);
		for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
			client->streams[i].last_by_socket = client->streams[i].submitted;
	}
	for (size_t i = 0; i < FA_WIRE_RING_FDS; ++i)
		fa_close_fdp(&call.ring_fds[i]);
	if (ring->memory && ring->n_records < client->max_requests)
		client->max_requests = ring->n_records;
}

bool fa_ring_setup_is_due(const struct fa_client *client)
{
	if (client->ring_setup_busy || !client->ring_retry_at_ns)
		return true;
	return client->ring_retry_at_ns != FA_NS_NEVER &&
	       client->in_flight <= RETRY_IN_FLIGHT_MAX && fa_now_ns() >= client->ring_retry_at_ns;
}

void fa_ring_setup(struct fa_client *client)
{
	uint32_t epoch;

	while (client->ring_setup_busy)
		pthread_cond_wait(&client->changed, &client->lock);
	if (client->state != FA_CLIENT_CONNECTED || !fa_ring_setup_is_due(client))
		return;
	client->ring_retry_at_ns = FA_NS_NEVER;
	if (client->no_ring || !(client->connection.features & FA_WIRE_FEATURE_RING))
		return;
	epoch = client->epoch;
	client->ring_setup_busy = true;
	set_up(client);
	client->ring_setup_busy = client->ring_setup_answered = false;
	pthread_cond_broadcast(&client->changed);
	if (client->epoch != epoch || client->connection.ring.memory)
		return;
	client->ring_retry_at_ns = fa_deadline_ns(client->ring_backoff_ns);
	client->ring_backoff_ns = 2 * client->ring_backoff_ns < RETRY_LAST_NS
	                                  ? 2 * client->ring_backoff_ns
	                                  : RETRY_LAST_NS;
}
