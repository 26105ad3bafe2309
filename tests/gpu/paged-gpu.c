#include "tests/gpu/paged-gpu.h"

#include "kernels/cuda/paged-images.h"
#include "tests/gpu/driver.h"
#include "tests/gpu/yielder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char paged_measure_image[];

struct paged_gpu {
	struct fa_gpu *gpu; /* the device with the dense kernels */
	const struct fa_cudriver *driver;
	CUmodule modules[FA_CUDA_PAGED_IMAGES], measure;
	CUfunction *kernels; /* [fa_cuda_paged_kernels_count] */
	CUfunction bare, normal, token_major;
	CUdeviceptr workspace;
	size_t workspace_bytes;
	uint64_t epoch;
	struct fa_yielder yielder;
	uint64_t yield_most_ns, random;
	uint32_t stops;
};

static uint32_t count_sms(const struct paged_gpu *gpu)
{
	return (uint32_t)fa_gpu_chip(gpu->gpu)->sms;
}

static void load(struct paged_gpu *gpu)
{
	gpu->kernels = calloc(fa_cuda_paged_kernels_count, sizeof(*gpu->kernels));
	if (!gpu->kernels)
		abort();
	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];

		/* Tests also plan for chips with less shared memory. */
		if (!fa_cuda_paged_kernel_runs(kernel, fa_gpu_chip(gpu->gpu)))
			continue;
		if (!gpu->modules[kernel->image])
			MUST(gpu->driver,
			     cuModuleLoadData(&gpu->modules[kernel->image],
			                      fa_cuda_paged_images[kernel->image].data));
		fa_gpu_function(gpu->gpu, gpu->modules[kernel->image], kernel->symbol,
		                kernel->shared_bytes, &gpu->kernels[i]);
	}
	MUST(gpu->driver, cuModuleLoadData(&gpu->measure, paged_measure_image));
	fa_gpu_function(gpu->gpu, gpu->measure, "fa_test_bare", 0, &gpu->bare);
	fa_gpu_function(gpu->gpu, gpu->measure, "fa_test_normal", 0, &gpu->normal);
	fa_gpu_function(gpu->gpu, gpu->measure, "fa_test_token_major", 0, &gpu->token_major);
}

struct paged_gpu *paged_gpu_open(void)
{
	struct paged_gpu *gpu;

	if (!fa_cuda_paged_images[0].bytes) {
		fprintf(stderr, "no kernels for a GPU\n");
		return NULL;
	}
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu)
		abort();
	gpu->gpu = fa_gpu_open();
	if (!gpu->gpu) {
		free(gpu);
		return NULL;
	}
	gpu->driver = fa_gpu_driver(gpu->gpu);
	gpu->random = 88172645463325252ull;
	load(gpu);
	return gpu;
}

struct paged_gpu *paged_gpu_close(struct paged_gpu *gpu)
{
	if (!gpu)
		return NULL;
	if (gpu->workspace)
		MUST(gpu->driver, cuMemFree(gpu->workspace));
	fa_yielder_close(&gpu->yielder, gpu->driver);
	MUST(gpu->driver, cuModuleUnload(gpu->measure));
	for (int i = 0; i < FA_CUDA_PAGED_IMAGES; i++)
		if (gpu->modules[i])
			MUST(gpu->driver, cuModuleUnload(gpu->modules[i]));
	free(gpu->kernels);
	fa_gpu_close(gpu->gpu);
	free(gpu);
	return NULL;
}

const struct fa_cuda_chip *paged_gpu_chip(const struct paged_gpu *gpu)
{
	return fa_gpu_chip(gpu->gpu);
}

const char *paged_gpu_name(const struct paged_gpu *gpu)
{
	return fa_gpu_name(gpu->gpu);
}

bool paged_gpu_has_tma(const struct paged_gpu *gpu)
{
	return paged_gpu_chip(gpu)->arch == 90;
}

uint64_t paged_gpu_alloc(struct paged_gpu *gpu, size_t bytes)
{
	CUdeviceptr address;

	return gpu->driver->cuMemAlloc(&address, bytes ? bytes : 1) == 0 ? address : 0;
}

void paged_gpu_free(struct paged_gpu *gpu, uint64_t address)
{
	fa_gpu_free(gpu->gpu, address);
}

uint64_t paged_gpu_pin(struct paged_gpu *gpu, void *memory, size_t bytes)
{
	CUdeviceptr address;

	MUST(gpu->driver,
	     cuMemHostRegister(memory, bytes,
	                       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
	MUST(gpu->driver, cuMemHostGetDevicePointer(&address, memory, 0));
	return address;
}

void paged_gpu_unpin(struct paged_gpu *gpu, void *memory)
{
	MUST(gpu->driver, cuMemHostUnregister(memory));
}

void paged_gpu_upload(struct paged_gpu *gpu, uint64_t to, const void *from, size_t bytes)
{
	if (bytes > 0)
		fa_gpu_upload(gpu->gpu, to, from, bytes);
}

void paged_gpu_download(struct paged_gpu *gpu, void *to, uint64_t from, size_t bytes)
{
	if (bytes > 0)
		fa_gpu_download(gpu->gpu, to, from, bytes);
}

void paged_gpu_fill(struct paged_gpu *gpu, uint64_t to, unsigned char byte, size_t bytes)
{
	if (bytes > 0)
		MUST(gpu->driver, cuMemsetD8(to, byte, bytes));
}

void paged_gpu_copy(struct paged_gpu *gpu, uint64_t to, uint64_t from, size_t bytes)
{
	MUST(gpu->driver, cuMemcpyDtoDAsync(to, from, bytes, NULL));
}

void paged_gpu_sync(struct paged_gpu *gpu)
{
	fa_gpu_sync(gpu->gpu);
}

int paged_gpu_plan(struct paged_gpu *gpu, const struct fa_cuda_chip *chip,
                   const struct fa_paged_request *request, struct paged_gpu_plan *ret_plan)
{
	char *blob = calloc(1, fa_cuda_paged_blob_bytes(request) + 16), text[256] = "";
	int r;

	if (!blob)
		abort();
	r = fa_cuda_paged_plan(chip, request, blob, text, sizeof(text), &ret_plan->plan);
	if (r < 0) {
		fprintf(stderr, "%s\n", text);
		free(blob);
		return r;
	}
	if (ret_plan->plan.workspace_bytes > gpu->workspace_bytes) {
		paged_gpu_sync(gpu);
		if (gpu->workspace)
			MUST(gpu->driver, cuMemFree(gpu->workspace));
		gpu->workspace_bytes = ret_plan->plan.workspace_bytes;
		gpu->workspace = paged_gpu_alloc(gpu, gpu->workspace_bytes);
		if (!gpu->workspace)
			abort();
		MUST(gpu->driver, cuMemsetD8(gpu->workspace, 0xff, gpu->workspace_bytes));
		MUST(gpu->driver, cuMemsetD8(gpu->workspace, 0, FA_CUDA_PAGED_COUNTERS_BYTES));
	}
	ret_plan->blob = paged_gpu_alloc(gpu, ret_plan->plan.blob_bytes);
	paged_gpu_upload(gpu, ret_plan->blob, blob, ret_plan->plan.blob_bytes);
	free(blob);
	return 0;
}

void paged_gpu_plan_free(struct paged_gpu *gpu, struct paged_gpu_plan *plan)
{
	paged_gpu_free(gpu, plan->blob);
	plan->blob = 0;
}

void paged_gpu_unstable(struct paged_gpu *gpu, bool unstable)
{
}

uint32_t paged_gpu_yield(struct paged_gpu *gpu, uint64_t most_ns)
{
	const uint32_t stops = gpu->stops;

	gpu->yield_most_ns = most_ns;
	gpu->stops = 0;
	return stops;
}

/* Kernels that yield have one row of blocks. */
static uint32_t launch_yielding(struct paged_gpu *gpu, struct fa_cuda_paged_launch *launch,
                                void **args)
{
	const struct fa_cuda_paged_kernel *kernel = launch->kernel;

	if (launch->grid_y != 1 || launch->grid_x > FA_CUDA_PREEMPT_RECORDS)
		abort();
	/* Work enqueued earlier may have to end first. */
	paged_gpu_sync(gpu);
	return fa_yielder_run(&gpu->yielder, gpu->driver,
	                      &(struct fa_yielder_launch){
				      .function = gpu->kernels[kernel - fa_cuda_paged_kernels],
				      .grid = launch->grid_x,
				      .threads = (uint32_t)kernel->threads,
				      .shared_bytes = (uint32_t)kernel->shared_bytes,
				      .state_bytes = (uint32_t)kernel->state_bytes,
				      .slots = count_sms(gpu),
				      .attention = &launch->args.attention.attention,
				      .args = args,
			      },
	                      gpu->yield_most_ns, &gpu->random);
}

/* Launches a kernel that awaits the one ahead by itself, as the daemon does. */
static void launch_behind(struct paged_gpu *gpu, const struct fa_cuda_paged_launch *launch,
                          void **args)
{
	const struct fa_cuda_paged_kernel *kernel = launch->kernel;
	const CUlaunchAttribute attribute = {
		.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
		.value.programmaticStreamSerializationAllowed = 1,
	};
	const CUlaunchConfig config = {
		.gridDimX = launch->grid_x,
		.gridDimY = launch->grid_y,
		.gridDimZ = 1,
		.blockDimX = (unsigned int)kernel->threads,
		.blockDimY = 1,
		.blockDimZ = 1,
		.sharedMemBytes = (unsigned int)kernel->shared_bytes,
		.attrs = &attribute,
		.numAttrs = 1,
	};

	MUST(gpu->driver,
	     cuLaunchKernelEx(&config, gpu->kernels[kernel - fa_cuda_paged_kernels], args, NULL));
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
	const int n = fa_cuda_paged_launches(&plan->plan, request, plan->blob, gpu->workspace,
	                                     ++gpu->epoch, launches);

	if (append)
		fa_cuda_paged_add_append(&launches[0], append);
	for (int i = 0; i < n; i++) {
		const struct fa_cuda_paged_kernel *kernel = launches[i].kernel;
		struct fa_cuda_maps maps;
		void *args[] = { &launches[i].args, &maps };

		fa_gpu_encode_maps(gpu->gpu, launches[i].maps, launches[i].n_maps, &maps);
		if (gpu->yield_most_ns && kernel->state_bytes) {
			gpu->stops += launch_yielding(gpu, &launches[i], args);
			continue;
		}
		if (kernel->awaits && i > 0) {
			launch_behind(gpu, &launches[i], args);
			continue;
		}
		MUST(gpu->driver,
		     cuLaunchKernel(gpu->kernels[kernel - fa_cuda_paged_kernels],
		                    launches[i].grid_x, launches[i].grid_y, 1,
		                    (unsigned int)kernel->threads, 1, 1,
		                    (unsigned int)kernel->shared_bytes, NULL, args, NULL));
	}
}

int paged_gpu_dense(struct paged_gpu *gpu, const struct fa_cuda_chip *chip,
                    const struct fa_attention_params *params)
{
	struct fa_cuda_launch launch;
	char text[256] = "";
	int r;

	r = fa_cuda_attention_plan(chip, params, text, sizeof(text), &launch);
	if (r < 0) {
		fprintf(stderr, "%s\n", text);
		return r;
	}
	fa_gpu_launch(gpu->gpu, &launch, NULL);
	return 0;
}

void paged_gpu_poison_shared(struct paged_gpu *gpu)
{
	fa_gpu_poison_shared(gpu->gpu);
}

void paged_gpu_spin(struct paged_gpu *gpu, uint64_t ns)
{
	fa_gpu_spin(gpu->gpu, ns, NULL);
}

void paged_gpu_flush(struct paged_gpu *gpu)
{
	fa_gpu_flush(gpu->gpu, NULL);
}

void paged_gpu_bare(struct paged_gpu *gpu, uint64_t splits, uint64_t count, uint32_t piece_bytes)
{
	void *args[] = { &splits, &count, &piece_bytes, &splits };
	const uint64_t most = (uint64_t)count_sms(gpu) * 4, grid = count < most ? count : most;

	MUST(gpu->driver,
	     cuLaunchKernel(gpu->bare, (unsigned int)grid, 1, 1, 256, 1, 1, 0, NULL, args, NULL));
}

void paged_gpu_normal(struct paged_gpu *gpu, uint64_t to, size_t bytes, uint32_t seed)
{
	uint64_t count = bytes / 2;
	void *args[] = { &to, &count, &seed };

	MUST(gpu->driver,
	     cuLaunchKernel(gpu->normal, count_sms(gpu) * 8, 1, 1, 256, 1, 1, 0, NULL, args, NULL));
}

void paged_gpu_token_major(struct paged_gpu *gpu, uint64_t from, size_t page_stride_bytes,
                           uint64_t to, uint64_t pages, uint32_t heads, uint32_t tokens,
                           uint32_t row_bytes)
{
	uint64_t stride = page_stride_bytes / 16;
	uint32_t row = row_bytes / 16;
	void *args[] = { &from, &stride, &to, &pages, &heads, &tokens, &row };

	MUST(gpu->driver, cuLaunchKernel(gpu->token_major, count_sms(gpu) * 8, 1, 1, 256, 1, 1, 0,
	                                 NULL, args, NULL));
}

void paged_gpu_time_start(struct paged_gpu *gpu)
{
	fa_gpu_time_start(gpu->gpu, NULL);
}

double paged_gpu_time_stop_ns(struct paged_gpu *gpu)
{
	return fa_gpu_time_stop_ns(gpu->gpu, NULL);
}
