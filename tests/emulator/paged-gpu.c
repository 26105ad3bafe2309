/*
 * Implements tests/gpu/paged-gpu.h on the emulator: device memory is the host's. Times mean
 * nothing. EMULATED_WITHOUT_TMA in the environment leaves out kernels that load by TMA.
 */
#include "tests/gpu/paged-gpu.h"
#include "tests/emulator/find.h"
#include "tests/emulator/yield.h"
#include "tests/kernels/problem.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_MAX ((size_t)1 << 30)

struct paged_gpu {
	struct fa_cuda_chip chip;
	void *workspace;
	size_t workspace_bytes;
	uint64_t epoch;
	bool without_tma, unstable;
	int n_mapped; /* launches of kernels that load by TMA */
};

struct paged_gpu *paged_gpu_open(void)
{
	struct paged_gpu *gpu = calloc(1, sizeof(*gpu));

	if (!gpu)
		abort();
	/* Few SMs, so that thread blocks have many tiles. */
	gpu->without_tma = getenv("EMULATED_WITHOUT_TMA") != NULL;
	gpu->chip = (struct fa_cuda_chip){ .arch = 90,
		                           .shared_bytes_max = 232448,
		                           .l2_bytes = 50 << 20,
		                           .sms = gpu->without_tma ? 20 : 3 };
	return gpu;
}

struct paged_gpu *paged_gpu_close(struct paged_gpu *gpu)
{
	if (gpu && !gpu->without_tma && gpu->n_mapped == 0) {
		fprintf(stderr, "no kernel that loads by TMA was launched\n");
		abort();
	}
	if (gpu)
		free(gpu->workspace);
	free(gpu);
	return NULL;
}

const struct fa_cuda_chip *paged_gpu_chip(const struct paged_gpu *gpu)
{
	return &gpu->chip;
}

const char *paged_gpu_name(const struct paged_gpu *gpu)
{
	return "emulator";
}

bool paged_gpu_has_tma(const struct paged_gpu *gpu)
{
	return !gpu->without_tma;
}

uint64_t paged_gpu_alloc(struct paged_gpu *gpu, size_t bytes)
{
	return bytes > MEMORY_MAX
	               ? 0
	               : (uint64_t)(uintptr_t)aligned_alloc(256, (bytes + 256) / 256 * 256);
}

void paged_gpu_free(struct paged_gpu *gpu, uint64_t address)
{
	free((void *)(uintptr_t)address);
}

uint64_t paged_gpu_pin(struct paged_gpu *gpu, void *memory, size_t bytes)
{
	return (uint64_t)(uintptr_t)memory;
}

void paged_gpu_unpin(struct paged_gpu *gpu, void *memory)
{
}

void paged_gpu_upload(struct paged_gpu *gpu, uint64_t to, const void *from, size_t bytes)
{
	if (bytes > 0)
		memcpy((void *)(uintptr_t)to, from, bytes);
}

void paged_gpu_download(struct paged_gpu *gpu, void *to, uint64_t from, size_t bytes)
{
	if (bytes > 0)
		memcpy(to, (const void *)(uintptr_t)from, bytes);
}

void paged_gpu_fill(struct paged_gpu *gpu, uint64_t to, unsigned char byte, size_t bytes)
{
	memset((void *)(uintptr_t)to, byte, bytes);
}

void paged_gpu_sync(struct paged_gpu *gpu)
{
}

int paged_gpu_plan(struct paged_gpu *gpu, const struct fa_cuda_chip *chip,
                   const struct fa_paged_request *request, struct paged_gpu_plan *ret_plan)
{
	void *blob = aligned_alloc(16, (fa_cuda_paged_blob_bytes(request) + 31) / 16 * 16);
	struct fa_cuda_chip portable = *chip;
	char text[256] = "";
	int r;

	r = fa_cuda_paged_plan(chip, request, blob, text, sizeof(text), &ret_plan->plan);
	portable.portable_paged = true;
	if (r == 0 && gpu->without_tma && ret_plan->plan.forward && ret_plan->plan.forward->keys)
		r = fa_cuda_paged_plan(&portable, request, blob, text, sizeof(text),
		                       &ret_plan->plan);
	if (r < 0) {
		fprintf(stderr, "%s\n", text);
		free(blob);
		return r;
	}
	if (ret_plan->plan.workspace_bytes > gpu->workspace_bytes) {
		free(gpu->workspace);
		gpu->workspace_bytes = ret_plan->plan.workspace_bytes;
		gpu->workspace = aligned_alloc(256, (gpu->workspace_bytes + 255) / 256 * 256);
		memset(gpu->workspace, 0xff, gpu->workspace_bytes);
		memset(gpu->workspace, 0, FA_CUDA_PAGED_COUNTERS_BYTES);
	}
	ret_plan->blob = (uint64_t)(uintptr_t)blob;
	return 0;
}

void paged_gpu_plan_free(struct paged_gpu *gpu, struct paged_gpu_plan *plan)
{
	free((void *)(uintptr_t)plan->blob);
	plan->blob = 0;
}

/* Returns whether all elements of K and V that the launch's rows may see are finite, and those of V
 * below @most. */
static bool is_below(const struct fa_cuda_paged_launch *launch, const struct paged_gpu_plan *plan,
                     double most)
{
	const struct fa_cuda_paged_attention *args = &launch->args.attention;
	const uint32_t page_tokens = args->pages.page_strips * 16;

	for (uint32_t i = 0; i < plan->plan.forward_items; i++)
		for (uint32_t t = args->items[i].first; t < args->items[i].n_k; t++)
			for (int32_t h = 0; h < args->kv_heads; h++) {
				const uint32_t entry = args->items[i].table_start + t / page_tokens;
				const size_t at = (size_t)args->pages.table[entry] * 256;
				const size_t row = (size_t)h * page_tokens + t % page_tokens;
				const char *const k = args->pages.k + at + row * args->pages.k_row;
				const char *const v = args->pages.v + at + row * args->pages.v_row;

				for (int32_t d = 0; d < args->attention.head_dim; d++)
					if (!isfinite(reference_get(launch->kernel->dtype, k, d)))
						return false;
				for (int32_t d = 0; d < args->attention.head_dim_v; d++)
					if (!(fabs(reference_get(launch->kernel->dtype, v, d)) <
					      most))
						return false;
			}
	return true;
}

/* Recomputed rows may hide a fault, as in gpu.c. */
static void check_recomputed(const struct fa_cuda_paged_launch *launch,
                             const struct paged_gpu_plan *plan)
{
	const bool modifies = launch->kernel->kind == FA_CUDA_PAGED_RICH;

	/* The plan of a client's own pages does not say which keys there are. */
	if (!fa_emulated_take_recomputed() || plan->plan.op == FA_PAGED_ATTEND_OWN ||
	    !is_below(launch, plan, modifies ? 0x1p100 : INFINITY))
		return;
	fprintf(stderr, "%s: rows without an infinity or NaN were computed again\n",
	        launch->kernel->symbol);
	abort();
}

struct poisoned {
	const struct fa_cuda_paged_attention *args;
	const struct paged_gpu_plan *plan;
};

static void poison(const void *userdata)
{
	const struct poisoned *poisoned = userdata;
	const struct fa_cuda_paged_attention *args = poisoned->args;
	const struct fa_cuda_attention *a = &args->attention;

	for (uint32_t i = 0; i < poisoned->plan->plan.forward_items; i++)
		for (uint32_t row = 0; row < args->items[i].n_q; row++)
			for (int32_t h = 0; h < a->heads; h++) {
				const int64_t token = (int64_t)args->items[i].first_q + row;

				memset((char *)a->out.data + token * a->out.stride_token +
				               h * a->out.stride_head,
				       0xff, (size_t)a->head_dim_v * 2);
				if (a->lse)
					a->lse[token * a->lse_stride_token +
					       h * a->lse_stride_head] = NAN;
			}
}

static void run_yielding(struct paged_gpu *gpu, struct fa_cuda_paged_launch *launch,
                         const struct paged_gpu_plan *plan, const struct fa_emulated_mapped *mapped,
                         const char *symbol, void (*run)(const void *args))
{
	const struct poisoned poisoned = { &launch->args.attention, plan };

	launch->args.attention.epoch = ++gpu->epoch;
	fa_emulated_yield(
		&(struct fa_emulated_yielding){
			.symbol = symbol,
			.grid = launch->grid_x,
			.threads = (uint32_t)launch->kernel->threads,
			.shared_bytes = (uint32_t)launch->kernel->shared_bytes,
			.state_bytes = (uint32_t)launch->kernel->state_bytes,
			.run = run,
			.args = mapped,
			.attention = &launch->args.attention.attention,
			.q = &launch->maps[FA_CUDA_MAP_Q],
			.unstable = gpu->unstable,
		},
		poison, &poisoned);
}

void paged_gpu_unstable(struct paged_gpu *gpu, bool unstable)
{
	gpu->unstable = unstable;
}

uint32_t paged_gpu_yield(struct paged_gpu *gpu, uint64_t most_ns)
{
	return 0;
}

void paged_gpu_launch(struct paged_gpu *gpu, const struct paged_gpu_plan *plan,
                      const struct fa_paged_request *request)
{
	paged_gpu_launch_append(gpu, plan, request, NULL);
}

void paged_gpu_launch_append(struct paged_gpu *gpu, const struct paged_gpu_plan *plan,
                             const struct fa_paged_request *request,
                             const struct fa_paged_append *append)
{
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	int n;

	/* Parts of the arguments that a launch does not carry are never read. */
	memset(launches, 0xfe, sizeof(launches));
	n = fa_cuda_paged_launches(&plan->plan, request, plan->blob,
	                           (uint64_t)(uintptr_t)gpu->workspace, ++gpu->epoch, launches);
	if (append)
		fa_cuda_paged_add_append(&launches[0], append);
	/* Blocks run in the same order whatever was launched before. */
	fa_emulated_seed(problem_random(1u << 30));
	for (int i = 0; i < n; i++) {
		const struct fa_cuda_paged_kernel *kernel = launches[i].kernel;
		struct fa_cuda_done *done = fa_cuda_paged_done(&launches[i]);
		struct fa_cuda_maps maps = { 0 };
		const struct fa_emulated_mapped mapped = { &launches[i].args, &maps };

		for (uint32_t m = 0; m < launches[i].n_maps; m++)
			maps.maps[m].words[0] = (uint64_t)(uintptr_t)&launches[i].maps[m];
		fa_emulated_completion_request(
			done, (uint64_t)launches[i].grid_x * launches[i].grid_y, launches[i].parts);
		fa_emulated_launch(
			launches[i].grid_x, launches[i].grid_y, (uint32_t)kernel->threads,
			(uint32_t)kernel->shared_bytes, fa_emulated_find(kernel)->run,
			kernel->keys || kernel->maps ? (const void *)&mapped : &launches[i].args);
		fa_emulated_completion_check();
		if (kernel->keys) {
			run_yielding(gpu, &launches[i], plan, &mapped, kernel->symbol,
			             fa_emulated_find(kernel)->run);
			check_recomputed(&launches[i], plan);
		}
		gpu->n_mapped += kernel->keys || kernel->maps;
	}
}

void paged_gpu_poison_shared(struct paged_gpu *gpu)
{
}
