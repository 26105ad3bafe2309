/*
 * rtt: latency of a request, against a bare ping-pong of equal packets between two processes. Short
 * blocks alternate.
 *
 * Waking an idle processor can cost several round trips, so placement matters more than code. All
 * run pinned to one processor first, then unpinned ("-unpinned"), as for users.
 */
#include "bench/fabench/bench.h"
#include "bench/fabench/daemon.h"

#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PACKET_BYTES 48 /* about the size of a Ping or its Reply */
#define BLOCKS 40
#define BLOCK_TRIPS 1000
#define WARM_UP_TRIPS 100

/* A pause in which the daemon and the peers fall asleep; one trip in RESTED_EVERY has it. */
#define REST_NS (300 * FA_NS_PER_US)
#define RESTED_EVERY 10

enum {
	BARE,
	PING,
	NOOP,
	RING_NOOP,
	RING_ATTENTION,
	DOORBELL_BARE,
	DOORBELL_NOOP,
	DOORBELL_ATTENTION,
	KINDS
};

static const struct {
	const char *name;
	int peer;
	bool rested;
} kinds[KINDS] = {
	[BARE] = { "socket/bare", BARE, false },
	[PING] = { "socket/ping", BARE, false },
	[NOOP] = { "socket/noop", BARE, false },
	[RING_NOOP] = { "ring/noop", BARE, false },
	[RING_ATTENTION] = { "ring/attention", BARE, false },
	[DOORBELL_BARE] = { "doorbell/bare", DOORBELL_BARE, true },
	[DOORBELL_NOOP] = { "doorbell/noop", DOORBELL_BARE, true },
	[DOORBELL_ATTENTION] = { "doorbell/attention", DOORBELL_BARE, true },
};

struct rtt {
	int echo; /* socket to the peer */
	pid_t echo_pid;
	int call_eventfd, reply_eventfd; /* eventfds to the second peer and back */
	pid_t eventfd_pid;
	/* Clients that use the socket, a ring, and a ring without spinning. */
	struct client {
		struct fa_client *client;
		struct fa_buffer *buffer;
		struct fa_attention noop;
	} by_socket, by_ring, by_ring_no_spin;
};

static int start_echo(struct rtt *rtt)
{
	char packet[PACKET_BYTES];
	int ends[2];
	ssize_t n;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	rtt->echo_pid = fork();
	if (rtt->echo_pid < 0) {
		n = -errno;
		close(ends[0]);
		close(ends[1]);
		return (int)n;
	}
	if (rtt->echo_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		while ((n = recv(ends[1], packet, sizeof(packet), 0)) > 0) {
			if (send(ends[1], packet, (size_t)n, MSG_NOSIGNAL) != n)
				break;
		}
		_exit(0);
	}
	close(ends[1]);
	rtt->echo = ends[0];
	return 0;
}

static int start_eventfd_peer(struct rtt *rtt)
{
	eventfd_t count;

	rtt->call_eventfd = eventfd(0, EFD_CLOEXEC);
	rtt->reply_eventfd = eventfd(0, EFD_CLOEXEC);
	if (rtt->call_eventfd < 0 || rtt->reply_eventfd < 0)
		return -errno;
	rtt->eventfd_pid = fork();
	if (rtt->eventfd_pid < 0)
		return -errno;
	if (rtt->eventfd_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (eventfd_read(rtt->call_eventfd, &count) == 0 &&
		       eventfd_write(rtt->reply_eventfd, 1) == 0)
			;
		_exit(0);
	}
	return 0;
}

/* Opens a client; its request has one query, one key and one head. */
static int open_client(struct client *client, const char *socket, uint32_t flags, uint64_t spin_ns)
{
	static const int64_t shape[4] = { 1, 1, 1, 8 };
	struct fa_options options = { .size = sizeof(options),
		                      .name = "fabench rtt",
		                      .socket = socket,
		                      .flags = flags,
		                      .spin_ns = spin_ns };
	struct fa_tensor *tensors[] = { &client->noop.q, &client->noop.k, &client->noop.v,
		                        &client->noop.out };
	int r;

	r = fa_connect(&options, &client->client);
	if (r == 0)
		r = fa_buffer_new(client->client, 4096, 0, &client->buffer);
	if (r < 0)
		return r;
	client->noop.size = sizeof(client->noop);
	for (uint64_t i = 0; i < 4; i++)
		fa_tensor_init(tensors[i], client->buffer, i * 64, FA_F32, 4, shape);
	return 0;
}

static void close_client(struct client *client)
{
	fa_buffer_free(client->buffer);
	fa_disconnect(client->client);
}

static int attend(struct client *client)
{
	return fa_attention(client->client, &client->noop, NULL);
}

static int trip(struct rtt *rtt, int kind)
{
	char packet[PACKET_BYTES] = { 0 };
	eventfd_t count;

	switch (kind) {
	case BARE:
		if (send(rtt->echo, packet, sizeof(packet), MSG_NOSIGNAL) != sizeof(packet) ||
		    recv(rtt->echo, packet, sizeof(packet), 0) != sizeof(packet))
			return -EIO;
		return 0;
	case PING:
		return fa_ping(rtt->by_socket.client);
	case NOOP:
		return attend(&rtt->by_socket);
	case RING_NOOP:
		return fa_marker(rtt->by_ring.client, 0, NULL, NULL);
	case RING_ATTENTION:
		return attend(&rtt->by_ring);
	case DOORBELL_BARE:
		return eventfd_write(rtt->call_eventfd, 1) < 0 ||
		                       eventfd_read(rtt->reply_eventfd, &count) < 0
		               ? -EIO
		               : 0;
	case DOORBELL_NOOP:
		return fa_marker(rtt->by_ring_no_spin.client, 0, NULL, NULL);
	default:
		return attend(&rtt->by_ring_no_spin);
	}
}

static void rest(void)
{
	(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ .tv_nsec = REST_NS }, NULL);
}

static size_t trips_of(int kind, size_t trips)
{
	return kinds[kind].rested ? (trips + RESTED_EVERY - 1) / RESTED_EVERY : trips;
}

static int measure(struct rtt *rtt, size_t blocks, size_t trips, uint64_t *samples[KINDS])
{
	int r;

	for (int kind = 0; kind < KINDS; kind++) {
		for (int i = 0; i < WARM_UP_TRIPS; i++) {
			r = trip(rtt, kind);
			if (r < 0)
				return r;
		}
	}
	for (size_t block = 0; block < blocks; block++) {
		for (int kind = 0; kind < KINDS; kind++) {
			size_t n = trips_of(kind, trips);

			for (size_t i = 0; i < n; i++) {
				uint64_t start;

				if (kinds[kind].rested)
					rest();
				start = fa_now_ns();
				r = trip(rtt, kind);
				if (r < 0)
					return r;
				samples[kind][block * n + i] = fa_now_ns() - start;
			}
		}
	}
	return 0;
}

static int report(struct fa_bench *bench, const char *placement, uint64_t *samples[KINDS],
                  size_t blocks, size_t trips)
{
	static const struct {
		const char *suffix;
		double percent;
	} points[] = { { "", 50 }, { "-p99", 99 } };
	double ns[KINDS];
	char name[64];
	int r = 0;

	for (size_t i = 0; i < 2 && r == 0; i++) {
		for (int kind = 0; kind < KINDS; kind++)
			ns[kind] = (double)fa_bench_percentile(
				samples[kind], blocks * trips_of(kind, trips), points[i].percent);
		for (int kind = 0; kind < KINDS && r == 0; kind++) {
			int peer = kinds[kind].peer;

			snprintf(name, sizeof(name), "rtt/%s%s%s", kinds[kind].name, placement,
			         points[i].suffix);
			r = fa_bench_add(bench, name, ns[kind] / 1e3, "us",
			                 kind == peer ? NULL : "bare",
			                 kind == peer ? 0 : ns[peer] / ns[kind]);
		}
	}
	return r;
}

static void stop_peers(struct rtt *rtt)
{
	/* This peer has a copy of the other peer's socket, so it must end first. */
	if (rtt->eventfd_pid > 0) {
		kill(rtt->eventfd_pid, SIGKILL);
		waitpid(rtt->eventfd_pid, NULL, 0);
	}
	if (rtt->echo >= 0) {
		close(rtt->echo);
		waitpid(rtt->echo_pid, NULL, 0);
	}
	if (rtt->call_eventfd >= 0)
		close(rtt->call_eventfd);
	if (rtt->reply_eventfd >= 0)
		close(rtt->reply_eventfd);
}

static int run(struct fa_bench *bench, const char *placement)
{
	size_t blocks = bench->quick ? 2 : BLOCKS, trips = bench->quick ? 50 : BLOCK_TRIPS;
	struct fa_bench_daemon daemon;
	struct rtt rtt = { .echo = -1, .call_eventfd = -1, .reply_eventfd = -1 };
	uint64_t *samples[KINDS] = { 0 };
	int r, stopped;

	r = fa_bench_daemon_start(bench, &daemon);
	if (r < 0)
		return r;
	r = start_echo(&rtt);
	if (r == 0)
		r = start_eventfd_peer(&rtt);
	if (r == 0)
		r = open_client(&rtt.by_socket, daemon.socket, FA_CONNECT_NO_RING, 0);
	if (r == 0)
		r = open_client(&rtt.by_ring, daemon.socket, 0, 0);
	if (r == 0)
		r = open_client(&rtt.by_ring_no_spin, daemon.socket, 0, 1);
	for (int kind = 0; kind < KINDS && r == 0; kind++) {
		samples[kind] = calloc(blocks * trips, sizeof(uint64_t));
		if (!samples[kind])
			r = -ENOMEM;
	}
	if (r == 0)
		r = measure(&rtt, blocks, trips, samples);
	if (r == 0)
		r = report(bench, placement, samples, blocks, trips);
	if (r < 0)
		fa_bench_log(bench, "fabench rtt: %s (%s)", strerror(-r), fa_error());

	for (int kind = 0; kind < KINDS; kind++)
		free(samples[kind]);
	close_client(&rtt.by_socket);
	close_client(&rtt.by_ring);
	close_client(&rtt.by_ring_no_spin);
	stop_peers(&rtt);
	stopped = fa_bench_daemon_stop(&daemon);
	if (stopped < 0)
		fa_bench_log(bench, "fabench rtt: the daemon did not exit cleanly");
	return r < 0 ? r : stopped;
}

int fa_bench_rtt(struct fa_bench *bench)
{
	cpu_set_t all, one;
	int r, first = 0;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return -errno;
	/* Only a private daemon can be pinned. */
	if (!bench->socket) {
		while (!CPU_ISSET(first, &all))
			++first;
		CPU_ZERO(&one);
		CPU_SET(first, &one);
		if (sched_setaffinity(0, sizeof(one), &one) < 0)
			return -errno;
		r = run(bench, "");
		if (sched_setaffinity(0, sizeof(all), &all) < 0)
			return -errno;
		if (r < 0)
			return r;
	}
	r = run(bench, "-unpinned");
	return r < 0 ? r : fa_bench_layers(bench);
}
