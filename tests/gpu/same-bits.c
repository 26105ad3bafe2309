/* Cases that compare the bits of two results. */
#include "tests/gpu/cases.h"
#include "tests/gpu/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct fa_request_layout usual;

/* About as long as the preempted launches take. */
#define YIELD_PAUSE_NS 200000

static uint64_t address(const void *data)
{
	return (uint64_t)(uintptr_t)data;
}

static size_t element_bytes(const struct fa_request *request)
{
	return request->params.dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static uint32_t take_count(struct fa_gpu *gpu, uint64_t count)
{
	uint32_t value, zero = 0;

	fa_gpu_sync(gpu);
	fa_gpu_download(gpu, &value, count, 4);
	fa_gpu_upload(gpu, count, &zero, 4);
	return value;
}

static void far_rows(struct fa_cases *cases)
{
	/* The longest pitch that copies of 16 bytes can use, and a longer one. */
	static const size_t pitches[] = { ((size_t)4 << 20) - 16, ((size_t)4 << 20) + 16 };
	const size_t row = 128 * 2;
	const struct fa_attention_params params = {
		.dtype = FA_ATTENTION_BF16,
		.batch = 1,
		.heads = 1,
		.kv_heads = 1,
		.head_dim = 128,
		.head_dim_v = 128,
		.seqlen_q = 1500,
		.seqlen_k = 1500,
		.scale = 0.1f,
		.causal = true,
		.window_left = -1,
		.window_right = -1,
	};
	const size_t rows = (size_t)params.seqlen_q, bytes = rows * row;
	struct fa_gpu *gpu = cases->gpu;
	struct fa_request request;
	uint64_t close, count;

	if (fa_gpu_memory_free(gpu) < 4 * rows * pitches[1] + ((uint64_t)2 << 30)) {
		printf("far: skipped, too little memory\n");
		cases->skipped++;
		return;
	}
	fa_request_make(gpu, &request, &params, NULL, NULL, usual, false, false, &cases->random);
	close = fa_gpu_alloc(gpu, bytes);
	count = fa_gpu_alloc(gpu, 4);
	take_count(gpu, count);
	for (size_t n = 0; n < sizeof(pitches) / sizeof(pitches[0]); n++) {
		const size_t pitch = pitches[n];
		struct fa_attention_params far = request.params;
		struct fa_attention_tensor *tensors[4] = { &far.q, &far.k, &far.v, &far.out };
		uint64_t spread[4];

		for (int i = 0; i < 4; i++) {
			spread[i] = fa_gpu_alloc(gpu, rows * pitch);
			fa_gpu_poison(gpu, spread[i], rows * pitch);
			fa_gpu_copy_rows(gpu, spread[i], pitch, address(tensors[i]->data), row, row,
			                 rows);
			tensors[i]->data = (void *)(uintptr_t)spread[i];
			tensors[i]->stride_token = (int64_t)(pitch / 2);
		}
		for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
			const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];
			struct fa_cuda_launch launch;
			char text[256];
			uint32_t differences;

			if (!strstr(kernel->symbol, cases->kernel) ||
			    !fa_cuda_kernel_runs(kernel, fa_gpu_chip(gpu)) ||
			    !fa_cuda_kernel_covers(kernel, &far))
				continue;
			cases->checks[i]++;
			if (fa_cuda_attention_plan_on(fa_gpu_chip(gpu), kernel, &request.params,
			                              text, sizeof(text), &launch) < 0)
				abort();
			fa_gpu_launch(gpu, &launch, NULL);
			if (fa_cuda_attention_plan_on(fa_gpu_chip(gpu), kernel, &far, text,
			                              sizeof(text), &launch) < 0)
				abort();
			fa_gpu_launch(gpu, &launch, NULL);
			fa_gpu_copy_rows(gpu, close, row, spread[3], pitch, row, rows);
			fa_gpu_compare(gpu, address(request.params.out.data), close, bytes, count);
			differences = take_count(gpu, count);
			fa_cases_count(cases, differences == 0,
			               "%s: rows %zu bytes apart: %u words differ", kernel->symbol,
			               pitch, differences);
		}
		for (int i = 0; i < 4; i++)
			fa_gpu_free(gpu, spread[i]);
	}
	fa_gpu_free(gpu, close);
	fa_gpu_free(gpu, count);
	fa_request_free(gpu, &request);
}

static void far_heads(struct fa_cases *cases)
{
	static const int dims[] = { 64, 128, 256 };
	const size_t pitch = (size_t)3 << 30;
	struct fa_gpu *gpu = cases->gpu;
	const uint64_t count = fa_gpu_alloc(gpu, 4);
	uint64_t spread[4];

	if (fa_gpu_memory_free(gpu) < 4 * 3 * (uint64_t)pitch + ((uint64_t)2 << 30)) {
		printf("far: heads skipped, too little memory\n");
		cases->skipped++;
		fa_gpu_free(gpu, count);
		return;
	}
	take_count(gpu, count);
	for (int i = 0; i < 4; i++) {
		spread[i] = fa_gpu_alloc(gpu, 3 * pitch);
		fa_gpu_poison(gpu, spread[i], 3 * pitch);
	}
	for (int n = 0; n < 12; n++) {
		const int dim = dims[n / 2 % 3];
		const struct fa_attention_params params = {
			.dtype = n < 6 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16,
			.batch = 1,
			.heads = 3,
			.kv_heads = 3,
			.head_dim = dim,
			.head_dim_v = dim,
			.seqlen_q = 333,
			.seqlen_k = 333,
			.scale = 0.1f,
			.causal = n % 2,
			.window_left = -1,
			.window_right = -1,
		};
		const size_t row = (size_t)dim * 2, rows = (size_t)params.seqlen_q;
		struct fa_request request;
		struct fa_attention_params far;
		struct fa_attention_tensor *tensors[4] = { &far.q, &far.k, &far.v, &far.out };
		uint64_t close;

		fa_request_make(gpu, &request, &params, NULL, NULL, usual, false, false,
		                &cases->random);
		close = fa_gpu_alloc(gpu, 3 * rows * row);
		far = request.params;
		for (int i = 0; i < 4; i++) {
			for (size_t h = 0; h < 3; h++)
				fa_gpu_copy_rows(gpu, spread[i] + h * pitch, row,
				                 address(tensors[i]->data) + h * row, 3 * row, row,
				                 rows);
			tensors[i]->data = (void *)(uintptr_t)spread[i];
			tensors[i]->stride_token = dim;
			tensors[i]->stride_head = (int64_t)(pitch / 2);
		}
		for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
			const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];
			struct fa_cuda_launch launch;
			char text[256];
			uint32_t differences;

			if (!strstr(kernel->symbol, cases->kernel) ||
			    !fa_cuda_kernel_runs(kernel, fa_gpu_chip(gpu)) ||
			    !fa_cuda_kernel_covers(kernel, &far))
				continue;
			if (fa_cuda_attention_plan_on(fa_gpu_chip(gpu), kernel, &request.params,
			                              text, sizeof(text), &launch) < 0)
				abort();
			fa_gpu_launch(gpu, &launch, NULL);
			if (fa_cuda_attention_plan_on(fa_gpu_chip(gpu), kernel, &far, text,
			                              sizeof(text), &launch) < 0)
				abort();
			fa_gpu_launch(gpu, &launch, NULL);
			for (size_t h = 0; h < 3; h++)
				fa_gpu_copy_rows(gpu, close + h * row, 3 * row,
				                 spread[3] + h * pitch, row, row, rows);
			fa_gpu_compare(gpu, address(request.params.out.data), close, 3 * rows * row,
			               count);
			differences = take_count(gpu, count);
			fa_cases_count(cases, differences == 0,
			               "%s: heads %zu bytes apart: %u words differ", kernel->symbol,
			               pitch, differences);
			cases->checks[i]++;
		}
		fa_gpu_free(gpu, close);
		fa_request_free(gpu, &request);
	}
	for (int i = 0; i < 4; i++)
		fa_gpu_free(gpu, spread[i]);
	fa_gpu_free(gpu, count);
}

void fa_case_far(struct fa_cases *cases)
{
	far_rows(cases);
	far_heads(cases);
}

/* Runs over poisoned outputs. @grid 0: as planned. */
static void launch_with(struct fa_gpu *gpu, const struct fa_request *request,
                        const struct fa_cuda_kernel *kernel, uint32_t grid, uint32_t *ret_planned)
{
	struct fa_cuda_launch launch;
	char text[256];

	if (fa_cuda_attention_plan_on(fa_gpu_chip(gpu), kernel, &request->params, text,
	                              sizeof(text), &launch) < 0)
		abort();
	*ret_planned = (uint32_t)launch.args.units_m * (uint32_t)launch.args.triples;
	if (grid) {
		launch.grid = grid;
		launch.list_units = (launch.list_units + grid - 1) / grid * grid;
	}
	fa_gpu_poison(gpu, request->out.address,
	              (size_t)request->out.elements * element_bytes(request));
	fa_gpu_poison(gpu, request->lse.address, (size_t)request->lse.elements * 4);
	fa_gpu_poison_shared(gpu);
	fa_gpu_launch(gpu, &launch, NULL);
}

static void chain(struct fa_cases *cases, const struct fa_request *request,
                  const struct fa_cuda_kernel *kernel, uint64_t count)
{
	const size_t bytes = (size_t)request->out.elements * element_bytes(request) / 4 * 4;
	const size_t lse_bytes = (size_t)request->lse.elements * 4;
	struct fa_gpu *gpu = cases->gpu;
	const uint64_t out = fa_gpu_alloc(gpu, bytes), lse = fa_gpu_alloc(gpu, lse_bytes);
	uint32_t units, differences;

	launch_with(gpu, request, kernel, 0, &units);
	for (uint32_t grid = units; grid > 0; grid /= 3) {
		launch_with(gpu, request, kernel, grid, &units);
		if (grid == units) {
			fa_gpu_copy_rows(gpu, out, bytes, request->out.address, bytes, bytes, 1);
			fa_gpu_copy_rows(gpu, lse, lse_bytes, request->lse.address, lse_bytes,
			                 lse_bytes, 1);
			continue;
		}
		fa_gpu_compare(gpu, out, request->out.address, bytes, count);
		fa_gpu_compare(gpu, lse, request->lse.address, lse_bytes, count);
		differences = take_count(gpu, count);
		fa_cases_count(cases, differences == 0,
		               "%s: %s: %u words differ with %u blocks of threads for %u units",
		               kernel->symbol, request->text, differences, grid, units);
	}
	fa_gpu_free(gpu, out);
	fa_gpu_free(gpu, lse);
}

void fa_case_chain(struct fa_cases *cases)
{
	/* No keys, no queries, more queries than keys, a whole tile, and a tail. */
	static const uint32_t cu_q[] = { 0, 70, 70, 170, 298, 301, 501 };
	static const uint32_t cu_k[] = { 0, 0, 50, 70, 198, 498, 629 };
	static const int dims[] = { 64, 128, 256 };
	struct fa_gpu *gpu = cases->gpu;
	const uint64_t count = fa_gpu_alloc(gpu, 4);

	take_count(gpu, count);
	for (int n = 0; n < 2 * 3 * 4 * 2; n++) {
		const int dim = dims[n / 2 % 3], mask = n / 6 % 4;
		const bool ragged = n / 24;
		const struct fa_attention_params params = {
			.dtype = n % 2 ? FA_ATTENTION_BF16 : FA_ATTENTION_F16,
			.batch = ragged ? 6 : 2,
			.heads = 2,
			.kv_heads = 1,
			.head_dim = dim,
			.head_dim_v = dim,
			.seqlen_q = 260,
			.seqlen_k = 230, /* causal: the first rows see nothing */
			.scale = (float)(4 / sqrt(dim)),
			.causal = mask == 1,
			.window_left = mask == 2   ? 40
			               : mask == 3 ? 100
			                           : -1,
			.window_right = mask == 2   ? 3
			                : mask == 3 ? 70
			                            : -1,
		};
		const struct fa_request_layout layout = { .broken = mask == 1 ? 3 : 0 };
		struct fa_request request;

		fa_request_make(gpu, &request, &params, ragged ? cu_q : NULL, ragged ? cu_k : NULL,
		                layout, false, false, &cases->random);
		for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
			const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

			if (!kernel->keys || !strstr(kernel->symbol, cases->kernel) ||
			    !fa_cuda_kernel_runs(kernel, fa_gpu_chip(gpu)) ||
			    !fa_cuda_kernel_covers(kernel, &request.params) || kernel->dim != dim ||
			    !fa_draw())
				continue;
			chain(cases, &request, kernel, count);
			cases->checks[i]++;
		}
		fa_request_free(gpu, &request);
	}
	fa_gpu_free(gpu, count);
}

static void launch_planned(struct fa_gpu *gpu, const struct fa_cuda_chip *chip,
                           const struct fa_attention_params *params)
{
	struct fa_cuda_launch launch;
	char text[256];

	if (fa_cuda_attention_plan(chip, params, text, sizeof(text), &launch) < 0)
		abort();
	fa_gpu_launch(gpu, &launch, NULL);
}

void fa_case_alone(struct fa_cases *cases)
{
	static const uint32_t cu_q[] = { 0, 77, 77, 378, 379, 800 };
	static const uint32_t cu_k[] = { 0, 500, 517, 517, 1117, 1538 };
	static const int dims[] = { 64, 128, 192, 256 };
	struct fa_gpu *gpu = cases->gpu;
	const uint64_t count = fa_gpu_alloc(gpu, 4),
		       alone = fa_gpu_alloc_shared(gpu, 4 * sizeof(uint32_t));
	struct fa_cuda_chip chip = *fa_gpu_chip(gpu);

	/* Packed rows split a sequence's keys by what else the batch has. */
	chip.pack = -1;

	take_count(gpu, count);
	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
			for (int causal = 0; causal < 2; causal++) {
				const struct fa_attention_params params = {
					.dtype = (enum fa_attention_dtype)dtype,
					.batch = 5,
					.heads = 6,
					.kv_heads = 2,
					.head_dim = dims[d],
					.head_dim_v = dims[d],
					.scale =
						(float)(8 /
					                sqrt(dims[d])), /* the running maximum changes */
					.causal = causal,
					.window_left = -1,
					.window_right = -1,
				};
				struct fa_request request;
				struct fa_attention_params one;
				uint64_t together;
				size_t bytes;

				fa_request_make(gpu, &request, &params, cu_q, cu_k, usual, false,
				                false, &cases->random);
				bytes = (size_t)request.out.elements * element_bytes(&request);
				together = fa_gpu_alloc(gpu, bytes);
				launch_planned(gpu, &chip, &request.params);
				fa_gpu_copy_rows(gpu, together, bytes, request.out.address, bytes,
				                 bytes, 1);
				fa_gpu_sync(gpu);
				fa_gpu_poison(gpu, request.out.address, bytes);
				for (int b = 0; b < params.batch; b++) {
					/* seqlens are the request's: those of the whole batch. */
					const uint32_t lengths[4] = { cu_q[b], cu_q[b + 1], cu_k[b],
						                      cu_k[b + 1] };

					memcpy((void *)(uintptr_t)alone, lengths, sizeof(lengths));
					one = request.params;
					one.batch = 1;
					one.cu_seqlens_q = (const uint32_t *)(uintptr_t)alone;
					one.cu_seqlens_k = one.cu_seqlens_q + 2;
					launch_planned(gpu, &chip, &one);
					fa_gpu_sync(gpu);
				}
				fa_gpu_compare(gpu, together, request.out.address, bytes, count);
				const uint32_t differences = take_count(gpu, count);
				fa_cases_count(cases, differences == 0,
				               "%s: %u words differ from those of sequences alone",
				               request.text, differences);
				fa_gpu_free(gpu, together);
				fa_request_free(gpu, &request);
			}
	fa_gpu_free(gpu, count);
	fa_gpu_free_shared(gpu, alone);
}

void fa_case_rerun(struct fa_cases *cases)
{
	static const int dims[] = { 64, 128, 256 };
	struct fa_gpu *gpu = cases->gpu;
	const uint64_t count = fa_gpu_alloc(gpu, 4);

	take_count(gpu, count);
	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
		for (size_t n = 0; n < 2 * sizeof(dims) / sizeof(dims[0]); n++) {
			const size_t d = n / 2;
			const struct fa_attention_params params = {
				.dtype = (enum fa_attention_dtype)dtype,
				.batch = 2,
				.heads = 8,
				.kv_heads = 2,
				.head_dim = dims[d],
				.head_dim_v = dims[d],
				.seqlen_q = 777,
				.seqlen_k = 1111,
				.scale = (float)(4 / sqrt(dims[d])),
				.causal = n % 2,
				.window_left = -1,
				.window_right = -1,
			};
			struct fa_request request, other;
			uint32_t differences;
			uint64_t first;
			size_t bytes;

			fa_request_make(gpu, &request, &params, NULL, NULL, usual, false, false,
			                &cases->random);
			fa_request_make(gpu, &other, &params, NULL, NULL, usual, false, false,
			                &cases->random);
			bytes = (size_t)request.out.elements * element_bytes(&request);
			first = fa_gpu_alloc(gpu, bytes);
			fa_gpu_attention(gpu, &request.params, NULL);
			fa_gpu_copy_rows(gpu, first, bytes, request.out.address, bytes, bytes, 1);
			for (int i = 0; i < cases->reruns; i++) {
				if (i % 3)
					fa_gpu_attention(gpu, &other.params, fa_gpu_stream(gpu));
				fa_gpu_poison(gpu, request.out.address, bytes);
				fa_gpu_poison_shared(gpu);
				fa_gpu_attention(gpu, &request.params, NULL);
				fa_gpu_compare(gpu, first, request.out.address, bytes, count);
			}
			differences = take_count(gpu, count);
			fa_cases_count(cases, differences == 0, "%s: %u words differ in %d runs",
			               request.text, differences, cases->reruns);
			fa_gpu_free(gpu, first);
			fa_request_free(gpu, &request);
			fa_request_free(gpu, &other);
		}
	fa_gpu_free(gpu, count);
}

/* Returns the number of yields. */
static int yield_on(struct fa_cases *cases, const struct fa_request *request,
                    const struct fa_cuda_kernel *kernel, uint64_t count, int runs)
{
	const size_t bytes = (size_t)request->out.elements * element_bytes(request) / 4 * 4;
	const size_t lse_bytes = (size_t)request->lse.elements * 4;
	struct fa_gpu *gpu = cases->gpu;
	const uint64_t out = fa_gpu_alloc(gpu, bytes), lse = fa_gpu_alloc(gpu, lse_bytes);
	struct fa_cuda_launch launch;
	uint32_t units, differences;
	int stops = 0;
	char text[256];

	launch_with(gpu, request, kernel, 0, &units);
	fa_gpu_copy_rows(gpu, out, bytes, request->out.address, bytes, bytes, 1);
	fa_gpu_copy_rows(gpu, lse, lse_bytes, request->lse.address, lse_bytes, lse_bytes, 1);
	if (fa_cuda_attention_plan_on(fa_gpu_chip(gpu), kernel, &request->params, text,
	                              sizeof(text), &launch) < 0)
		abort();
	for (int i = 0; i < runs; i++) {
		fa_gpu_poison(gpu, request->out.address,
		              (size_t)request->out.elements * element_bytes(request));
		fa_gpu_poison(gpu, request->lse.address, lse_bytes);
		fa_gpu_poison_shared(gpu);
		fa_gpu_sync(gpu);
		stops += fa_gpu_launch_yielding(gpu, &launch, YIELD_PAUSE_NS, &cases->random);
		fa_gpu_compare(gpu, out, request->out.address, bytes, count);
		fa_gpu_compare(gpu, lse, request->lse.address, lse_bytes, count);
	}
	differences = take_count(gpu, count);
	fa_cases_count(cases, differences == 0,
	               "%s: %s: %u words differ in %d runs, stopped %d times", kernel->symbol,
	               request->text, differences, runs, stops);
	fa_gpu_free(gpu, out);
	fa_gpu_free(gpu, lse);
	return stops;
}

void fa_case_yield(struct fa_cases *cases)
{
	static const int dims[] = { 64, 96, 128, 192, 256 };
	struct fa_gpu *gpu = cases->gpu;
	/* Long enough to be preempted; the emulator has few SMs. */
	const bool large = fa_gpu_chip(gpu)->sms > 8;
	const uint64_t count = fa_gpu_alloc(gpu, 4);
	int *stops = calloc(fa_cuda_kernels_count, sizeof(*stops));

	if (!stops)
		abort();
	take_count(gpu, count);
	/* Full, causal, windowed and soft-capped requests, and such with a pattern; half of them with
	 * an infinity or NaN. */
	for (int n = 0; n < 2 * 5 * 5; n++) {
		const int dim = dims[n % 5], mask = n / 5 % 5;
		const struct fa_attention_params params = {
			.dtype = n / 25 ? FA_ATTENTION_BF16 : FA_ATTENTION_F16,
			.batch = 2,
			.heads = large ? 16 : 2,
			.kv_heads = large ? 4 : 1,
			.head_dim = dim,
			.head_dim_v = dim,
			.seqlen_q = large ? 2100 : 300,
			.seqlen_k = large ? 2777 : 400,
			.scale = (float)(4 / sqrt(dim)),
			.softcap = mask == 3 ? 8 : 0,
			.causal = mask == 1,
			.window_left = mask == 2 ? (large ? 1500 : 150) : -1,
			.window_right = mask == 2 ? 70 : -1,
			/* Some rows see nothing of their first tile. */
			.pattern = { mask == 4 ? 32 : 0, 20, 3, 1, 0 },
		};
		const struct fa_request_layout layout = { .broken = (n % 5 + mask) % 2 ? 3 : 0 };
		struct fa_request request;

		fa_request_make(gpu, &request, &params, NULL, NULL, layout, false, mask == 3,
		                &cases->random);
		for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
			const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

			if (!kernel->state_bytes || kernel->dim != dim ||
			    !strstr(kernel->symbol, cases->kernel) ||
			    !fa_cuda_kernel_runs(kernel, fa_gpu_chip(gpu)) ||
			    !fa_cuda_kernel_covers(kernel, &request.params))
				continue;
			stops[i] += yield_on(cases, &request, kernel, count, large ? 10 : 1);
			cases->checks[i]++;
		}
		fa_request_free(gpu, &request);
	}
	for (size_t i = 0; i < fa_cuda_kernels_count; i++)
		if (fa_cuda_kernels[i].state_bytes && cases->checks[i] &&
		    strstr(fa_cuda_kernels[i].symbol, cases->kernel))
			fa_cases_count(cases, stops[i] > 0, "%s never gave way",
			               fa_cuda_kernels[i].symbol);
	free(stops);
	fa_gpu_free(gpu, count);
}
