/*
 * The GPU kernels against fp64: chosen shapes and random ones, on the kernel that the
 * plan picks and on every other that covers the request.
 *   test-attention [--seed N] [--random N]
 * Skips (77) without a GPU.
 */
#include "tests/gpu/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failed, passed;
static double worst[FA_ATTENTION_BF16 + 1];

static void check(struct fa_gpu *gpu, struct fa_request *request)
{
	struct fa_request_reference reference;
	struct fa_cuda_launch launch;
	char text[512];
	double error;

	if (fa_cuda_attention_plan(fa_gpu_chip(gpu), &request->params, text, sizeof(text),
	                           &launch) < 0) {
		printf("FAIL %s: %s\n", request->text, text);
		failed++;
		return;
	}
	fa_request_reference(gpu, request, &reference);
	for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

		if (!fa_cuda_kernel_covers(kernel, &request->params) ||
		    kernel->shared_bytes > fa_gpu_chip(gpu)->shared_bytes_max ||
		    fa_cuda_attention_plan_on(fa_gpu_chip(gpu), kernel, &request->params, text,
		                              sizeof(text), &launch) < 0)
			continue;
		if (fa_request_check(gpu, request, &launch, &reference, text, sizeof(text),
		                     &error)) {
			passed++;
		} else {
			failed++;
			printf("FAIL %s: %s: %s\n", kernel->symbol, request->text, text);
		}
		worst[kernel->dtype] = fmax(worst[kernel->dtype], error);
	}
	fa_request_reference_free(&reference);
}

/* Shapes at which kernels like these have failed before. */
static void chosen(struct fa_gpu *gpu, uint64_t *random)
{
	static const int lengths[][2] = { { 1, 1 },   { 239, 1 }, { 799, 3 },    { 113, 203 },
		                          { 511, 1 }, { 3, 513 }, { 128, 128 },  { 1023, 1024 },
		                          { 17, 0 },  { 0, 17 },  { 2048, 2048 } };
	static const int dims[][2] = { { 64, 64 },   { 128, 128 }, { 256, 256 }, { 96, 96 },
		                       { 192, 128 }, { 192, 192 }, { 64, 512 },  { 8, 8 } };
	struct fa_request request;

	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
			for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
				for (int causal = 0; causal < 2; causal++) {
					struct fa_attention_params params = {
						.dtype = (enum fa_attention_dtype)dtype,
						.batch = 1,
						.heads = 2,
						.kv_heads = 1,
						.head_dim = dims[d][0],
						.head_dim_v = dims[d][1],
						.seqlen_q = lengths[l][0],
						.seqlen_k = lengths[l][1],
						.scale = (float)(1 / sqrt(dims[d][0])),
						.causal = causal,
						.window_left = -1,
						.window_right = -1,
					};

					fa_request_make(gpu, &request, &params, NULL, NULL,
					                (struct fa_request_layout){ 0 }, false,
					                false, random);
					check(gpu, &request);
					fa_request_free(gpu, &request);
				}
}

/* One long enough for many tiles, sections and waves. */
static void longer(struct fa_gpu *gpu, uint64_t *random)
{
	struct fa_request request;

	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int dim = 64; dim <= 256; dim *= 2)
			for (int causal = 0; causal < 2; causal++) {
				struct fa_attention_params params = {
					.dtype = (enum fa_attention_dtype)dtype,
					.batch = 1,
					.heads = 2,
					.kv_heads = 1,
					.head_dim = dim,
					.head_dim_v = dim,
					.seqlen_q = 4224,
					.seqlen_k = 4224,
					.scale = (float)(1 / sqrt(dim)),
					.causal = causal,
					.window_left = -1,
					.window_right = -1,
				};

				fa_request_make(gpu, &request, &params, NULL, NULL,
				                (struct fa_request_layout){ 0 }, false, false,
				                random);
				check(gpu, &request);
				fa_request_free(gpu, &request);
			}
}

int main(int argc, char **argv)
{
	uint64_t seed = (uint64_t)time(NULL), random;
	int count = 200;
	struct fa_gpu *gpu;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--random"))
			count = atoi(argv[i + 1]);
	}
	gpu = fa_gpu_open();
	if (!gpu)
		return 77;
	printf("%s, seed %llu\n", fa_gpu_name(gpu), (unsigned long long)seed);
	random = seed * 2 + 1;

	chosen(gpu, &random);
	printf("chosen: %d passed, %d failed\n", passed, failed);
	fflush(stdout);
	for (int i = 0; i < count; i++) {
		struct fa_request request;

		fa_request_random(gpu, &request, &random);
		check(gpu, &request);
		fa_request_free(gpu, &request);
	}
	printf("random: %d passed, %d failed\n", passed, failed);
	fflush(stdout);
	longer(gpu, &random);
	printf("%d passed, %d failed; largest share of the allowed error: f32 %.2f, f16 %.2f, "
	       "bf16 %.2f\n",
	       passed, failed, worst[FA_ATTENTION_F32], worst[FA_ATTENTION_F16],
	       worst[FA_ATTENTION_BF16]);
	fa_gpu_close(gpu);
	return failed ? 1 : 0;
}
