#include "client/waiter.h"

#include "client/poll_until.h"
#include "client/receive.h"

#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <time.h>

/* Waits that do not spin after several spins in vain. */
#define SPIN_SKIPS 256

/* Looks for a packet between two at the ring's wake-ups. */
#define SPIN_LOOKS 8

/* With a ring a waiting thread has already spun on the page. */
static bool should_spin(const struct fa_client *client)
{
	return !client->connection.ring.memory || !fa_list_empty(&client->calls);
}

/* Without the mutex: most replies arrive sooner than a sleeping thread is woken. Wake-ups of @ring
 * (NULL: none) are for threads that sleep. */
static bool receive_spinning(struct fa_client *client, bool spin, int fd,
                             const struct fa_client_ring *ring, uint64_t deadline_ns,
                             struct fa_client_packet *packet)
{
	unsigned int looks = 0;
	uint64_t end_ns;

	if (!client->spin_ns || !spin)
		return false;
	if (!fa_backoff_next(&client->backoff))
		return false;
	end_ns = fa_deadline_ns(client->spin_ns);
	if (deadline_ns < end_ns)
		end_ns = deadline_ns;
	do {
		packet->n = fa_packet_receive(fd, client->in, FA_WIRE_BYTES_MAX, packet->fds,
		                              &packet->n_fds, MSG_DONTWAIT);
		if (packet->n != -EAGAIN) {
			fa_backoff_succeeded(&client->backoff);
			return true;
		}
		if (ring && ++looks % SPIN_LOOKS == 0 && fa_client_ring_is_woken(ring))
			return false;
		if (client->spin_yields)
			sched_yield();
	} while (fa_now_ns() < end_ns);
	fa_backoff_failed(&client->backoff, SPIN_SKIPS);
	return false;
}

/* Sleeps until there is a packet, or the ring has records or room. */
static void lead_ring(struct fa_client *client, uint64_t deadline_ns)
{
	const struct fa_client_ring *ring = &client->connection.ring;
	struct fa_client_packet packet = { .n = -EAGAIN };
	struct pollfd fds[] = {
		{ .fd = client->connection.socket, .events = POLLIN },
		{ .fd = ring->wake, .events = POLLIN },
	};
	uint64_t until_ns = fa_deadline_ns(FA_RECEIVE_SLICE_NS);
	bool spin;

	if (deadline_ns < until_ns)
		until_ns = deadline_ns;

	/* First asks for a wake-up: requests that end later wake this thread. */
	fa_ring_arm(&client->connection.ring.end);
	if (fa_client_collect_all(client)) {
		if (!client->fd_watched)
			fa_ring_disarm(&client->connection.ring.end);
		fa_client_wake(client);
		return;
	}
	if (client->state == FA_CLIENT_LOST)
		return;

	client->leader = true;
	spin = should_spin(client);
	fa_client_pin(client);
	if (!receive_spinning(client, spin, fds[0].fd, ring, until_ns, &packet) &&
	    !fa_poll_all(fds, 2, until_ns)) {
		if (fds[1].revents)
			fa_client_ring_drain(ring);
		if (fds[0].revents)
			packet.n = fa_packet_receive(fds[0].fd, client->in, FA_WIRE_BYTES_MAX,
			                             packet.fds, &packet.n_fds, MSG_DONTWAIT);
	}
	fa_client_unpin(client);
	client->leader = false;

	if (client->state == FA_CLIENT_LOST) {
		fa_packet_close_fds(packet.fds, packet.n_fds);
		return;
	}
	/* The wake-up may have been for the poller of fa_fd(). */
	if (client->fd_watched)
		fa_client_ring_arm(&client->connection.ring);
	else
		fa_ring_disarm(&client->connection.ring.end);
	if (fa_client_handle_packet(client, &packet))
		fa_client_read_socket(client, false, true);
	else if (client->state == FA_CLIENT_CONNECTED)
		fa_client_wake(client);
}

/* A blocking receive saves the poll(), but its timeout is coarse. */
static void lead_socket(struct fa_client *client, uint64_t deadline_ns)
{
	struct fa_client_packet packet = { .n = -EAGAIN };
	int fd = client->connection.socket;
	bool any, spin;

	client->leader = true;
	spin = should_spin(client);
	fa_client_pin(client);
	if (!receive_spinning(client, spin, fd, NULL, deadline_ns, &packet)) {
		bool precise = deadline_ns != FA_NS_NEVER &&
		               deadline_ns < fa_deadline_ns(FA_RECEIVE_SLICE_NS);

		if (!precise || !fa_poll(fd, POLLIN, deadline_ns))
			packet.n = fa_packet_receive(fd, client->in, FA_WIRE_BYTES_MAX, packet.fds,
			                             &packet.n_fds, precise ? MSG_DONTWAIT : 0);
	}
	fa_client_unpin(client);
	client->leader = false;

	/* Nobody waits for this packet any more. */
	if (client->state == FA_CLIENT_LOST) {
		fa_packet_close_fds(packet.fds, packet.n_fds);
		return;
	}
	any = fa_client_handle_packet(client, &packet);
	fa_client_read_socket(client, false, any);
}

int fa_client_await(struct fa_client *client, struct fa_client_waiter *waiter, uint64_t deadline_ns)
{
	int r = 0;

	if (waiter->ready(client, waiter))
		return 0;
	pthread_cond_init(&waiter->wake, &client->clock);
	fa_list_append(&client->waiters, &waiter->link);

	while (!waiter->ready(client, waiter)) {
		if (deadline_ns != FA_NS_NEVER && fa_now_ns() >= deadline_ns) {
			r = -EAGAIN;
			break;
		}
		/* The ring would not wake a thread that sleeps on the socket. */
		if (!client->leader && client->ring_setup_answered) {
			pthread_cond_wait(&client->changed, &client->lock);
		} else if (!client->leader && client->connection.ring.memory &&
		           client->state == FA_CLIENT_CONNECTED) {
			lead_ring(client, deadline_ns);
		} else if (!client->leader) {
			lead_socket(client, deadline_ns);
		} else if (deadline_ns == FA_NS_NEVER) {
			pthread_cond_wait(&waiter->wake, &client->lock);
		} else {
			struct timespec until = { .tv_sec = (time_t)(deadline_ns / FA_NS_PER_SEC),
				                  .tv_nsec = (long)(deadline_ns % FA_NS_PER_SEC) };

			pthread_cond_timedwait(&waiter->wake, &client->lock, &until);
		}
	}

	fa_list_remove(&waiter->link);
	pthread_cond_destroy(&waiter->wake);
	if (!client->leader && !fa_list_empty(&client->waiters))
		pthread_cond_signal(
			&fa_container_of(client->waiters.next, struct fa_client_waiter, link)
				 ->wake);
	return r;
}
