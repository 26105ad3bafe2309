/*
 * request: a decode request of one sequence of 1,024 tokens through the daemon, against the same
 * kernels in this process. Blocks alternate; bits must be equal.
 *
 *   inproc    launch and cuStreamSynchronize
 *   socket    through the daemon, by socket
 *   ring      by ring, both sides awake; its parts: ring-arrival (until the daemon has the
 *             request), ring-dispatch (until the launch), ring-run (until the daemon sees the end)
 *   doorbell  by ring after both sides slept; against an eventfd ping-pong plus inproc
 *   noop      an empty request
 *   append    also writes the new token's K and V
 *   step      32 layers by 32 calls or by one, against 32 times the kernels; "submit": duration
 *             of the one call
 *   pair      a client's kernel, then the daemon's, repeatedly, against both in one stream:
 *             ordered by the client's CPU, by a timeline, or by a timeline and one request for
 *             32 pairs; with minimal kernels ("tiny") the ordering dominates
 */
#include "bench/fabench/bench.h"
#include "bench/fabench/daemon.h"
#include "bench/lib/decode-client.h"

#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAYERS 32
#define SHAPE "decode-b1-c1024"

static const struct fa_inproc_decode_shape usual = {
	.layers = LAYERS,
	.heads = 32,
	.kv_heads = 8,
	.dim = 128,
	.page_tokens = 64,
	.batch = 1,
	.length = 1024,
};

/* A step with as many keys as a thread block reads at once. */
static const struct fa_inproc_decode_shape tiny = {
	.layers = LAYERS,
	.heads = 1,
	.kv_heads = 1,
	.dim = 128,
	.page_tokens = 64,
	.batch = 1,
	.length = 16,
};

#define BLOCKS 40
#define BLOCK_TRIPS 500
#define RESTED_TRIPS 25
#define REST_US 3000
#define STEP_TRIPS 10
#define PAIRS 200
#define PAIRS_QUICK 3
#define WARM_UP_TRIPS 200

enum path {
	INPROC,
	SOCKET,
	RING,
	PATHS
};

static const char *const path_names[PATHS] = { "inproc", "socket", "ring" };

struct request_bench {
	struct fa_bench *bench;
	struct fa_inproc_gpu *gpu;
	struct fa_inproc_decode *decode;
	struct fa_error error;
	struct fa_decode_tensors tensors;
	struct fa_decode_client clients[PATHS]; /* a client per path; none for INPROC */
	bool append;                            /* trip() appends */
	int echo[2];                            /* eventfds to the bare peer and back */
	pid_t echo_pid;
};

static int fail_client(struct request_bench *b, const char *what, int r)
{
	return fa_fail(&b->error, r, "%s: %s", what, fa_error());
}

/* ---- one request by each path */

static int synchronise(struct request_bench *b)
{
	return b->gpu->driver.cuStreamSynchronize(b->gpu->stream) == CUDA_SUCCESS
	               ? 0
	               : fa_fail(&b->error, -EIO, "the GPU fails");
}

static int attend(struct request_bench *b, struct fa_decode_client *c, uint32_t layer, bool append,
                  const struct fa_gates *gates, struct fa_ticket *ret_ticket)
{
	return fa_decode_client_attend(c, layer, append, gates, &b->error, ret_ticket);
}

static int trip(struct request_bench *b, enum path path)
{
	int r;

	if (path != INPROC)
		return attend(b, &b->clients[path], 0, b->append, NULL, NULL);
	r = fa_inproc_decode_launch(b->decode, 0, b->append, &b->error);
	return r < 0 ? r : synchronise(b);
}

static int step(struct request_bench *b, enum path path)
{
	struct fa_decode_client *c = &b->clients[path];
	struct fa_ticket ticket;
	int r = 0;

	for (uint32_t layer = 0; layer < LAYERS && r == 0; layer++)
		r = path == INPROC
		            ? fa_inproc_decode_launch(b->decode, (int32_t)layer, true, &b->error)
		            : attend(b, c, layer, true, NULL, &ticket);
	if (r < 0 || path == INPROC)
		return r < 0 ? r : synchronise(b);
	r = fa_wait(c->client, &ticket, UINT64_MAX, NULL);
	return r < 0 ? fail_client(b, "a step", r) : 0;
}

static int ask_layers(struct request_bench *b, struct fa_decode_client *c,
                      const struct fa_gate *wait, const struct fa_gate *signal, bool append,
                      struct fa_ticket *ret_ticket)
{
	return fa_decode_client_attend_layers(c, LAYERS, wait, signal, append, &b->error,
	                                      ret_ticket);
}

static int step_layers(struct request_bench *b, enum path path)
{
	return path == INPROC ? step(b, path)
	                      : ask_layers(b, &b->clients[path], NULL, NULL, true, NULL);
}

/* Runs pairs whose order the client's CPU enforces, by waiting between the kernels. */
static int pairs_by_cpu(struct request_bench *b, enum path path, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		r = fa_inproc_gpu_spin(b->gpu, 0);
		if (r == 0 && path == INPROC)
			r = fa_inproc_decode_launch(b->decode, 0, false, &b->error);
		else if (r == 0)
			r = synchronise(b);
		if (r == 0 && path != INPROC)
			r = attend(b, &b->clients[path], 0, false, NULL, NULL);
	}
	return r < 0 ? r : synchronise(b);
}

/* Enqueues the client's half of a pair: its kernel, the signal that lets the daemon begin, and
 * the wait for the daemon's end. */
static int enqueue_half(struct request_bench *b, struct fa_decode_client *c, uint64_t value)
{
	int r;

	r = fa_inproc_gpu_spin(b->gpu, 0);
	if (r < 0)
		return fa_fail(&b->error, r, "the GPU fails");
	r = fa_timeline_enqueue_write(c->timeline, 0, value, b->gpu->stream);
	if (r == 0)
		r = fa_timeline_enqueue_wait(c->timeline, 0, value, b->gpu->stream);
	return r < 0 ? fail_client(b, "a timeline", r) : 0;
}

/* Runs pairs ordered by a timeline: only the daemon's CPU waits for a kernel. */
static int pairs_by_timeline(struct request_bench *b, enum path path, size_t n)
{
	struct fa_decode_client *c = &b->clients[path];
	struct fa_ticket ticket;
	int r = 0;

	if (path == INPROC)
		return pairs_by_cpu(b, path, n);
	for (size_t i = 0; i < n && r == 0; i++) {
		const struct fa_gate gate = { .slot = 0, .value = ++c->value };
		const struct fa_gates gates = { .size = sizeof(gates),
			                        .n_waits = 1,
			                        .waits = &gate,
			                        .n_signals = 1,
			                        .signals = &gate };

		r = attend(b, c, 0, false, &gates, &ticket);
		if (r == 0)
			r = enqueue_half(b, c, gate.value);
	}
	return r < 0 ? r : synchronise(b);
}

static int pairs_by_layers(struct request_bench *b, enum path path)
{
	struct fa_decode_client *c = &b->clients[path];
	const struct fa_gate gate = { .slot = 0, .value = c->value + 1 };
	struct fa_ticket ticket;
	int r;

	if (path == INPROC)
		return pairs_by_cpu(b, path, LAYERS);
	r = ask_layers(b, c, &gate, &gate, false, &ticket);
	for (int i = 0; i < LAYERS && r == 0; i++)
		r = enqueue_half(b, c, ++c->value);
	return r < 0 ? r : synchronise(b);
}

static int compare_results(struct request_bench *b)
{
	const struct fa_cudriver *driver = &b->gpu->driver;
	const CUdeviceptr out = b->tensors.at + b->tensors.out_at;
	const size_t bytes = b->tensors.q_bytes;
	unsigned char *results = malloc(PATHS * bytes), *result = results;
	int r = results ? 0 : fa_fail(&b->error, -ENOMEM, "no memory");

	b->append = true;
	for (int path = 0; path < PATHS && r == 0; path++, result += bytes) {
		if (driver->cuMemsetD8(out, 0xff, bytes) != CUDA_SUCCESS ||
		    driver->cuCtxSynchronize() != CUDA_SUCCESS)
			r = fa_fail(&b->error, -EIO, "the GPU fails");
		if (r == 0)
			r = trip(b, (enum path)path);
		if (r == 0 && driver->cuMemcpyDtoH(result, out, bytes) != CUDA_SUCCESS)
			r = fa_fail(&b->error, -EIO, "the GPU fails");
		if (r == 0 && memcmp(result, results, bytes) != 0)
			r = fa_fail(&b->error, -EIO, "%s: the result differs from the kernel's",
			            path_names[path]);
	}
	free(results);
	return r;
}

/* ---- the bare peer of doorbell */

static int start_echo(struct request_bench *b)
{
	eventfd_t count;

	for (int i = 0; i < 2; i++) {
		b->echo[i] = eventfd(0, EFD_CLOEXEC);
		if (b->echo[i] < 0)
			return fa_fail(&b->error, -errno, "eventfd: %s", strerror(errno));
	}
	b->echo_pid = fork();
	if (b->echo_pid < 0)
		return fa_fail(&b->error, -errno, "fork: %s", strerror(errno));
	if (b->echo_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (eventfd_read(b->echo[0], &count) == 0 && eventfd_write(b->echo[1], 1) == 0)
			;
		_exit(0);
	}
	return 0;
}

static void stop_echo(struct request_bench *b)
{
	if (b->echo_pid > 0) {
		kill(b->echo_pid, SIGKILL);
		waitpid(b->echo_pid, NULL, 0);
	}
	for (int i = 0; i < 2; i++)
		if (b->echo[i] > 0)
			close(b->echo[i]);
}

static int echo_trip(struct request_bench *b)
{
	eventfd_t count;

	if (eventfd_write(b->echo[0], 1) < 0 || eventfd_read(b->echo[1], &count) < 0)
		return fa_fail(&b->error, -EIO, "the bare peer ended");
	return 0;
}

/* ---- measuring */

struct samples {
	uint64_t *ns[PATHS];
	size_t n;
};

static int samples_new(struct request_bench *b, size_t n, struct samples *ret_samples)
{
	*ret_samples = (struct samples){ .n = n };
	for (int path = 0; path < PATHS; path++) {
		ret_samples->ns[path] = calloc(n, sizeof(uint64_t));
		if (!ret_samples->ns[path])
			return fa_fail(&b->error, -ENOMEM, "no memory");
	}
	return 0;
}

static void samples_free(struct samples *samples)
{
	for (int path = 0; path < PATHS; path++)
		free(samples->ns[path]);
}

/* Adds a result. @scale: nanoseconds per unit. */
static int report(struct request_bench *b, const char *name, const char *unit, double scale,
                  uint64_t *ns, const char *peer, uint64_t *peer_ns, size_t n)
{
	static const struct {
		const char *suffix;
		double percent;
	} points[] = { { "", 50 }, { "-p99", 99 } };
	char full[96];
	int r = 0;

	for (size_t i = 0; i < 2 && r == 0; i++) {
		double ours = (double)fa_bench_percentile(ns, n, points[i].percent) / scale;
		double theirs = 0;

		if (peer)
			theirs = (double)fa_bench_percentile(peer_ns, n, points[i].percent) / scale;
		snprintf(full, sizeof(full), "%s%s%s", name, b->bench->mps ? "-mps" : "",
		         points[i].suffix);
		r = fa_bench_add(b->bench, full, ours, unit, peer, peer ? theirs / ours : 0);
	}
	return r < 0 ? fa_fail(&b->error, r, "no memory") : 0;
}

static int report_paths(struct request_bench *b, const char *prefix, enum path peer, double per,
                        struct samples *samples)
{
	char name[80];
	int r = 0;

	for (int path = (int)peer; path < PATHS && r == 0; path++) {
		snprintf(name, sizeof(name), "%s/%s", prefix, path_names[path]);
		r = report(b, name, "us", 1e3 * per, samples->ns[path],
		           path == (int)peer ? NULL : path_names[peer], samples->ns[peer],
		           samples->n);
	}
	return r;
}

/* Measures the paths from @first on, in blocks that alternate. A call of @run is one sample of @per
 * units, and times are reported per unit. */
static int measure(struct request_bench *b, const char *prefix, enum path first,
                   int (*run)(struct request_bench *b, enum path path), size_t block_trips,
                   size_t per)
{
	const size_t blocks = b->bench->quick ? 1 : BLOCKS;
	const size_t n = b->bench->quick ? (block_trips + 99) / 100 : block_trips;
	const size_t warm_up = b->bench->quick ? 0 : WARM_UP_TRIPS;
	struct samples samples;
	int r;

	r = samples_new(b, blocks * n, &samples);
	for (int path = (int)first; path < PATHS && r == 0; path++)
		for (size_t i = 0; i < n && i < warm_up && r == 0; i++)
			r = run(b, (enum path)path);
	for (size_t block = 0; block < blocks && r == 0; block++)
		for (int path = (int)first; path < PATHS && r == 0; path++)
			for (size_t i = 0; i < n && r == 0; i++) {
				const uint64_t start_ns = fa_now_ns();

				r = run(b, (enum path)path);
				samples.ns[path][block * n + i] = fa_now_ns() - start_ns;
			}
	if (r == 0)
		r = report_paths(b, prefix, first, (double)per, &samples);
	samples_free(&samples);
	return r;
}

/* Measures requests before each of which both sides sleep. */
static int measure_doorbell(struct request_bench *b, const char *socket)
{
	const size_t n = b->bench->quick ? 10 : BLOCKS * RESTED_TRIPS;
	struct fa_decode_client c = { 0 };
	struct samples samples;
	int r;

	r = samples_new(b, n, &samples);
	if (r == 0)
		r = fa_decode_client_open(&b->tensors, socket, 0, 1, &b->error, &c);
	b->append = false;
	for (size_t i = 0; i < n && r == 0; i++) {
		uint64_t start_ns;

		usleep(REST_US);
		start_ns = fa_now_ns();
		r = attend(b, &c, 0, false, NULL, NULL);
		samples.ns[RING][i] = fa_now_ns() - start_ns;
		usleep(REST_US);
		start_ns = fa_now_ns();
		if (r == 0)
			r = echo_trip(b);
		if (r == 0)
			r = trip(b, INPROC);
		samples.ns[INPROC][i] = fa_now_ns() - start_ns;
	}
	if (r == 0)
		r = report(b, "request/" SHAPE "/eventfd-and-inproc", "us", 1e3, samples.ns[INPROC],
		           NULL, NULL, n);
	if (r == 0)
		r = report(b, "request/" SHAPE "/doorbell", "us", 1e3, samples.ns[RING],
		           "eventfd-and-inproc", samples.ns[INPROC], n);
	fa_decode_client_close(&c);
	samples_free(&samples);
	return r;
}

static size_t pairs_of(const struct request_bench *b)
{
	return b->bench->quick ? PAIRS_QUICK : PAIRS;
}

static int pairs(struct request_bench *b, enum path path)
{
	return pairs_by_cpu(b, path, pairs_of(b));
}

static int timeline_pairs(struct request_bench *b, enum path path)
{
	return pairs_by_timeline(b, path, pairs_of(b));
}

static int measure_submit(struct request_bench *b)
{
	const size_t n = b->bench->quick ? 1 : BLOCKS * STEP_TRIPS;
	struct fa_decode_client *c = &b->clients[RING];
	uint64_t *ns = calloc(n, sizeof(*ns));
	struct fa_ticket ticket;
	int r = ns ? 0 : fa_fail(&b->error, -ENOMEM, "no memory");

	for (size_t i = 0; i < n && r == 0; i++) {
		const uint64_t start_ns = fa_now_ns();

		r = ask_layers(b, c, NULL, NULL, true, &ticket);
		ns[i] = fa_now_ns() - start_ns;
		if (r == 0) {
			r = fa_wait(c->client, &ticket, UINT64_MAX, NULL);
			if (r < 0)
				fail_client(b, "the layers of a step", r);
		}
	}
	if (r == 0)
		r = report(b, "step/" SHAPE "-l32/layers-submit", "us", 1e3, ns, NULL, NULL, n);
	free(ns);
	return r;
}

static int measure_dispatch(struct request_bench *b)
{
	const size_t n = b->bench->quick ? 1 : BLOCKS * BLOCK_TRIPS;
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_decode_client *c = &b->clients[RING];
	uint64_t *arrival_ns = calloc(n, sizeof(*arrival_ns));
	uint64_t *launch_ns = calloc(n, sizeof(*launch_ns));
	uint64_t *run_ns = calloc(n, sizeof(*run_ns));
	struct fa_ticket ticket;
	int r = arrival_ns && launch_ns && run_ns ? 0 : fa_fail(&b->error, -ENOMEM, "no memory");

	for (size_t i = 0; i < n && r == 0; i++) {
		const uint64_t start_ns = fa_now_ns();

		r = attend(b, c, 0, false, NULL, &ticket);
		if (r == 0) {
			r = fa_wait(c->client, &ticket, UINT64_MAX, &completion);
			if (r < 0)
				fail_client(b, "a request", r);
		}
		arrival_ns[i] = completion.queued_ns - start_ns;
		launch_ns[i] = completion.started_ns - completion.queued_ns;
		run_ns[i] = completion.finished_ns - completion.started_ns;
	}
	if (r == 0)
		r = report(b, "request/" SHAPE "/ring-arrival", "us", 1e3, arrival_ns, NULL, NULL,
		           n);
	if (r == 0)
		r = report(b, "request/" SHAPE "/ring-dispatch", "us", 1e3, launch_ns, NULL, NULL,
		           n);
	if (r == 0)
		r = report(b, "request/" SHAPE "/ring-run", "us", 1e3, run_ns, NULL, NULL, n);
	free(arrival_ns);
	free(launch_ns);
	free(run_ns);
	return r;
}

static int noop(struct request_bench *b, enum path path)
{
	const struct fa_decode_client *c = &b->clients[path];
	int r = 0;

	if (path != INPROC)
		r = fa_marker(c->client, c->attend.stream, NULL, NULL);
	return r < 0 ? fail_client(b, "a marker", r) : 0;
}

static int check_ring(struct request_bench *b)
{
	struct fa_info info = { .size = sizeof(info) };
	const int r = fa_info(b->clients[RING].client, &info);

	if (r == 0 && !info.ring_bytes)
		return fa_fail(&b->error, -EIO, "the daemon offers no ring");
	return r;
}

static int measure_pairs(struct request_bench *b, const char *cpu, const char *timeline,
                         const char *layers)
{
	int r;

	r = measure(b, cpu, INPROC, pairs, 1, pairs_of(b));
	if (r == 0)
		r = measure(b, timeline, INPROC, timeline_pairs, 1, pairs_of(b));
	if (r == 0)
		r = measure(b, layers, INPROC, pairs_by_layers, 1, LAYERS);
	return r;
}

static int measure_usual(struct request_bench *b, const char *socket)
{
	int r;

	r = compare_results(b);
	if (r == 0)
		r = check_ring(b);
	if (r == 0)
		r = measure(b, "request/noop", SOCKET, noop, BLOCK_TRIPS, 1);
	b->append = false;
	if (r == 0)
		r = measure(b, "request/" SHAPE, INPROC, trip, BLOCK_TRIPS, 1);
	if (r == 0)
		r = measure_dispatch(b);
	b->append = true;
	if (r == 0)
		r = measure(b, "request/" SHAPE "-append", INPROC, trip, BLOCK_TRIPS, 1);
	if (r == 0)
		r = measure(b, "step/" SHAPE "-l32/attend", INPROC, step, STEP_TRIPS, 1);
	if (r == 0)
		r = measure(b, "step/" SHAPE "-l32/layers", INPROC, step_layers, STEP_TRIPS, 1);
	if (r == 0)
		r = measure_submit(b);
	if (r == 0)
		r = measure_doorbell(b, socket);
	if (r == 0)
		r = measure_pairs(b, "pair/" SHAPE "/cpu", "pair/" SHAPE "/timeline",
		                  "pair/" SHAPE "/layers");
	return r;
}

static int measure_tiny(struct request_bench *b, const char *socket)
{
	int r;

	r = compare_results(b);
	return r < 0 ? r
	             : measure_pairs(b, "pair/tiny/cpu", "pair/tiny/timeline", "pair/tiny/layers");
}

static int run(struct request_bench *b, const struct fa_inproc_decode_shape *shape,
               int (*measure_all)(struct request_bench *b, const char *socket))
{
	struct fa_inproc_decode_tensors tensors;
	struct fa_bench_daemon daemon;
	int r;

	r = fa_decode_tensors_new(b->gpu, shape, &b->error, &b->tensors);
	if (r < 0)
		return r;
	tensors = fa_decode_tensors_at(&b->tensors);
	r = fa_inproc_decode_new(b->gpu, shape, &tensors, &b->error, &b->decode);
	if (r == 0) {
		r = fa_bench_daemon_start(b->bench, &daemon);
		if (r < 0)
			fa_fail(&b->error, r, "the daemon does not start");
	}
	if (r == 0) {
		r = fa_decode_client_open(&b->tensors, daemon.socket, FA_CONNECT_NO_RING, 0,
		                          &b->error, &b->clients[SOCKET]);
		if (r == 0)
			r = fa_decode_client_open(&b->tensors, daemon.socket, 0, 0, &b->error,
			                          &b->clients[RING]);
		if (r == 0)
			r = measure_all(b, daemon.socket);
		for (int path = 0; path < PATHS; path++)
			fa_decode_client_close(&b->clients[path]);
		if (fa_bench_daemon_stop(&daemon) < 0 && r == 0)
			r = fa_fail(&b->error, -EIO, "the daemon did not exit cleanly");
	}
	b->decode = fa_inproc_decode_free(b->decode);
	fa_decode_tensors_free(b->gpu, &b->tensors);
	return r;
}

int fa_bench_request(struct fa_bench *bench)
{
	struct request_bench b = { .bench = bench, .echo = { -1, -1 } };
	int r;

	/* Forks first: a CUDA context does not survive fork(). */
	r = start_echo(&b);
	if (r == 0)
		r = fa_inproc_gpu_open(&b.error, &b.gpu);
	if (r == 0) {
		fa_bench_set_gpu(bench, b.gpu->name);
		r = run(&b, &usual, measure_usual);
	}
	if (r == 0)
		r = run(&b, &tiny, measure_tiny);
	if (r < 0)
		fprintf(stderr, "fabench request: %s\n", b.error.text);
	fa_inproc_gpu_close(b.gpu);
	stop_echo(&b);
	return r;
}
