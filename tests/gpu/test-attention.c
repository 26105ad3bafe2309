/*
 * Dense GPU kernels against fp64: the planned kernel and every other that supports the request.
 *   test-attention [--seed N] [--random N] [--reruns N] [--kernel PART] [CASE...] Runs all
 *   CASEs by default; --list prints them. --kernel: only kernels whose names contain PART, as
 *   racecheck takes minutes for one. --probe runs none. --fault makes an illegal access and
 *   dies of it, with all clients of its MPS server. Skips (77) without a GPU.
 */
#include "tests/gpu/cases.h"
#include "tests/gpu/draw.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct fa_request_layout usual;

void fa_cases_count(struct fa_cases *cases, bool ok, const char *format, ...)
{
	va_list list;

	if (ok) {
		cases->passed++;
		return;
	}
	cases->failed++;
	printf("FAIL ");
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	printf("\n");
}

/* Also checks packed rows: in units of few tiles, and as planned. */
static void check_packed(struct fa_cases *cases, const struct fa_request *request,
                         struct fa_request_reference *reference)
{
	struct fa_cuda_chip chip = *fa_gpu_chip(cases->gpu);
	const struct fa_cuda_kernel *best = fa_cuda_attention_kernel(&chip, &request->params);

	for (int i = 0; i < 2 && best; i++) {
		struct fa_cuda_launch launch;
		char text[512] = "";
		double error;
		bool ok;

		chip.pack = i == 0 ? 1 + (int32_t)(fa_random(&cases->random) % 4) : 0;
		if (!fa_cuda_packed_plan(&chip, best, &request->params, &launch) ||
		    !strstr(launch.kernel->symbol, cases->kernel) || !fa_draw())
			continue;
		if (!reference->out)
			fa_request_reference(cases->gpu, request, reference);
		ok = fa_request_check(cases->gpu, request, &launch, reference, text, sizeof(text),
		                      &error);
		fa_cases_count(cases, ok, "%s in %u parts: %s: %s", launch.kernel->symbol,
		               launch.packed.parts, request->text, text);
		cases->worst[launch.kernel->dtype] = fmax(cases->worst[launch.kernel->dtype],
		                                          error);
		cases->checks[launch.kernel - fa_cuda_kernels]++;
	}
}

void fa_cases_check(struct fa_cases *cases, const struct fa_request *request)
{
	const struct fa_cuda_chip *chip = fa_gpu_chip(cases->gpu);
	struct fa_request_reference reference = { NULL };
	struct fa_cuda_launch launch;
	char text[512] = "";
	double error;

	if (fa_cuda_attention_plan(chip, &request->params, text, sizeof(text), &launch) < 0) {
		fa_cases_count(cases, false, "%s: %s", request->text, text);
		return;
	}
	for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];
		bool ok;

		if (!strstr(kernel->symbol, cases->kernel) || !fa_cuda_kernel_runs(kernel, chip) ||
		    !fa_cuda_kernel_covers(kernel, &request->params) ||
		    fa_cuda_attention_plan_on(chip, kernel, &request->params, text, sizeof(text),
		                              &launch) < 0 ||
		    !fa_draw())
			continue;
		if (!reference.out)
			fa_request_reference(cases->gpu, request, &reference);
		ok = fa_request_check(cases->gpu, request, &launch, &reference, text, sizeof(text),
		                      &error);
		fa_cases_count(cases, ok, "%s: %s: %s", kernel->symbol, request->text, text);
		cases->worst[kernel->dtype] = fmax(cases->worst[kernel->dtype], error);
		cases->checks[i]++;
	}
	check_packed(cases, request, &reference);
	fa_request_reference_free(&reference);
}

static void check_shape(struct fa_cases *cases, int dtype, int heads, int kv_heads, int dim,
                        int dim_v, int n_q, int n_k, bool causal, float softcap)
{
	const struct fa_attention_params params = {
		.dtype = (enum fa_attention_dtype)dtype,
		.batch = 1,
		.heads = heads,
		.kv_heads = kv_heads,
		.head_dim = dim,
		.head_dim_v = dim_v,
		.seqlen_q = n_q,
		.seqlen_k = n_k,
		.scale = (float)(1 / sqrt(dim)),
		.softcap = softcap,
		.causal = causal,
		.window_left = -1,
		.window_right = -1,
	};
	struct fa_request request;

	fa_request_make(cases->gpu, &request, &params, NULL, NULL, usual, false, false,
	                &cases->random);
	fa_cases_check(cases, &request);
	fa_request_free(cases->gpu, &request);
}

/* Shapes that are known to break such kernels. */
static void case_shapes(struct fa_cases *cases)
{
	static const int lengths[][2] = { { 1, 1 },   { 239, 1 }, { 799, 3 },    { 113, 203 },
		                          { 511, 1 }, { 3, 513 }, { 128, 128 },  { 1023, 1024 },
		                          { 17, 0 },  { 0, 17 },  { 2048, 2048 } };
	static const int dims[][2] = { { 64, 64 },   { 128, 128 }, { 256, 256 }, { 96, 96 },
		                       { 192, 128 }, { 192, 192 }, { 64, 512 },  { 8, 8 },
		                       { 576, 512 }, { 512, 512 } };

	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (size_t d = 0; d < COUNT(dims); d++)
			for (size_t l = 0; l < COUNT(lengths); l++)
				for (int n = 0; n < 4; n++)
					check_shape(cases, dtype, 2, 1, dims[d][0], dims[d][1],
					            lengths[l][0], lengths[l][1], n % 2,
					            n < 2 ? 0 : 5);
}

/* Head dims above 256. */
static void case_wide(struct fa_cases *cases)
{
	static const int lengths[][2] = {
		{ 1, 1 }, { 3, 200 }, { 70, 133 }, { 33, 0 }, { 17, 300 }
	};
	static const int dims[][2] = { { 576, 512 }, { 512, 512 }, { 264, 264 }, { 520, 72 } };

	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (size_t d = 0; d < COUNT(dims); d++)
			for (size_t l = 0; l < COUNT(lengths); l++)
				check_shape(cases, dtype, 3, 1, dims[d][0], dims[d][1],
				            lengths[l][0], lengths[l][1], l % 2,
				            (d + l) % 3 ? 0 : 5);
}

/*
 * Logits grow from tile to tile, in the order of the kernel's loop: within rounding, beyond what
 * sums may grow at once, and beyond the exponents of bf16.
 */
static void case_peaked(struct fa_cases *cases)
{
	static const float scales[] = { 1, 4, 40 };

	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int dim = 64; dim <= 256; dim *= 2)
			for (size_t s = 0; s < COUNT(scales); s++)
				for (int causal = 0; causal < 2; causal++) {
					const struct fa_attention_params params = {
						.dtype = (enum fa_attention_dtype)dtype,
						.batch = 1,
						.heads = 1,
						.kv_heads = 1,
						.head_dim = dim,
						.head_dim_v = dim,
						.seqlen_q = 200,
						.seqlen_k = 520,
						.scale = scales[s] * 8 / (float)sqrt(dim),
						.causal = causal,
						.window_left = -1,
						.window_right = -1,
					};
					struct fa_request request;

					fa_request_make(cases->gpu, &request, &params, NULL, NULL,
					                usual, false, false, &cases->random);
					fa_cases_check(cases, &request);
					fa_request_free(cases->gpu, &request);
				}
}

/* Returns by how much key @i of @n is above others, in nats. Kernels go from the last key to the
 * first, so that descending logits grow. */
static float raised(int kind, int i, int n)
{
	switch (kind) {
	case 0: /* a few keys, as high as a fixed maximum allows */
		return i < 4 ? 100 - (float)i / 2 : 0;
	case 1:
		return i == 0 ? 300 : 0;
	case 2:
		return i == n / 2 ? 300 : 0;
	case 3:
		return i == n / 2 || i == 3 ? 130 : i == 1 ? 260 : 0;
	case 4: /* two rises, each higher than that */
		return 130.f * (float)((n - 1 - i) * 3 / n);
	case 5:
		return 300.f * (float)(n - 1 - i) / (float)n;
	default:
		return 300.f * (float)i / (float)n;
	}
}

/* Single keys far above others, and logits that descend and ascend. Not in fp32, where logits of
 * hundreds are themselves inexact. */
static void case_raised(struct fa_cases *cases)
{
	static const int dims[][2] = { { 64, 64 },   { 96, 96 },   { 128, 128 },
		                       { 192, 128 }, { 192, 192 }, { 256, 256 } };
	static float nats[1100];

	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int n = 0; n < (int)COUNT(dims) * 4 * 7; n++) {
			const int *dim = dims[n / 28], mask = n / 7 % 4, kind = n % 7;
			const int n_k = mask == 3 ? 700 : 1100;
			const struct fa_attention_params params = {
				.dtype = (enum fa_attention_dtype)dtype,
				.batch = 1,
				.heads = 2,
				.kv_heads = 1,
				.head_dim = dim[0],
				.head_dim_v = dim[1],
				.seqlen_q = mask == 3 ? 700 : 300,
				.seqlen_k = n_k,
				.scale = (float)(1 / sqrt(dim[0])),
				.causal = mask > 0,
				.window_left = mask == 2 ? 600 : -1,
				.window_right = -1,
			};
			const struct fa_request_layout layout = { .broken = kind == 1 ? 3 : 0 };
			struct fa_request request;

			for (int i = 0; i < n_k; i++)
				nats[i] = raised(kind, i, n_k);
			fa_request_make(cases->gpu, &request, &params, NULL, NULL, layout, false,
			                kind == 2, &cases->random);
			fa_request_raise(cases->gpu, &request, nats);
			fa_cases_check(cases, &request);
			fa_request_free(cases->gpu, &request);
		}
}

/* Windows of few tiles over many row blocks: both ends fall on every part of a tile. */
static void case_windows(struct fa_cases *cases)
{
	static const int windows[][2] = { { 150, 0 },  { 127, 0 }, { 191, 64 }, { 0, 0 },
		                          { 63, 129 }, { 0, 200 }, { 255, 1 } };

	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int dim = 64; dim <= 256; dim *= 2)
			for (size_t w = 0; w < COUNT(windows); w++) {
				const struct fa_attention_params params = {
					.dtype = (enum fa_attention_dtype)dtype,
					.batch = 1,
					.heads = 1,
					.kv_heads = 1,
					.head_dim = dim,
					.head_dim_v = dim,
					.seqlen_q = 840,
					.seqlen_k = w % 2 ? 840 : 903,
					.scale = (float)(4 / sqrt(dim)),
					.window_left = windows[w][0],
					.window_right = windows[w][1],
				};
				const struct fa_request_layout layout = { .broken = w % 4 ? 0 : 3 };
				struct fa_request request;

				fa_request_make(cases->gpu, &request, &params, NULL, NULL, layout,
				                false, false, &cases->random);
				fa_cases_check(cases, &request);
				fa_request_free(cases->gpu, &request);
			}
}

/*
 * ALiBi for queries from far before all keys to far behind them. At the small scales one slope is,
 * in units of dot products, too large for the fast path (kernels/cuda/sm90/alibi.h).
 */
static void case_slopes(struct fa_cases *cases)
{
	static const int lengths[][2] = { { 200, 520 }, { 600, 170 }, { 330, 330 } };
	static const float scales[] = { 1, 8, 60, 1e-4f };

	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int dim = 64; dim <= 256; dim *= 2)
			for (size_t n = 0; n < COUNT(lengths) * COUNT(scales); n++) {
				const struct fa_attention_params params = {
					.dtype = (enum fa_attention_dtype)dtype,
					.batch = 1,
					.heads = 2,
					.kv_heads = 1,
					.head_dim = dim,
					.head_dim_v = dim,
					.seqlen_q = lengths[n % 3][0],
					.seqlen_k = lengths[n % 3][1],
					.scale = scales[n / 3] / (float)sqrt(dim),
					.softcap = n == 1 ? 10 : 0,
					.causal = n % 2,
					.window_left = n == 8 ? 140 : -1,
					.window_right = n == 8 ? 150 : -1,
				};
				struct fa_request request;

				fa_request_make(cases->gpu, &request, &params, NULL, NULL, usual,
				                true, n == 5, &cases->random);
				fa_cases_check(cases, &request);
				fa_request_free(cases->gpu, &request);
			}
}

/* V is large, but its means are finite. */
static void case_large(struct fa_cases *cases)
{
	static const int lengths[][2] = { { 150, 600 }, { 3, 2100 }, { 200, 5 } };
	/* Below the largest numbers: V is a normal number times this, at most 3.47 times it. */
	static const float sizes[] = { 9e37f, 1.8e4f, 9e37f };

	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int dim = 64; dim <= 256; dim *= 2)
			for (size_t n = 0; n < COUNT(lengths) * 5; n++) {
				const size_t kind = n / COUNT(lengths);
				const struct fa_attention_params params = {
					.dtype = (enum fa_attention_dtype)dtype,
					.batch = 1,
					.heads = 2,
					.kv_heads = 1,
					.head_dim = dim,
					.head_dim_v = dim,
					.seqlen_q = lengths[n % COUNT(lengths)][0],
					.seqlen_k = lengths[n % COUNT(lengths)][1],
					.scale = (float)((n % 4 == 3 ? 8 : 1) / sqrt(dim)),
					.softcap = kind == 3 ? 20 : 0,
					.causal = kind > 0,
					.window_left = kind == 2 ? 120 : -1,
					.window_right = -1,
				};
				const struct fa_request_layout layout = {
					.v_size = sizes[dtype - FA_ATTENTION_F32],
					.v_positive = n % 2,
				};
				struct fa_request request;

				fa_request_make(cases->gpu, &request, &params, NULL, NULL, layout,
				                kind == 4, kind == 4, &cases->random);
				fa_cases_check(cases, &request);
				fa_request_free(cases->gpu, &request);
			}
}

/* Soft caps that no logits reach, or that some, most or all logits exceed. */
static void case_softcaps(struct fa_cases *cases)
{
	static const float scales[] = { 0.5, 2, 12 };
	static const float caps[] = { 0.05f, 3, 30, 100 };

	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int dim = 64; dim <= 256; dim *= 2)
			for (size_t n = 0; n < COUNT(scales) * COUNT(caps); n++) {
				const struct fa_attention_params params = {
					.dtype = (enum fa_attention_dtype)dtype,
					.batch = 1,
					.heads = 1,
					.kv_heads = 1,
					.head_dim = dim,
					.head_dim_v = dim,
					.seqlen_q = 70,
					.seqlen_k = 300,
					.scale = (n % 5 ? 1 : -1) * scales[n % 3] /
					         (float)sqrt(dim),
					.softcap = caps[n / 3],
					.causal = n % 2,
					.window_left = -1,
					.window_right = -1,
				};
				struct fa_request request;

				fa_request_make(cases->gpu, &request, &params, NULL, NULL, usual,
				                n == 7, n == 5, &cases->random);
				fa_cases_check(cases, &request);
				fa_request_free(cases->gpu, &request);
			}
}

/*
 * Rare strides that all kernels must take: overlapping rows and heads; K that is V; O with heads
 * in reverse order.
 */
static void case_strides(struct fa_cases *cases)
{
	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int dim = 64; dim <= 256; dim *= 2)
			for (int kind = 0; kind < 4; kind++) {
				const struct fa_attention_params params = {
					.dtype = (enum fa_attention_dtype)dtype,
					.batch = 2,
					.heads = 4,
					.kv_heads = 2,
					.head_dim = dim,
					.head_dim_v = dim,
					.seqlen_q = 70,
					.seqlen_k = 150,
					.scale = (float)(1 / sqrt(dim)),
					.causal = kind % 2,
					.window_left = -1,
					.window_right = -1,
				};
				const struct fa_request_layout layout = { .head_major = true };
				static const char *const kinds[] = { " overlapping rows",
					                             " overlapping heads",
					                             " K is V", " O backwards" };
				struct fa_request request;
				struct fa_attention_params *p = &request.params;

				fa_request_make(cases->gpu, &request, &params, NULL, NULL, layout,
				                false, false, &cases->random);
				if (kind == 0)
					p->k.stride_token = p->v.stride_token = 8;
				if (kind == 1)
					p->k.stride_head = p->q.stride_head = 16;
				if (kind == 2)
					p->v = p->k;
				if (kind == 3) {
					p->out.data = (char *)p->out.data +
					              (p->heads - 1) * p->out.stride_head *
					                      (dtype == FA_ATTENTION_F32 ? 4 : 2);
					request.out.first += (p->heads - 1) * p->out.stride_head;
					p->out.stride_head *= -1;
				}
				strncat(request.text, kinds[kind],
				        sizeof(request.text) - strlen(request.text) - 1);
				fa_cases_check(cases, &request);
				fa_request_free(cases->gpu, &request);
			}
}

static void case_groups(struct fa_cases *cases)
{
	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int group = 1; group <= 16; group++)
			for (int kv_heads = 1; kv_heads <= 3; kv_heads += 2)
				check_shape(cases, dtype, group * kv_heads, kv_heads,
				            group % 2 ? 64 : 128, group % 2 ? 64 : 128, 113, 203,
				            group % 3 != 0, 0);
}

/* Empty sequences on either side, on both, first and last. */
static void case_ragged(struct fa_cases *cases)
{
	static const uint32_t cu_q[] = { 0, 0, 1, 18, 18, 146, 349, 349, 350, 350 };
	static const uint32_t cu_k[] = { 0, 5, 5, 135, 135, 262, 1262, 1300, 1301, 1301 };
	static const int dims[] = { 64, 128, 192, 256, 80 };

	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (size_t d = 0; d < COUNT(dims); d++)
			for (int mask = 0; mask < 3; mask++) {
				const struct fa_attention_params params = {
					.dtype = (enum fa_attention_dtype)dtype,
					.batch = COUNT(cu_q) - 1,
					.heads = 4,
					.kv_heads = 2,
					.head_dim = dims[d],
					.head_dim_v = dims[d],
					.scale = (float)(1 / sqrt(dims[d])),
					.causal = mask == 1,
					.window_left = mask == 2 ? 40 : -1,
					.window_right = mask == 2 ? 7 : -1,
				};
				/* NaN in one sequence does not affect the others. */
				const struct fa_request_layout layout = { .broken = mask ? 0 : 12 };
				struct fa_request request;

				fa_request_make(cases->gpu, &request, &params, cu_q, cu_k, layout,
				                false, mask == 2, &cases->random);
				fa_cases_check(cases, &request);
				fa_request_free(cases->gpu, &request);
			}
}

/* Few rows behind many keys: packed rows. */
static void case_ragged_packed(struct fa_cases *cases)
{
	static const uint32_t cu_q[] = { 0, 5, 5, 6, 106, 119, 183, 210 };
	static const uint32_t cu_k[] = { 0, 300, 333, 334, 634, 1047, 1111, 1611 };
	static const int dims[] = { 64, 128, 256 }, groups[] = { 4, 8, 5, 16 };

	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int n = 0; n < 3 * 3; n++) {
			const int dim = dims[n / 3], mask = n % 3, group = groups[(n + dtype) % 4];
			const struct fa_attention_params params = {
				.dtype = (enum fa_attention_dtype)dtype,
				.batch = COUNT(cu_q) - 1,
				.heads = 2 * group,
				.kv_heads = 2,
				.head_dim = dim,
				.head_dim_v = dim,
				.scale = (float)(1 / sqrt(dim)),
				.causal = mask == 1,
				.window_left = mask == 2 ? 300 : -1,
				.window_right = mask == 2 ? 7 : -1,
			};
			/* NaN in one sequence does not affect the others. */
			const struct fa_request_layout layout = { .broken = mask ? 0 : 12 };
			struct fa_request request;

			fa_request_make(cases->gpu, &request, &params, cu_q, cu_k, layout, false,
			                mask == 2, &cases->random);
			fa_cases_check(cases, &request);
			fa_request_free(cases->gpu, &request);
		}
}

static void case_random(struct fa_cases *cases)
{
	for (int i = 0; i < cases->count; i++) {
		struct fa_request request;

		fa_request_random(cases->gpu, &request, &cases->random);
		fa_cases_check(cases, &request);
		fa_request_free(cases->gpu, &request);
	}
}

/*
 * Runs every kernel on a few tiles, with and without infinities and NaN in K and V: small enough
 * for compute-sanitizer.
 */
static void case_small(struct fa_cases *cases)
{
	static const int dims[][2] = { { 64, 64 },   { 96, 96 },   { 128, 128 },
		                       { 192, 128 }, { 192, 192 }, { 256, 256 } };

	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (size_t d = 0; d < COUNT(dims); d++)
			for (int rich = 0; rich < 3; rich++) /* rich 2: no ALiBi, aligned */
				for (int broken = 0; broken <= 10; broken += 5) {
					const struct fa_attention_params params = {
						.dtype = (enum fa_attention_dtype)dtype,
						.batch = 1,
						.heads = 2,
						.kv_heads = 1,
						.head_dim = dims[d][0],
						.head_dim_v = dims[d][1],
						.seqlen_q = 150,
						.seqlen_k = 170,
						.scale = (float)(4 / sqrt(dims[d][0])),
						.softcap = rich ? 20 : 0,
						.causal = true,
						.window_left = rich ? 90 : -1,
						.window_right = -1,
					};
					const struct fa_request_layout layout = {
						.gap = rich == 1 ? 3 : 0,
						.broken = broken,
					};
					struct fa_request request;

					fa_request_make(cases->gpu, &request, &params, NULL, NULL,
					                layout, rich == 1, rich, &cases->random);
					fa_cases_check(cases, &request);
					fa_request_free(cases->gpu, &request);
				}
}

static void case_long(struct fa_cases *cases)
{
	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int dim = 64; dim <= 256; dim *= 2)
			for (int causal = 0; causal < 2; causal++)
				check_shape(cases, dtype, 2, 1, dim, dim, 4224, 4224, causal, 0);
}

/* Compares the GPU reference with the reference that judges the CPU's kernels. */
static void case_reference(struct fa_cases *cases)
{
	for (int i = 0; i < 20; i++) {
		struct fa_request_reference reference;
		struct fa_request_copy copy;
		struct fa_request request;
		double worst = 0, *out;

		fa_request_random(cases->gpu, &request, &cases->random);
		fa_request_reference(cases->gpu, &request, &reference);
		fa_request_download(cases->gpu, &request, &copy);
		out = calloc((size_t)request.params.head_dim_v, sizeof(*out));
		if (!out)
			abort();
		for (int n = 0; n < 40; n++) {
			const int b = (int)fa_random_below(&cases->random, request.params.batch);
			const int h = (int)fa_random_below(&cases->random, request.params.heads);
			const int64_t n_q = reference_n_q(&copy.params, b);
			const int64_t first = request.lengths_q ? request.lengths_q[b]
			                                        : b * request.tokens_q;
			int64_t t, row;
			double lse;

			if (n_q == 0)
				continue;
			t = fa_random_below(&cases->random, n_q);
			row = (first + t) * request.params.heads + h;
			reference_row(&copy.params, b, t, h, false, out, &lse);
			/* Where all scores are NaN, the CPU's reference reports the LSE of no
			 * keys. */
			if (isnan(reference.lse[row])) {
				if (!isnan(lse) && lse != -INFINITY)
					worst = INFINITY;
				continue;
			}
			if (lse != reference.lse[row])
				worst = fmax(worst, fabs(lse - reference.lse[row]));
			for (int d = 0; d < request.params.head_dim_v; d++) {
				const double other =
					reference.out[row * request.params.head_dim_v + d];

				/*
				 * Where all scores are -inf, the CPU's reference ignores V, while
				 * here 0 times a broken value is NaN.
				 */
				if (lse == -INFINITY && isnan(other))
					continue;
				if (!isfinite(out[d]) || !isfinite(other))
					worst = isfinite(out[d]) || isfinite(other) ? INFINITY
					                                            : worst;
				else
					worst = fmax(worst, fabs(out[d] - other));
			}
		}
		fa_cases_count(cases, worst < 1e-9, "%s: the references differ by %g", request.text,
		               worst);
		free(out);
		fa_request_copy_free(&copy);
		fa_request_reference_free(&reference);
		fa_request_free(cases->gpu, &request);
	}
}

static const struct {
	const char *name;
	void (*run)(struct fa_cases *cases);
} all[] = {
	{ "reference", case_reference }, { "small", case_small },
	{ "shapes", case_shapes },       { "groups", case_groups },
	{ "ragged", case_ragged },       { "ragged-packed", case_ragged_packed },
	{ "random", case_random },       { "long", case_long },
	{ "alone", fa_case_alone },      { "far", fa_case_far },
	{ "rerun", fa_case_rerun },      { "peaked", case_peaked },
	{ "raised", case_raised },       { "strides", case_strides },
	{ "chain", fa_case_chain },      { "yield", fa_case_yield },
	{ "windows", case_windows },     { "slopes", case_slopes },
	{ "softcaps", case_softcaps },   { "large", case_large },
	{ "wide", case_wide },           { "masks", fa_case_masks },
	{ "plain", fa_case_plain },
};

/* Returns the number of checks of chip-specific kernels so far. */
static int special_checks(const struct fa_cases *cases)
{
	int n = 0;

	for (size_t i = 0; i < fa_cuda_kernels_count; i++)
		if (fa_cuda_kernel_is_special(&fa_cuda_kernels[i]))
			n += cases->checks[i];
	return n;
}

static void run(struct fa_cases *cases, size_t i)
{
	const int passed = cases->passed, failed = cases->failed, special = special_checks(cases);
	struct timespec start, end;

	clock_gettime(CLOCK_MONOTONIC, &start);
	all[i].run(cases);
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%s: %d passed, %d failed, %.1f s; %d checks of kernels for this chip alone\n",
	       all[i].name, cases->passed - passed, cases->failed - failed,
	       (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9,
	       special_checks(cases) - special);
	fflush(stdout);
}

/* Prints the checks per kernel. Fails if a kernel of this chip was never checked that had to be:
 * those of packed rows of ragged batches with @want_ragged, all others with @want. */
static void say_kernels(struct fa_cases *cases, bool want, bool want_ragged)
{
	for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

		if (!fa_cuda_kernel_runs(kernel, fa_gpu_chip(cases->gpu)) ||
		    !strstr(kernel->symbol, cases->kernel))
			continue;
		if (cases->checks[i])
			printf("%6d %s\n", cases->checks[i], kernel->symbol);
		else if (kernel->kind == FA_CUDA_PACKED_RAGGED ? want_ragged : want)
			fa_cases_count(cases, false, "%s was never checked", kernel->symbol);
	}
}

int main(int argc, char **argv)
{
	struct fa_cases cases = { .count = 200, .reruns = 1000, .kernel = "" };
	uint64_t seed = fa_draw_seed();
	bool wanted[COUNT(all)] = { false }, any = false, probe = false, fault = false;
	bool want = false, want_ragged = false;

	for (int i = 1; i < argc; i++) {
		const bool more = i + 1 < argc;
		bool known = false;

		for (size_t c = 0; c < COUNT(all); c++)
			if (!strcmp(argv[i], all[c].name))
				wanted[c] = any = known = true;
		if (known)
			continue;
		if (!strcmp(argv[i], "--list")) {
			for (size_t c = 0; c < COUNT(all); c++)
				printf("%s\n", all[c].name);
			return 0;
		}
		if (!strcmp(argv[i], "--probe")) {
			probe = true;
		} else if (!strcmp(argv[i], "--fault")) {
			fault = true;
		} else if (!strcmp(argv[i], "--seed") && more) {
			seed = strtoull(argv[++i], NULL, 0);
		} else if (!strcmp(argv[i], "--random") && more) {
			cases.count = atoi(argv[++i]);
		} else if (!strcmp(argv[i], "--kernel") && more) {
			cases.kernel = argv[++i];
		} else if (!strcmp(argv[i], "--reruns") && more) {
			cases.reruns = atoi(argv[++i]);
		} else {
			fprintf(stderr, "unknown argument %s\n", argv[i]);
			return 2;
		}
	}
	cases.gpu = fa_gpu_open();
	if (!cases.gpu)
		return 77;
	if (probe) {
		printf("%s\n", fa_gpu_name(cases.gpu));
		fa_gpu_close(cases.gpu);
		return 0;
	}
	if (fault) {
		fa_gpu_compare(cases.gpu, 16, 16, 4096, 16);
		fa_gpu_sync(cases.gpu);
		return 1;
	}
	cases.checks = calloc(fa_cuda_kernels_count, sizeof(*cases.checks));
	if (!cases.checks)
		abort();
	printf("%s, seed %llu\n", fa_gpu_name(cases.gpu), (unsigned long long)seed);
	fflush(stdout);
	cases.random = seed * 2 + 1;
	for (size_t c = 0; c < COUNT(all); c++)
		if (!any || wanted[c])
			run(&cases, c);
	for (size_t c = 0; c < COUNT(all); c++) {
		want |= (!any || wanted[c]) && all[c].run == case_shapes;
		want_ragged |= (!any || wanted[c]) && all[c].run == case_ragged_packed;
	}
	/* A part of the cases need not reach all kernels. */
	say_kernels(&cases, want && fa_draw_is_whole(), want_ragged && fa_draw_is_whole());
	printf("%d passed, %d failed, %d skipped; largest share of the allowed error: f32 %.2f, "
	       "f16 %.2f, bf16 %.2f\n",
	       cases.passed, cases.failed, cases.skipped, cases.worst[FA_ATTENTION_F32],
	       cases.worst[FA_ATTENTION_F16], cases.worst[FA_ATTENTION_BF16]);
	fa_gpu_close(cases.gpu);
	free(cases.checks);
	return cases.failed ? 1 : cases.passed ? 0 : 77;
}
