/*
 * Times the dense kernels alone. Samples are taken as in bench/fabench/prefill.c.
 *   time-attention [--dtype f32|f16|bf16] [--dim N] [--seqlen N] [--mask full|causal]
 *                  [--samples N] [--sustained] [--json]
 * The GPU works at most a fifth of the time; --sustained: after a second of load. All cells have
 * 16,384 tokens and heads * dim = 2048. Exits with 77 without a GPU.
 */
#include "tests/gpu/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOKENS 16384
#define WIDTH 2048
#define SAMPLES_MAX 1000

struct options {
	int dtype, dim, seqlen, mask, samples; /* 0: all; for mask -1 */
	bool sustained, json;
};

static const char *const dtype_names[] = { "", "f32", "f16", "bf16" };

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double sample_ns(struct fa_gpu *gpu, const struct fa_attention_params *params)
{
	fa_gpu_flush(gpu, NULL);
	fa_gpu_spin(gpu, 100000, NULL);
	fa_gpu_time_start(gpu, NULL);
	if (fa_gpu_attention(gpu, params, NULL) < 0)
		exit(1);
	return fa_gpu_time_stop_ns(gpu, NULL);
}

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void rest(double ns)
{
	const struct timespec time = { (time_t)(ns / 1e9), (long)fmod(ns, 1e9) };

	nanosleep(&time, NULL);
}

static void cell(struct fa_gpu *gpu, const struct options *options, int dtype, int dim, int seqlen,
                 bool causal, bool *first)
{
	const struct fa_attention_params shape = {
		.dtype = (enum fa_attention_dtype)dtype,
		.batch = TOKENS / seqlen,
		.heads = WIDTH / dim,
		.kv_heads = WIDTH / dim,
		.head_dim = dim,
		.head_dim_v = dim,
		.seqlen_q = seqlen,
		.seqlen_k = seqlen,
		.scale = (float)(1 / sqrt(dim)),
		.causal = causal,
		.window_left = -1,
		.window_right = -1,
	};
	const double pairs = causal ? 0.5 * seqlen * (seqlen + 1.0) : (double)seqlen * seqlen;
	const double flops = 4 * pairs * dim * shape.heads * shape.batch;
	double times[SAMPLES_MAX], median, start;
	struct fa_request request;
	uint64_t random = 1;

	fa_request_make(gpu, &request, &shape, NULL, NULL, (struct fa_request_layout){ 0 }, false,
	                false, &random);
	times[0] = sample_ns(gpu, &request.params);
	if (options->sustained)
		for (start = now_ns(); now_ns() - start < 1e9;) {
			for (int i = 0; i < 1 + 5e7 / times[0]; i++)
				fa_gpu_attention(gpu, &request.params, NULL);
			fa_gpu_sync(gpu);
		}
	for (int i = 0; i < options->samples; i++) {
		times[i] = sample_ns(gpu, &request.params);
		if (!options->sustained)
			rest(4 * (times[i] + 3e5));
	}
	qsort(times, (size_t)options->samples, sizeof(times[0]), compare);
	median = times[options->samples / 2];
	if (options->json)
		printf("%s\n{\"name\": \"prefill/%s/d%d-s%d/%s\", \"value\": %.1f, "
		       "\"unit\": \"TFLOP/s\"}",
		       *first ? "" : ",", dtype_names[dtype], dim, seqlen,
		       causal ? "causal" : "full", flops / median / 1e3);
	else
		printf("prefill/%s/d%d-s%d/%-6s %8.1f TFLOP/s %10.1f us\n", dtype_names[dtype], dim,
		       seqlen, causal ? "causal" : "full", flops / median / 1e3, median / 1e3);
	fflush(stdout);
	*first = false;
	fa_request_free(gpu, &request);
}

int main(int argc, char **argv)
{
	struct options options = { .mask = -1, .samples = 20 };
	struct fa_gpu *gpu;
	bool first = true;

	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";

		if (!strcmp(argv[i], "--sustained")) {
			options.sustained = true;
			continue;
		}
		if (!strcmp(argv[i], "--json")) {
			options.json = true;
			continue;
		}
		if (!strcmp(argv[i], "--dtype")) {
			for (int d = FA_ATTENTION_F32; d <= FA_ATTENTION_BF16; d++)
				if (!strcmp(value, dtype_names[d]))
					options.dtype = d;
		} else if (!strcmp(argv[i], "--dim")) {
			options.dim = atoi(value);
		} else if (!strcmp(argv[i], "--seqlen")) {
			options.seqlen = atoi(value);
		} else if (!strcmp(argv[i], "--mask")) {
			options.mask = !strcmp(value, "causal");
		} else if (!strcmp(argv[i], "--samples")) {
			options.samples = atoi(value);
			if (options.samples < 1 || options.samples > SAMPLES_MAX)
				options.samples = 20;
		} else {
			fprintf(stderr, "unknown option %s\n", argv[i]);
			return 2;
		}
		i++;
	}
	gpu = fa_gpu_open();
	if (!gpu)
		return 77;
	if (options.json)
		printf("{\"device\": \"%s\", \"results\": [", fa_gpu_name(gpu));
	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int dim = 64; dim <= 256; dim *= 2)
			for (int causal = 0; causal < 2; causal++)
				for (int seqlen = 512; seqlen <= TOKENS; seqlen *= 2)
					if ((!options.dtype || options.dtype == dtype) &&
					    (!options.dim || options.dim == dim) &&
					    (!options.seqlen || options.seqlen == seqlen) &&
					    (options.mask < 0 || options.mask == causal))
						cell(gpu, &options, dtype, dim, seqlen, causal,
						     &first);
	if (options.json)
		printf("\n]}\n");
	fa_gpu_close(gpu);
	return 0;
}
