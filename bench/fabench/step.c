/*
 * step: decode steps with one request for all layers, against the same kernels in this process. 32
 * layers, 32 sequences of 4,096 tokens, bf16, 32/8 heads, head dim 128.
 *
 *   kernels  GPU time, all launches enqueued ahead
 *   inproc   launch and synchronise in this process
 *   layers   the request alone, to the end of the last layer
 *   whole    fa_step_begin(), the request, fa_step_commit()
 *   busy     the share of a whole step in which the GPU works
 *
 * Samples alternate; bits must be equal. Needs 35 GB of GPU memory, half for the daemon.
 */
#include "bench/fabench/bench.h"
#include "bench/fabench/daemon.h"
#include "bench/lib/decode-client.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES 60
#define SAMPLES_QUICK 3
#define WARM_UP 5
/* Busy time of the GPU in which the host enqueues a step's launches. */
#define AHEAD_NS (2 * FA_NS_PER_MS)

static const struct fa_inproc_decode_shape usual = {
	.layers = 32,
	.heads = 32,
	.kv_heads = 8,
	.dim = 128,
	.page_tokens = 64,
	.batch = 32,
	.length = 4096,
};

static const struct fa_inproc_decode_shape quick = {
	.layers = 4,
	.heads = 8,
	.kv_heads = 2,
	.dim = 128,
	.page_tokens = 64,
	.batch = 4,
	.length = 128,
};

enum {
	KERNELS,
	INPROC,
	LAYERS,
	WHOLE,
	KINDS
};

static const char *const kind_names[KINDS] = { "kernels", "inproc", "layers", "whole" };

struct step_bench {
	struct fa_bench *bench;
	const struct fa_inproc_decode_shape *shape;
	struct fa_inproc_gpu *gpu;
	struct fa_inproc_decode *decode;
	struct fa_error error;
	struct fa_decode_tensors tensors;
	struct fa_decode_client client;
};

static int fail(struct step_bench *b)
{
	return fa_fail(&b->error, -EIO, "the GPU fails");
}

static int launch_all(struct step_bench *b)
{
	int r = 0;

	for (int32_t layer = 0; layer < b->shape->layers && r == 0; layer++)
		r = fa_inproc_decode_launch(b->decode, layer, true, &b->error);
	return r;
}

static int run_kernels(struct step_bench *b, uint64_t *ret_ns)
{
	double ns;
	int r;

	if (fa_inproc_gpu_spin(b->gpu, AHEAD_NS) < 0 || fa_inproc_gpu_time_start(b->gpu) < 0)
		return fail(b);
	r = launch_all(b);
	if (r == 0 && fa_inproc_gpu_time_stop(b->gpu, &ns) < 0)
		r = fail(b);
	if (r == 0)
		*ret_ns = (uint64_t)ns;
	return r;
}

static int run_inproc(struct step_bench *b, uint64_t *ret_ns)
{
	const uint64_t start_ns = fa_now_ns();
	int r;

	r = launch_all(b);
	if (r == 0 && b->gpu->driver.cuStreamSynchronize(b->gpu->stream) != CUDA_SUCCESS)
		r = fail(b);
	*ret_ns = fa_now_ns() - start_ns;
	return r;
}

static int attend(struct step_bench *b)
{
	return fa_decode_client_attend_layers(&b->client, (uint32_t)b->shape->layers, NULL, NULL,
	                                      true, &b->error, NULL);
}

/* Times the request for all layers; the step begins before. */
static int run_layers(struct step_bench *b, uint64_t *ret_ns)
{
	uint64_t start_ns;
	int r;

	r = fa_decode_client_begin(&b->client, &b->error);
	start_ns = fa_now_ns();
	if (r == 0)
		r = attend(b);
	*ret_ns = fa_now_ns() - start_ns;
	if (r == 0)
		r = fa_decode_client_commit(&b->client, &b->error);
	return r < 0 ? r : fa_decode_client_truncate(&b->client, b->shape->length - 1, &b->error);
}

static int run_whole(struct step_bench *b, uint64_t *ret_ns)
{
	const uint64_t start_ns = fa_now_ns();
	int r;

	r = fa_decode_client_begin(&b->client, &b->error);
	if (r == 0)
		r = attend(b);
	if (r == 0)
		r = fa_decode_client_commit(&b->client, &b->error);
	*ret_ns = fa_now_ns() - start_ns;
	return r < 0 ? r : fa_decode_client_truncate(&b->client, b->shape->length - 1, &b->error);
}

static int run(struct step_bench *b, int kind, uint64_t *ret_ns)
{
	static int (*const runs[KINDS])(struct step_bench * b,
	                                uint64_t * ret_ns) = { run_kernels, run_inproc, run_layers,
		                                               run_whole };

	return runs[kind](b, ret_ns);
}

static int compare_results(struct step_bench *b)
{
	const struct fa_cudriver *driver = &b->gpu->driver;
	const CUdeviceptr out = b->tensors.at + b->tensors.out_at;
	const size_t bytes = b->tensors.q_bytes;
	unsigned char *results = malloc(2 * bytes);
	uint64_t ns;
	int r = results ? 0 : fa_fail(&b->error, -ENOMEM, "no memory");

	for (int i = 0; i < 2 && r == 0; i++) {
		if (driver->cuMemsetD8(out, 0xff, bytes) != CUDA_SUCCESS ||
		    driver->cuCtxSynchronize() != CUDA_SUCCESS)
			r = fail(b);
		if (r == 0)
			r = run(b, i == 0 ? INPROC : WHOLE, &ns);
		if (r == 0 && driver->cuMemcpyDtoH(results + (size_t)i * bytes, out, bytes))
			r = fail(b);
	}
	if (r == 0 && memcmp(results, results + bytes, bytes) != 0)
		r = fa_fail(&b->error, -EIO, "the daemon's result differs from the kernel's");
	free(results);
	return r;
}

static int report(struct step_bench *b, uint64_t *ns[KINDS], size_t n)
{
	const struct fa_inproc_decode_shape *shape = b->shape;
	const char *mps = b->bench->mps ? "-mps" : "";
	double medians[KINDS];
	char prefix[64], name[96];
	int r = 0;

	snprintf(prefix, sizeof(prefix), "step/decode-b%u-c%u-l%d", shape->batch, shape->length,
	         shape->layers);
	for (int kind = 0; kind < KINDS; kind++)
		medians[kind] = (double)fa_bench_percentile(ns[kind], n, 50);
	for (int kind = 0; kind < KINDS && r == 0; kind++) {
		snprintf(name, sizeof(name), "%s/%s%s", prefix, kind_names[kind], mps);
		r = fa_bench_add(b->bench, name, medians[kind] / 1e3, "us",
		                 kind == KERNELS ? NULL : kind_names[KERNELS],
		                 kind == KERNELS ? 0 : medians[KERNELS] / medians[kind]);
	}
	snprintf(name, sizeof(name), "%s/busy%s", prefix, mps);
	if (r == 0)
		r = fa_bench_add(b->bench, name, 100 * medians[KERNELS] / medians[WHOLE], "%", NULL,
		                 0);
	return r < 0 ? fa_fail(&b->error, r, "no memory") : 0;
}

static int measure(struct step_bench *b)
{
	const int n = b->bench->quick ? SAMPLES_QUICK : SAMPLES;
	uint64_t *ns[KINDS] = { 0 }, unused;
	int r = 0;

	for (int kind = 0; kind < KINDS && r == 0; kind++) {
		ns[kind] = calloc((size_t)n, sizeof(*ns[kind]));
		if (!ns[kind])
			r = fa_fail(&b->error, -ENOMEM, "no memory");
	}
	for (int i = -WARM_UP; i < n && r == 0; i++)
		for (int kind = 0; kind < KINDS && r == 0; kind++)
			r = run(b, kind, i < 0 ? &unused : &ns[kind][i]);
	if (r == 0)
		r = report(b, ns, (size_t)n);
	for (int kind = 0; kind < KINDS; kind++)
		free(ns[kind]);
	return r;
}

static int run_all(struct step_bench *b)
{
	struct fa_inproc_decode_tensors tensors;
	struct fa_bench_daemon daemon;
	int r;

	r = fa_decode_tensors_new(b->gpu, b->shape, &b->error, &b->tensors);
	if (r < 0)
		return r;
	tensors = fa_decode_tensors_at(&b->tensors);
	r = fa_inproc_decode_new(b->gpu, b->shape, &tensors, &b->error, &b->decode);
	if (r < 0)
		return r;
	r = fa_bench_daemon_start(b->bench, &daemon);
	if (r < 0)
		return fa_fail(&b->error, r, "the daemon does not start");
	r = fa_decode_client_open(&b->tensors, daemon.socket, 0, 0, &b->error, &b->client);
	if (r == 0)
		r = fa_decode_client_commit(&b->client, &b->error);
	if (r == 0)
		r = fa_decode_client_truncate(&b->client, b->shape->length - 1, &b->error);
	if (r == 0)
		r = compare_results(b);
	if (r == 0)
		r = measure(b);
	fa_decode_client_close(&b->client);
	if (fa_bench_daemon_stop(&daemon) < 0 && r == 0)
		r = fa_fail(&b->error, -EIO, "the daemon did not exit cleanly");
	return r;
}

int fa_bench_step(struct fa_bench *bench)
{
	struct step_bench b = { .bench = bench, .shape = bench->quick ? &quick : &usual };
	int r;

	r = fa_inproc_gpu_open(&b.error, &b.gpu);
	if (r == 0) {
		fa_bench_set_gpu(bench, b.gpu->name);
		r = run_all(&b);
	}
	if (r < 0)
		fprintf(stderr, "fabench step: %s\n", b.error.text);
	if (b.gpu) {
		fa_inproc_decode_free(b.decode);
		fa_decode_tensors_free(b.gpu, &b.tensors);
	}
	fa_inproc_gpu_close(b.gpu);
	return r;
}
