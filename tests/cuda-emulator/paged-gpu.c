/*
 * tests/gpu/paged-gpu.h over the emulator: device memory is the host's. Of timing nothing
 * means anything.
 */
#include "tests/gpu/paged-gpu.h"
#include "tests/cuda-emulator/launch.h"
#include "tests/kernels/problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As much as a test of normal size asks for. */
#define MEMORY_MAX ((size_t)1 << 30)

struct paged_gpu {
	struct fa_cuda_chip chip;
	void *workspace;
	size_t workspace_bytes;
	uint32_t epoch;
};

struct paged_gpu *paged_gpu_open(void)
{
	struct paged_gpu *gpu = calloc(1, sizeof(*gpu));

	if (!gpu)
		abort();
	gpu->chip = (struct fa_cuda_chip){
		.arch = 90, .shared_bytes_max = 232448, .l2_bytes = 50 << 20, .sms = 20
	};
	return gpu;
}

struct paged_gpu *paged_gpu_close(struct paged_gpu *gpu)
{
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
	char text[256] = "";
	int r;

	r = fa_cuda_paged_plan(chip, request, blob, text, sizeof(text), &ret_plan->plan);
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

void paged_gpu_launch(struct paged_gpu *gpu, const struct paged_gpu_plan *plan,
                      const struct fa_paged_request *request)
{
	static const struct fa_emulated_kernel *const modules[] = {
		[FA_CUDA_IMAGE_SM80_PAGED_F16] = fa_emulated_f16,
		[FA_CUDA_IMAGE_SM80_PAGED_BF16] = fa_emulated_bf16,
		[FA_CUDA_IMAGE_SM80_PAGED_F32] = fa_emulated_f32,
		[FA_CUDA_IMAGE_SM80_PAGED_TOKENS] = fa_emulated_tokens,
	};
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	const int n = fa_cuda_paged_launches(&plan->plan, request, plan->blob,
	                                     (uint64_t)(uintptr_t)gpu->workspace, ++gpu->epoch,
	                                     launches);

	for (int i = 0; i < n; i++) {
		const struct fa_cuda_paged_kernel *kernel = launches[i].kernel;
		const struct fa_emulated_kernel *emulated = modules[kernel->image];

		while (emulated->symbol && strcmp(emulated->symbol, kernel->symbol))
			emulated++;
		if (!emulated->symbol) {
			fprintf(stderr, "%s is not emulated\n", kernel->symbol);
			abort();
		}
		fa_emulated_launch(launches[i].grid_x, launches[i].grid_y,
		                   (uint32_t)kernel->threads, (uint32_t)kernel->shared_bytes,
		                   emulated->run, &launches[i].args, problem_random);
	}
}

/* The emulator's shared memory is poison when a block begins. */
void paged_gpu_poison_shared(struct paged_gpu *gpu)
{
}
