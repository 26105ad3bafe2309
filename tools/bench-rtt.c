/*
 * rtt: what one request costs from the call to the answer, against a bare
 * ping-pong of packets of the same size between two processes on the same kind of
 * socket. Short blocks of each take turns, so that all see the same machine.
 *
 * Where the scheduler puts two processes that talk decides more than what they do:
 * to wake a processor that idles can cost several times the trip. So everybody is
 * held on one processor first, where only the work counts; then all are let loose,
 * which is what a user sees ("-unpinned").
 */
#include "tools/bench-daemon.h"
#include "tools/bench.h"

#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PACKET_BYTES 48 /* about what a Ping or a Reply takes */
#define BLOCKS 40
#define BLOCK_TRIPS 1000
#define WARM_UP_TRIPS 100

enum {
	BARE,
	PING,
	NOOP,
	KINDS
};

struct rtt {
	int echo; /* the bare peer's socket */
	pid_t echo_pid;
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fa_attention noop;
};

/* The bare peer sends back whatever comes. */
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

/* One query, one key, one head: as little as attention can be. */
static int make_noop(struct rtt *rtt)
{
	static const int64_t shape[4] = { 1, 1, 1, 8 };
	struct fa_tensor *tensors[] = { &rtt->noop.q, &rtt->noop.k, &rtt->noop.v, &rtt->noop.out };
	int r;

	r = fa_buffer_new(rtt->client, 4096, 0, &rtt->buffer);
	if (r < 0)
		return r;
	rtt->noop.size = sizeof(rtt->noop);
	for (uint64_t i = 0; i < 4; i++)
		fa_tensor_init(tensors[i], rtt->buffer, i * 64, FA_F32, 4, shape);
	return 0;
}

static int trip(struct rtt *rtt, int kind)
{
	char packet[PACKET_BYTES] = { 0 };

	switch (kind) {
	case BARE:
		if (send(rtt->echo, packet, sizeof(packet), MSG_NOSIGNAL) != sizeof(packet) ||
		    recv(rtt->echo, packet, sizeof(packet), 0) != sizeof(packet))
			return -EIO;
		return 0;
	case PING:
		return fa_ping(rtt->client);
	default:
		return fa_attention(rtt->client, &rtt->noop, NULL);
	}
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
			for (size_t i = 0; i < trips; i++) {
				uint64_t start = fa_now_ns();

				r = trip(rtt, kind);
				if (r < 0)
					return r;
				samples[kind][block * trips + i] = fa_now_ns() - start;
			}
		}
	}
	return 0;
}

static int report(struct fa_bench *bench, const char *placement, uint64_t *samples[KINDS], size_t n)
{
	static const char *const names[KINDS] = { "bare", "ping", "noop" };
	static const struct {
		const char *suffix;
		double percent;
	} points[] = { { "", 50 }, { "-p99", 99 } };
	char name[64];
	int r = 0;

	for (size_t i = 0; i < 2 && r == 0; i++) {
		double bare = (double)fa_bench_percentile(samples[BARE], n, points[i].percent);

		for (int kind = 0; kind < KINDS && r == 0; kind++) {
			double ns = (double)fa_bench_percentile(samples[kind], n,
			                                        points[i].percent);

			snprintf(name, sizeof(name), "rtt/socket/%s%s%s", names[kind], placement,
			         points[i].suffix);
			r = fa_bench_add(bench, name, ns / 1e3, "us", kind == BARE ? NULL : "bare",
			                 kind == BARE ? 0 : bare / ns);
		}
	}
	return r;
}

static int run(struct fa_bench *bench, const char *placement)
{
	size_t blocks = bench->quick ? 2 : BLOCKS, trips = bench->quick ? 50 : BLOCK_TRIPS;
	struct fa_bench_daemon daemon;
	struct fa_options options = { .size = sizeof(options), .name = "fabench rtt" };
	struct rtt rtt = { .echo = -1 };
	uint64_t *samples[KINDS] = { 0 };
	int r, stopped;

	r = fa_bench_daemon_start(bench, &daemon);
	if (r < 0)
		return r;
	options.socket = daemon.socket;
	r = start_echo(&rtt);
	if (r == 0)
		r = fa_connect(&options, &rtt.client);
	if (r == 0)
		r = make_noop(&rtt);
	for (int kind = 0; kind < KINDS && r == 0; kind++) {
		samples[kind] = calloc(blocks * trips, sizeof(uint64_t));
		if (!samples[kind])
			r = -ENOMEM;
	}
	if (r == 0)
		r = measure(&rtt, blocks, trips, samples);
	if (r == 0)
		r = report(bench, placement, samples, blocks * trips);
	if (r < 0)
		fa_bench_say(bench, "fabench rtt: %s (%s)", strerror(-r), fa_error());

	for (int kind = 0; kind < KINDS; kind++)
		free(samples[kind]);
	fa_buffer_free(rtt.buffer);
	fa_disconnect(rtt.client);
	if (rtt.echo >= 0) {
		close(rtt.echo);
		waitpid(rtt.echo_pid, NULL, 0);
	}
	stopped = fa_bench_daemon_stop(&daemon);
	if (stopped < 0)
		fa_bench_say(bench, "fabench rtt: the daemon did not end well");
	return r < 0 ? r : stopped;
}

int fa_bench_rtt(struct fa_bench *bench)
{
	cpu_set_t all, one;
	int r, first = 0;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return -errno;
	/* A daemon of somebody else's stays where it is. */
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
	return run(bench, "-unpinned");
}
