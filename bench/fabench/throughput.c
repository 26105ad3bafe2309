/*
 * throughput: many client processes, each with its share of small requests. Every answer is
 * checked. Also: fairness, growth of the daemon's memory, and its CPU time with many idle clients.
 */
#include "bench/fabench/bench.h"
#include "bench/fabench/daemon.h"

#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLIENTS 32
#define CLIENTS_MAX 64
#define REQUESTS 100000
#define DEPTH 16 /* requests in flight of a pipelining client */
#define NOOPS 2000000
#define NOOP_DEPTH 64
#define IDLE_CLIENTS 64
#define IDLE_MS 10000

#define KEYS 16
#define DIM 64

/* A client process's results, in shared memory. */
struct outcome {
	uint64_t ns;
	uint32_t correct;
	int status;
};

struct work {
	const char *socket;
	uint32_t requests; /* requests per client */
	uint32_t depth;
	int index;
	bool noop; /* requests are empty */
};

static void fill(float *values, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		values[i] = (float)(seed >> 8) / (1 << 23) - 1;
	}
}

static void compute(const float *q, const float *k, const float *v, double *ret_out)
{
	double weights[KEYS], sum = 0;

	memset(ret_out, 0, sizeof(double) * DIM);
	for (int j = 0; j < KEYS; j++) {
		double score = 0;

		for (int d = 0; d < DIM; d++)
			score += (double)q[d] * (double)k[j * DIM + d];
		weights[j] = exp(score / sqrt(DIM));
		sum += weights[j];
	}
	for (int j = 0; j < KEYS; j++) {
		for (int d = 0; d < DIM; d++)
			ret_out[d] += weights[j] / sum * (double)v[j * DIM + d];
	}
}

/* Counts the correct rows. A row was NaN before its request. */
static uint32_t count_correct(const float *out, uint32_t rows, const double *expected)
{
	uint32_t correct = 0;

	for (uint32_t i = 0; i < rows; i++) {
		int d = 0;

		while (d < DIM && fabs((double)out[i * DIM + (uint32_t)d] - expected[d]) < 1e-5)
			d++;
		correct += d == DIM;
	}
	return correct;
}

static int send_requests(struct fa_client *client, const struct work *work, struct fa_buffer *in,
                         struct fa_buffer *out)
{
	static const int64_t shape_q[4] = { 1, 1, 1, DIM }, shape_k[4] = { 1, KEYS, 1, DIM };
	struct fa_attention attention = { .size = sizeof(attention) };
	struct fa_ticket tickets[DEPTH];
	int r;

	fa_tensor_init(&attention.q, in, 0, FA_F32, 4, shape_q);
	fa_tensor_init(&attention.k, in, sizeof(float) * DIM, FA_F32, 4, shape_k);
	fa_tensor_init(&attention.v, in, sizeof(float) * DIM * (1 + KEYS), FA_F32, 4, shape_k);
	for (uint32_t i = 0; i < work->requests + work->depth; i++) {
		if (i >= work->depth) {
			r = fa_wait(client, &tickets[i % work->depth], UINT64_MAX, NULL);
			if (r < 0)
				return r;
		}
		if (i < work->requests) {
			fa_tensor_init(&attention.out, out, sizeof(float) * DIM * i, FA_F32, 4,
			               shape_q);
			r = fa_attention(client, &attention, &tickets[i % work->depth]);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* The ticket shows whether an empty request kept its place. */
static int send_empty_requests(struct fa_client *client, const struct work *work,
                               struct outcome *outcome)
{
	struct fa_ticket tickets[NOOP_DEPTH];
	int r;

	for (uint32_t i = 0; i < work->requests + work->depth; i++) {
		struct fa_ticket *ticket = &tickets[i % work->depth];

		if (i >= work->depth) {
			r = fa_wait(client, ticket, UINT64_MAX, NULL);
			if (r < 0)
				return r;
			outcome->correct += ticket->value == i - work->depth + 2;
		}
		if (i < work->requests) {
			r = fa_marker(client, 0, NULL, ticket);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* Runs a client in a child process. All clients begin when the parent closes @start. */
static int run_client(const struct work *work, int ready, int start, struct outcome *outcome)
{
	struct fa_options options = {
		.size = sizeof(options),
		.socket = work->socket,
		.name = "fabench throughput",
	};
	struct fa_client *client = NULL;
	struct fa_buffer *in = NULL, *out = NULL;
	double expected[DIM];
	uint64_t begin;
	float *data;
	char byte = 0;
	int r;

	r = fa_connect(&options, &client);
	if (r == 0)
		r = fa_buffer_new(client, sizeof(float) * DIM * (1 + 2 * KEYS), 0, &in);
	if (r == 0)
		r = fa_buffer_new(client, work->noop ? 1 : sizeof(float) * DIM * work->requests, 0,
		                  &out);
	if (r == 0)
		r = fa_marker(client, 0, NULL, NULL); /* the first request sets up the stream */
	if (r == 0) {
		data = fa_buffer_data(in);
		fill(data, DIM * (1 + 2 * KEYS), (uint32_t)work->index);
		compute(data, data + DIM, data + (size_t)DIM * (1 + KEYS), expected);
		memset(fa_buffer_data(out), 0xff, fa_buffer_bytes(out));
	}
	if (write(ready, &byte, 1) != 1 || read(start, &byte, 1) != 0)
		return -EPIPE;
	if (r < 0)
		return r;

	begin = fa_now_ns();
	r = work->noop ? send_empty_requests(client, work, outcome)
	               : send_requests(client, work, in, out);
	outcome->ns = fa_now_ns() - begin;
	if (!work->noop)
		outcome->correct = count_correct(fa_buffer_data(out), work->requests, expected);
	if (r < 0)
		fprintf(stderr, "fabench throughput: client %d: %s\n", work->index, fa_error());
	fa_buffer_free(in);
	fa_buffer_free(out);
	fa_disconnect(client);
	return r;
}

static int run_clients(struct work work, int clients, struct outcome *outcomes)
{
	pid_t pids[CLIENTS_MAX];
	int ready[2], start[2], r = 0;
	char byte;

	if (pipe(ready) < 0)
		return -errno;
	if (pipe(start) < 0) {
		r = -errno;
		close(ready[0]);
		close(ready[1]);
		return r;
	}
	for (int i = 0; i < clients; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(start[1]);
			work.index = i;
			outcomes[i].status = run_client(&work, ready[1], start[0], &outcomes[i]);
			_exit(0);
		}
		if (pids[i] < 0) {
			r = -errno;
			clients = i;
		}
	}
	close(ready[1]);
	for (int i = 0; i < clients && read(ready[0], &byte, 1) == 1; i++)
		;
	close(start[1]);
	for (int i = 0; i < clients; i++)
		waitpid(pids[i], NULL, 0);
	close(start[0]);
	close(ready[0]);
	return r;
}

/* Returns the growth of the daemon's memory. Waits a little, as another thread unmaps closed
 * sessions' memory with a delay. */
static double rss_growth_bytes(const struct fa_bench_daemon *daemon, uint64_t before)
{
	double growth = 0;

	for (int i = 0; i < 50; i++) {
		growth = (double)fa_bench_daemon_rss_bytes(daemon) - (double)before;
		if (growth <= 0)
			break;
		poll(NULL, 0, 10);
	}
	return growth;
}

/* Runs all clients and adds results. @others: prefix of all result names but the throughput's. */
static int measure(struct fa_bench *bench, struct work work, const char *name, const char *others,
                   int clients, const struct fa_bench_daemon *daemon)
{
	const uint32_t each = work.requests;
	uint32_t lost = 0;
	int r;
	uint64_t fastest = UINT64_MAX, slowest = 0, rss;
	struct outcome *outcomes;
	char full[64];

	outcomes = mmap(NULL, sizeof(*outcomes) * CLIENTS_MAX, PROT_READ | PROT_WRITE,
	                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (outcomes == MAP_FAILED)
		return -errno;
	/* In this first run the daemon allocates what it keeps. */
	r = run_clients(work, clients, outcomes);
	if (r == 0)
		r = fa_bench_daemon_settle(daemon);
	if (r < 0)
		goto out;
	memset(outcomes, 0, sizeof(*outcomes) * CLIENTS_MAX);
	rss = fa_bench_daemon_rss_bytes(daemon);
	r = run_clients(work, clients, outcomes);
	if (r == 0)
		r = fa_bench_daemon_settle(daemon);
	if (r < 0)
		goto out;
	for (int i = 0; i < clients; i++) {
		if (outcomes[i].status < 0)
			r = outcomes[i].status;
		lost += each - outcomes[i].correct;
		slowest = outcomes[i].ns > slowest ? outcomes[i].ns : slowest;
		fastest = outcomes[i].ns < fastest ? outcomes[i].ns : fastest;
	}
	if (r < 0)
		goto out;

	snprintf(full, sizeof(full), "throughput/%s/%d-clients", name, clients);
	r = fa_bench_add(bench, full, (double)each * clients / ((double)slowest / 1e9), "req/s",
	                 NULL, 0);
	snprintf(full, sizeof(full), "throughput/%s/lost", others);
	if (r == 0)
		r = fa_bench_add(bench, full, lost, "requests", NULL, 0);
	snprintf(full, sizeof(full), "throughput/%s/slowest-client", others);
	if (r == 0)
		r = fa_bench_add(bench, full, (double)slowest / 1e6, "ms", "fastest",
		                 (double)fastest / (double)slowest);
	snprintf(full, sizeof(full), "throughput/%s/rss-growth", others);
	if (r == 0)
		r = fa_bench_add(bench, full, rss_growth_bytes(daemon, rss) / 1024, "KiB", NULL, 0);
	if (r == 0 && lost > 0) {
		fa_bench_log(bench, "fabench throughput: %u requests were lost", lost);
		r = -EIO;
	}
out:
	munmap(outcomes, sizeof(*outcomes) * CLIENTS_MAX);
	return r;
}

static int measure_attention(struct fa_bench *bench, const struct fa_bench_daemon *daemon,
                             const char *name, uint32_t depth)
{
	const int clients = bench->quick ? 4 : CLIENTS;
	const struct work work = {
		.socket = daemon->socket,
		.requests = (bench->quick ? 400u : REQUESTS) / (uint32_t)clients,
		.depth = depth,
	};

	return measure(bench, work, name, name, clients, daemon);
}

static int measure_noop(struct fa_bench *bench, const struct fa_bench_daemon *daemon, int clients)
{
	const struct work work = {
		.socket = daemon->socket,
		.requests = (bench->quick ? 6400u : NOOPS) / (uint32_t)clients,
		.depth = NOOP_DEPTH,
		.noop = true,
	};
	char others[48];

	snprintf(others, sizeof(others), "ring/noop/%d-clients", clients);
	return measure(bench, work, "ring/noop", others, clients, daemon);
}

static int measure_idle(struct fa_bench *bench, const struct fa_bench_daemon *daemon)
{
	int idle_ms = bench->quick ? 300 : IDLE_MS, n = 0, r = 0;
	struct fa_options options = {
		.size = sizeof(options),
		.socket = daemon->socket,
		.name = "fabench idle",
	};
	struct fa_client *clients[IDLE_CLIENTS];
	uint64_t cpu, begin;
	double percent;

	for (; n < IDLE_CLIENTS; n++) {
		r = fa_connect(&options, &clients[n]);
		if (r < 0)
			break;
		r = fa_ping(clients[n]);
		if (r < 0)
			break;
	}
	if (r == 0) {
		poll(NULL, 0, 200); /* let clients finish connecting */
		begin = fa_now_ns();
		cpu = fa_bench_daemon_cpu_ns(daemon);
		poll(NULL, 0, idle_ms);
		percent = (double)(fa_bench_daemon_cpu_ns(daemon) - cpu) * 100 /
		          (double)(fa_now_ns() - begin);
		r = fa_bench_add(bench, "idle/cpu/64-clients", percent, "% core", NULL, 0);
	}
	while (n > 0)
		fa_disconnect(clients[--n]);
	return r;
}

int fa_bench_throughput(struct fa_bench *bench)
{
	struct fa_bench_daemon daemon;
	int r, stopped;

	r = fa_bench_daemon_start(bench, &daemon);
	if (r < 0)
		return r;
	r = measure_attention(bench, &daemon, "attention", 1);
	if (r == 0)
		r = measure_attention(bench, &daemon, "attention-pipelined", DEPTH);
	if (r == 0)
		r = measure_noop(bench, &daemon, 8);
	if (r == 0)
		r = measure_noop(bench, &daemon, CLIENTS_MAX);
	if (r == 0)
		r = measure_idle(bench, &daemon);
	if (r < 0)
		fa_bench_log(bench, "fabench throughput: %s", strerror(-r));
	stopped = fa_bench_daemon_stop(&daemon);
	if (stopped < 0)
		fa_bench_log(bench, "fabench throughput: the daemon did not exit cleanly");
	return r < 0 ? r : stopped;
}
