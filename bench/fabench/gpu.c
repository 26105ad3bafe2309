/*
 * gpu: a request's cost to a GPU daemon beyond the kernel.
 *
 *   inproc  launch and synchronise in this process
 *   socket  the same kernel and tensors through the daemon
 *   storm   socket while another client registers and frees 1 GiB of host and of GPU memory in
 *           turn, against idle
 *   start   from starting the daemon to the first answer
 *
 * Blocks of inproc and socket alternate, and blocks of idle and storm.
 */
#include "bench/fabench/bench.h"
#include "bench/fabench/daemon.h"
#include "bench/lib/inproc-gpu.h"

#include "client/faclient.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HEADS 8
#define TOKENS 128
#define DIM 64
#define SHAPE "h8-d64-s128"
#define TENSOR_BYTES ((uint64_t)TOKENS * HEADS * DIM * 2)

#define BLOCKS 40
#define BLOCK_TRIPS 500
#define STORM_BLOCKS 8
#define STORM_BLOCK_TRIPS 8000
#define STORM_BYTES ((uint64_t)1 << 30)
#define STARTS 5
#define WARM_UP_TRIPS 200

enum {
	INPROC,
	SOCKET,
	KINDS
};

struct gpu_bench {
	struct fa_bench *bench;
	struct fa_inproc_gpu *gpu;
	struct fa_error error;
	CUdeviceptr tensors; /* q, k, v, out */
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fa_attention request;
	struct fa_attention_params params;
};

static uint16_t bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static int make_tensors(struct gpu_bench *g)
{
	const struct fa_cudriver *driver = &g->gpu->driver;
	uint16_t *values = malloc(3 * TENSOR_BYTES);
	uint64_t state = 1;
	CUresult result;

	if (!values)
		return fa_fail(&g->error, -ENOMEM, "no memory");
	for (size_t i = 0; i < 3 * TENSOR_BYTES / 2; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		values[i] = bf16((float)(int32_t)(state >> 32) / (float)(1u << 31) * 1.7f);
	}
	result = driver->cuMemAlloc(&g->tensors, 4 * TENSOR_BYTES);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemcpyHtoD(g->tensors, values, 3 * TENSOR_BYTES);
	if (result == CUDA_SUCCESS)
		result = driver->cuCtxSynchronize();
	free(values);
	return result == CUDA_SUCCESS
	               ? 0
	               : fa_cudriver_fail(driver, &g->error, result, "making tensors");
}

static void describe_params(struct gpu_bench *g)
{
	struct fa_attention_tensor tensors[4];

	for (int i = 0; i < 4; i++)
		tensors[i] = (struct fa_attention_tensor){
			.data = (void *)(uintptr_t)(g->tensors + (uint64_t)i * TENSOR_BYTES),
			.stride_token = HEADS * DIM,
			.stride_head = DIM,
		};
	g->params = (struct fa_attention_params){
		.dtype = FA_ATTENTION_BF16,
		.batch = 1,
		.heads = HEADS,
		.kv_heads = HEADS,
		.head_dim = DIM,
		.head_dim_v = DIM,
		.seqlen_q = TOKENS,
		.seqlen_k = TOKENS,
		.q = tensors[0],
		.k = tensors[1],
		.v = tensors[2],
		.out = tensors[3],
		.scale = 1 / sqrtf(DIM),
		.window_left = -1,
		.window_right = -1,
	};
}

static int connect_client(struct gpu_bench *g, const char *socket)
{
	static const int64_t shape[4] = { 1, TOKENS, HEADS, DIM };
	struct fa_options options = { .size = sizeof(options),
		                      .name = "fabench gpu",
		                      .socket = socket };
	struct fa_tensor *tensors[] = { &g->request.q, &g->request.k, &g->request.v,
		                        &g->request.out };
	int r;

	r = fa_connect(&options, &g->client);
	if (r == 0)
		r = fa_buffer_import_cuda(g->client, g->tensors, 4 * TENSOR_BYTES, 0, &g->buffer);
	if (r < 0)
		return fa_fail(&g->error, r, "%s", fa_error());
	g->request.size = sizeof(g->request);
	for (uint64_t i = 0; i < 4; i++)
		fa_tensor_init(tensors[i], g->buffer, i * TENSOR_BYTES, FA_BF16, 4, shape);
	return 0;
}

static void disconnect_client(struct gpu_bench *g)
{
	g->buffer = fa_buffer_free(g->buffer);
	g->client = fa_disconnect(g->client);
}

static int trip(struct gpu_bench *g, int kind)
{
	int r;

	if (kind == SOCKET) {
		r = fa_attention(g->client, &g->request, NULL);
		return r < 0 ? fa_fail(&g->error, r, "%s", fa_error()) : 0;
	}
	r = fa_inproc_gpu_launch(g->gpu, &g->params, &g->error);
	if (r < 0)
		return r;
	if (g->gpu->driver.cuStreamSynchronize(g->gpu->stream) != CUDA_SUCCESS)
		return fa_fail(&g->error, -EIO, "the GPU fails");
	return 0;
}

static int trips(struct gpu_bench *g, int kind, size_t n, uint64_t *ret_ns)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t start = fa_now_ns();
		int r = trip(g, kind);

		if (r < 0)
			return r;
		if (ret_ns)
			ret_ns[i] = fa_now_ns() - start;
	}
	return 0;
}

/* Compares results bit by bit, as both sides run the same kernel. */
static int compare_results(struct gpu_bench *g)
{
	const struct fa_cudriver *driver = &g->gpu->driver;
	unsigned char *outs[KINDS] = { malloc(TENSOR_BYTES), malloc(TENSOR_BYTES) };
	const CUdeviceptr out = g->tensors + 3 * TENSOR_BYTES;
	int r = 0;

	for (int kind = 0; kind < KINDS && r == 0; kind++) {
		if (!outs[kind] || driver->cuMemsetD8(out, 0xff, TENSOR_BYTES) != CUDA_SUCCESS ||
		    driver->cuCtxSynchronize() != CUDA_SUCCESS)
			r = fa_fail(&g->error, -EIO, "no memory");
		if (r == 0)
			r = trip(g, kind);
		if (r == 0 && driver->cuMemcpyDtoH(outs[kind], out, TENSOR_BYTES) != CUDA_SUCCESS)
			r = fa_fail(&g->error, -EIO, "the GPU fails");
	}
	if (r == 0 && memcmp(outs[INPROC], outs[SOCKET], TENSOR_BYTES) != 0)
		r = fa_fail(&g->error, -EIO, "the daemon's result differs from the kernel's");
	for (int kind = 0; kind < KINDS; kind++)
		free(outs[kind]);
	return r;
}

static int measure_trips(struct gpu_bench *g)
{
	const size_t blocks = g->bench->quick ? 2 : BLOCKS, n = g->bench->quick ? 50 : BLOCK_TRIPS;
	static const struct {
		const char *suffix;
		double percent;
	} points[] = { { "", 50 }, { "-p99", 99 } };
	uint64_t *samples[KINDS];
	char name[80];
	int r = 0;

	for (int kind = 0; kind < KINDS; kind++) {
		samples[kind] = calloc(blocks * n, sizeof(uint64_t));
		if (!samples[kind])
			r = fa_fail(&g->error, -ENOMEM, "no memory");
	}
	for (int kind = 0; kind < KINDS && r == 0; kind++)
		r = trips(g, kind, WARM_UP_TRIPS, NULL);
	for (size_t block = 0; block < blocks && r == 0; block++)
		for (int kind = 0; kind < KINDS && r == 0; kind++)
			r = trips(g, kind, n, samples[kind] + block * n);
	for (size_t i = 0; i < 2 && r == 0; i++) {
		double inproc = (double)fa_bench_percentile(samples[INPROC], blocks * n,
		                                            points[i].percent);
		double socket = (double)fa_bench_percentile(samples[SOCKET], blocks * n,
		                                            points[i].percent);

		snprintf(name, sizeof(name), "gpu/bf16/" SHAPE "/inproc%s", points[i].suffix);
		r = fa_bench_add(g->bench, name, inproc / 1e3, "us", NULL, 0);
		snprintf(name, sizeof(name), "gpu/bf16/" SHAPE "/socket%s", points[i].suffix);
		if (r == 0)
			r = fa_bench_add(g->bench, name, socket / 1e3, "us", "inproc",
			                 inproc / socket);
		snprintf(name, sizeof(name), "gpu/bf16/" SHAPE "/socket-over-inproc%s",
		         points[i].suffix);
		if (r == 0)
			r = fa_bench_add(g->bench, name, (socket - inproc) / 1e3, "us", NULL, 0);
	}
	for (int kind = 0; kind < KINDS; kind++)
		free(samples[kind]);
	return r;
}

/* ---- storm: a second process with its own CUDA context */

struct storm {
	const char *socket;
	int toggle, acknowledge; /* pipes that carry single bytes; end of file ends the storm */
};

static int storm_once(struct fa_client *client, int memfd, CUdeviceptr at)
{
	struct fa_buffer *buffer;
	int r;

	r = fa_buffer_import_fd(client, memfd, 0, STORM_BYTES, 0, &buffer);
	if (r < 0)
		return r;
	fa_buffer_free(buffer);
	r = fa_buffer_import_cuda(client, at, STORM_BYTES, 0, &buffer);
	if (r < 0)
		return r;
	fa_buffer_free(buffer);
	return fa_cuda_trim(client);
}

static int storm_run(const struct storm *storm)
{
	struct fa_options options = { .size = sizeof(options),
		                      .name = "fabench storm",
		                      .socket = storm->socket };
	struct fa_client *client;
	struct fa_error error;
	struct fa_inproc_gpu *gpu;
	CUdeviceptr at;
	bool running = false;
	uint64_t rounds = 0;
	char byte;
	int memfd;

	if (fa_inproc_gpu_open(&error, &gpu) < 0 || fa_connect(&options, &client) < 0 ||
	    fa_memfd_new("fabench", STORM_BYTES, true, &memfd) < 0 ||
	    gpu->driver.cuMemAlloc(&at, STORM_BYTES) != CUDA_SUCCESS)
		return 1;
	/* Creating a context disturbs everybody, so do it before measuring. */
	if (storm_once(client, memfd, at) < 0 || write(storm->acknowledge, "", 1) != 1)
		return 1;
	for (;;) {
		struct timespec none = { 0 };
		fd_set set;

		FD_ZERO(&set);
		FD_SET(storm->toggle, &set);
		if (pselect(storm->toggle + 1, &set, NULL, NULL, running ? &none : NULL, NULL) >
		    0) {
			if (read(storm->toggle, &byte, 1) != 1)
				break;
			running = !running;
			if (write(storm->acknowledge, &byte, 1) != 1)
				return 1;
		}
		if (running) {
			if (storm_once(client, memfd, at) < 0) {
				fprintf(stderr, "fabench gpu: the storm: %s\n", fa_error());
				return 1;
			}
			rounds++;
		}
	}
	fa_disconnect(client);
	(void)gpu->driver.cuMemFree(at);
	(void)fa_inproc_gpu_close(gpu);
	close(memfd);
	return rounds ? 0 : 1;
}

static int toggle_storm(struct gpu_bench *g, int to, int from)
{
	char byte = 0;

	if (write(to, &byte, 1) != 1 || read(from, &byte, 1) != 1)
		return fa_fail(&g->error, -EIO, "the other client ended");
	return 0;
}

static int measure_storm(struct gpu_bench *g, const char *socket)
{
	const size_t blocks = g->bench->quick ? 1 : STORM_BLOCKS;
	const size_t n = g->bench->quick ? 100 : STORM_BLOCK_TRIPS;
	uint64_t *samples[2] = { calloc(blocks * n, sizeof(uint64_t)),
		                 calloc(blocks * n, sizeof(uint64_t)) };
	static const double percents[] = { 50, 99 };
	static const char *const suffixes[] = { "", "-p99" };
	int to[2], from[2], status, r = 0;
	char name[80];
	pid_t pid;

	if (!samples[0] || !samples[1] || pipe(to) < 0 || pipe(from) < 0)
		return fa_fail(&g->error, -ENOMEM, "no memory");
	pid = fork();
	if (pid == 0) {
		char ends[32];

		/* exec(): a CUDA context does not survive fork(). */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(to[1]);
		close(from[0]);
		snprintf(ends, sizeof(ends), "%d:%d", to[0], from[1]);
		execl("/proc/self/exe", "fabench", "--storm", ends, "--socket", socket, NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	if (read(from[0], name, 1) != 1)
		r = fa_fail(&g->error, -EIO, "the other client does not start");
	for (size_t block = 0; block < blocks && r == 0; block++) {
		r = trips(g, SOCKET, n, samples[0] + block * n);
		if (r == 0)
			r = toggle_storm(g, to[1], from[0]);
		if (r == 0)
			r = trips(g, SOCKET, n, samples[1] + block * n);
		if (r == 0)
			r = toggle_storm(g, to[1], from[0]);
	}
	close(to[1]);
	close(from[0]);
	if (waitpid(pid, &status, 0) == pid && status != 0 && r == 0)
		r = fa_fail(&g->error, -EIO, "the other client failed");
	for (size_t i = 0; i < 2 && r == 0; i++) {
		double idle = (double)fa_bench_percentile(samples[0], blocks * n, percents[i]);
		double storm = (double)fa_bench_percentile(samples[1], blocks * n, percents[i]);

		snprintf(name, sizeof(name), "gpu/bf16/" SHAPE "/storm%s", suffixes[i]);
		r = fa_bench_add(g->bench, name, storm / 1e3, "us", "idle", idle / storm);
	}
	free(samples[0]);
	free(samples[1]);
	return r;
}

int fa_bench_gpu_storm(const char *socket, const char *ends)
{
	struct storm storm = { .socket = socket };

	if (!socket || sscanf(ends, "%d:%d", &storm.toggle, &storm.acknowledge) != 2)
		return 1;
	return storm_run(&storm);
}

/* ---- all parts */

static int measure_start(struct gpu_bench *g)
{
	const int n = g->bench->quick ? 1 : STARTS;
	uint64_t samples[STARTS];
	int r = 0;

	for (int i = 0; i < n && r == 0; i++) {
		struct fa_bench_daemon daemon;
		uint64_t start = fa_now_ns();

		r = fa_bench_daemon_start(g->bench, &daemon);
		if (r < 0)
			return fa_fail(&g->error, r, "the daemon does not start");
		r = connect_client(g, daemon.socket);
		if (r == 0)
			r = trip(g, SOCKET);
		samples[i] = fa_now_ns() - start;
		disconnect_client(g);
		if (fa_bench_daemon_stop(&daemon) < 0 && r == 0)
			r = fa_fail(&g->error, -EIO, "the daemon did not exit cleanly");
	}
	if (r == 0)
		r = fa_bench_add(g->bench, "gpu/start/first-answer",
		                 (double)fa_bench_percentile(samples, (size_t)n, 50) / 1e6, "ms",
		                 NULL, 0);
	return r;
}

static int run(struct gpu_bench *g)
{
	struct fa_bench_daemon daemon;
	int r;

	r = make_tensors(g);
	if (r < 0)
		return r;
	describe_params(g);
	if (!g->bench->socket) {
		r = measure_start(g);
		if (r < 0)
			return r;
	}
	r = fa_bench_daemon_start(g->bench, &daemon);
	if (r < 0)
		return fa_fail(&g->error, r, "the daemon does not start");
	r = connect_client(g, daemon.socket);
	if (r == 0)
		r = compare_results(g);
	if (r == 0)
		r = measure_trips(g);
	if (r == 0)
		r = measure_storm(g, daemon.socket);
	disconnect_client(g);
	if (fa_bench_daemon_stop(&daemon) < 0 && r == 0)
		r = fa_fail(&g->error, -EIO, "the daemon did not exit cleanly");
	return r;
}

int fa_bench_gpu(struct fa_bench *bench)
{
	struct gpu_bench g = { .bench = bench };
	int r;

	r = fa_inproc_gpu_open(&g.error, &g.gpu);
	if (r == 0) {
		fa_bench_set_gpu(bench, g.gpu->name);
		r = run(&g);
	}
	if (r < 0)
		fprintf(stderr, "fabench gpu: %s\n", g.error.text);
	if (g.tensors)
		(void)g.gpu->driver.cuMemFree(g.tensors);
	fa_inproc_gpu_close(g.gpu);
	return r;
}
