#include "tests/gpu/paged-gpu.h"

#include "common/cudriver.h"
#include "kernels/cuda/paged-images.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/yielder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLUSH_BYTES ((size_t)512 << 20)

extern const char paged_measure_image[];

struct paged_gpu {
	struct fa_cudriver driver;
	CUdevice device;
	struct fa_cuda_chip chip;
	char name[128];
	struct fa_gpu *dense; /* the same device, with the dense kernels */
	CUmodule modules[FA_CUDA_PAGED_IMAGES], measure;
	CUfunction *kernels; /* [fa_cuda_paged_kernels_count] */
	CUfunction poison, spin, bare, read, normal, token_major;
	CUdeviceptr flush, workspace;
	size_t workspace_bytes;
	uint64_t epoch;
	CUevent start, stop;
	struct fa_yielder yielder;
	uint64_t yield_most_ns, random;
	uint32_t stops;
};

#define MUST(call)                                                                                 \
	do {                                                                                       \
		const CUresult must_result = gpu->driver.call;                                     \
		if (must_result != 0) {                                                            \
			const char *must_text = "?";                                               \
			gpu->driver.cuGetErrorString(must_result, &must_text);                     \
			fprintf(stderr, "%s:%d: %s: %d, %s\n", __FILE__, __LINE__, #call,          \
			        (int)must_result, must_text);                                      \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

static int attribute(struct paged_gpu *gpu, CUdevice_attribute which)
{
	int value;

	MUST(cuDeviceGetAttribute(&value, which, gpu->device));
	return value;
}

static CUfunction function(struct paged_gpu *gpu, CUmodule module, const char *symbol,
                           int32_t shared_bytes)
{
	CUfunction function;

	MUST(cuModuleGetFunction(&function, module, symbol));
	if (shared_bytes > 0 && shared_bytes <= gpu->chip.shared_bytes_max)
		MUST(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
		                        shared_bytes));
	return function;
}

static void load(struct paged_gpu *gpu)
{
	gpu->kernels = calloc(fa_cuda_paged_kernels_count, sizeof(*gpu->kernels));
	if (!gpu->kernels)
		abort();
	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];

		/* Tests also plan for chips with less shared memory. */
		if (!fa_cuda_paged_kernel_runs(kernel, &gpu->chip))
			continue;
		if (!gpu->modules[kernel->image])
			MUST(cuModuleLoadData(&gpu->modules[kernel->image],
			                      fa_cuda_paged_images[kernel->image].data));
		gpu->kernels[i] = function(gpu, gpu->modules[kernel->image], kernel->symbol,
		                           kernel->shared_bytes);
	}
	MUST(cuModuleLoadData(&gpu->measure, paged_measure_image));
	gpu->poison = function(gpu, gpu->measure, "fa_test_poison_shared",
	                       gpu->chip.shared_bytes_max);
	gpu->spin = function(gpu, gpu->measure, "fa_test_spin", 0);
	gpu->bare = function(gpu, gpu->measure, "fa_test_bare", 0);
	gpu->read = function(gpu, gpu->measure, "fa_test_read", 0);
	gpu->normal = function(gpu, gpu->measure, "fa_test_normal", 0);
	gpu->token_major = function(gpu, gpu->measure, "fa_test_token_major", 0);
}

struct paged_gpu *paged_gpu_open(void)
{
	struct paged_gpu *gpu = calloc(1, sizeof(*gpu));
	struct fa_error error;
	CUcontext context;

	if (!gpu)
		abort();
	if (fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &gpu->driver) < 0) {
		fprintf(stderr, "no GPU: %s\n", error.text);
		free(gpu);
		return NULL;
	}
	if (!fa_cuda_paged_images[0].bytes || gpu->driver.cuInit(0) ||
	    gpu->driver.cuDeviceGet(&gpu->device, 0)) {
		fprintf(stderr, "no GPU, or no kernels for one\n");
		free(gpu);
		return NULL;
	}
	MUST(cuDeviceGetName(gpu->name, sizeof(gpu->name), gpu->device));
	MUST(cuDevicePrimaryCtxRetain(&context, gpu->device));
	MUST(cuCtxSetCurrent(context));
	gpu->chip = (struct fa_cuda_chip){
		.arch = 10 * attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
		        attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
		.shared_bytes_max = attribute(
			gpu, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
		.l2_bytes = attribute(gpu, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
		.sms = attribute(gpu, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
	};
	load(gpu);
	gpu->random = 88172645463325252ull;
	gpu->dense = fa_gpu_open();
	if (!gpu->dense)
		abort();
	MUST(cuEventCreate(&gpu->start, 0));
	MUST(cuEventCreate(&gpu->stop, 0));
	return gpu;
}

struct paged_gpu *paged_gpu_close(struct paged_gpu *gpu)
{
	if (!gpu)
		return NULL;
	if (gpu->flush)
		MUST(cuMemFree(gpu->flush));
	if (gpu->workspace)
		MUST(cuMemFree(gpu->workspace));
	fa_yielder_close(&gpu->yielder, &gpu->driver);
	MUST(cuEventDestroy(gpu->start));
	MUST(cuEventDestroy(gpu->stop));
	MUST(cuDevicePrimaryCtxRelease(gpu->device));
	free(gpu->kernels);
	fa_gpu_close(gpu->dense);
	free(gpu);
	return NULL;
}

const struct fa_cuda_chip *paged_gpu_chip(const struct paged_gpu *gpu)
{
	return &gpu->chip;
}

const char *paged_gpu_name(const struct paged_gpu *gpu)
{
	return gpu->name;
}

uint64_t paged_gpu_alloc(struct paged_gpu *gpu, size_t bytes)
{
	CUdeviceptr address;

	return gpu->driver.cuMemAlloc(&address, bytes ? bytes : 1) == 0 ? address : 0;
}

void paged_gpu_free(struct paged_gpu *gpu, uint64_t address)
{
	if (address)
		MUST(cuMemFree(address));
}

uint64_t paged_gpu_pin(struct paged_gpu *gpu, void *memory, size_t bytes)
{
	CUdeviceptr address;

	MUST(cuMemHostRegister(memory, bytes,
	                       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
	MUST(cuMemHostGetDevicePointer(&address, memory, 0));
	return address;
}

void paged_gpu_unpin(struct paged_gpu *gpu, void *memory)
{
	MUST(cuMemHostUnregister(memory));
}

void paged_gpu_upload(struct paged_gpu *gpu, uint64_t to, const void *from, size_t bytes)
{
	if (bytes > 0)
		MUST(cuMemcpyHtoD(to, from, bytes));
}

void paged_gpu_download(struct paged_gpu *gpu, void *to, uint64_t from, size_t bytes)
{
	if (bytes > 0)
		MUST(cuMemcpyDtoH(to, from, bytes));
}

void paged_gpu_fill(struct paged_gpu *gpu, uint64_t to, unsigned char byte, size_t bytes)
{
	if (bytes > 0)
		MUST(cuMemsetD8(to, byte, bytes));
}

void paged_gpu_copy(struct paged_gpu *gpu, uint64_t to, uint64_t from, size_t bytes)
{
	MUST(cuMemcpyDtoDAsync(to, from, bytes, NULL));
}

void paged_gpu_sync(struct paged_gpu *gpu)
{
	MUST(cuCtxSynchronize());
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
			MUST(cuMemFree(gpu->workspace));
		gpu->workspace_bytes = ret_plan->plan.workspace_bytes;
		gpu->workspace = paged_gpu_alloc(gpu, gpu->workspace_bytes);
		if (!gpu->workspace)
			abort();
		/* Poison for partial results; counters are cleared. */
		MUST(cuMemsetD8(gpu->workspace, 0xff, gpu->workspace_bytes));
		MUST(cuMemsetD8(gpu->workspace, 0, FA_CUDA_PAGED_COUNTERS_BYTES));
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

static void make_maps(struct paged_gpu *gpu, const struct fa_cuda_map *maps, uint32_t n,
                      struct fa_cuda_maps *ret_maps)
{
	for (uint32_t i = 0; i < n; i++)
		if (fa_cudriver_encode_tensor_map(&gpu->driver, maps[i].data, maps[i].dims,
		                                  maps[i].strides, maps[i].box,
		                                  &ret_maps->maps[i]) != CUDA_SUCCESS) {
			fprintf(stderr, "the driver refuses map %u\n", i);
			abort();
		}
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
	/* Work enqueued before may have to end first. */
	paged_gpu_sync(gpu);
	return fa_yielder_run(&gpu->yielder, &gpu->driver,
	                      &(struct fa_yielder_launch){
				      .function = gpu->kernels[kernel - fa_cuda_paged_kernels],
				      .grid = launch->grid_x,
				      .threads = (uint32_t)kernel->threads,
				      .shared_bytes = (uint32_t)kernel->shared_bytes,
				      .state_bytes = (uint32_t)kernel->state_bytes,
				      .slots = (uint32_t)gpu->chip.sms,
				      .attention = &launch->args.attention.attention,
				      .args = args,
			      },
	                      gpu->yield_most_ns, &gpu->random);
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

		make_maps(gpu, launches[i].maps, launches[i].n_maps, &maps);
		if (gpu->yield_most_ns && kernel->state_bytes) {
			gpu->stops += launch_yielding(gpu, &launches[i], args);
			continue;
		}
		MUST(cuLaunchKernel(gpu->kernels[kernel - fa_cuda_paged_kernels],
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
	fa_gpu_launch(gpu->dense, &launch, NULL);
	return 0;
}

void paged_gpu_poison_shared(struct paged_gpu *gpu)
{
	uint32_t bytes = (uint32_t)gpu->chip.shared_bytes_max;
	void *args[] = { &bytes };

	MUST(cuLaunchKernel(gpu->poison, (unsigned int)gpu->chip.sms, 1, 1, 256, 1, 1, bytes, NULL,
	                    args, NULL));
}

void paged_gpu_spin(struct paged_gpu *gpu, uint64_t ns)
{
	void *args[] = { &ns };

	MUST(cuLaunchKernel(gpu->spin, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
}

void paged_gpu_flush(struct paged_gpu *gpu)
{
	uint64_t count = FLUSH_BYTES / 16;
	void *args[] = { &gpu->flush, &count, &gpu->flush };

	if (!gpu->flush) {
		MUST(cuMemAlloc(&gpu->flush, FLUSH_BYTES));
		MUST(cuMemsetD8(gpu->flush, 1, FLUSH_BYTES));
	}
	MUST(cuLaunchKernel(gpu->read, (unsigned int)gpu->chip.sms * 8, 1, 1, 256, 1, 1, 0, NULL,
	                    args, NULL));
}

void paged_gpu_bare(struct paged_gpu *gpu, uint64_t splits, uint64_t count, uint32_t piece_bytes)
{
	void *args[] = { &splits, &count, &piece_bytes, &splits };
	const uint64_t most = (uint64_t)gpu->chip.sms * 4, grid = count < most ? count : most;

	MUST(cuLaunchKernel(gpu->bare, (unsigned int)grid, 1, 1, 256, 1, 1, 0, NULL, args, NULL));
}

void paged_gpu_normal(struct paged_gpu *gpu, uint64_t to, size_t bytes, uint32_t seed)
{
	uint64_t count = bytes / 2;
	void *args[] = { &to, &count, &seed };

	MUST(cuLaunchKernel(gpu->normal, (unsigned int)gpu->chip.sms * 8, 1, 1, 256, 1, 1, 0, NULL,
	                    args, NULL));
}

void paged_gpu_token_major(struct paged_gpu *gpu, uint64_t from, size_t page_stride_bytes,
                           uint64_t to, uint64_t pages, uint32_t heads, uint32_t tokens,
                           uint32_t row_bytes)
{
	uint64_t stride = page_stride_bytes / 16;
	uint32_t row = row_bytes / 16;
	void *args[] = { &from, &stride, &to, &pages, &heads, &tokens, &row };

	MUST(cuLaunchKernel(gpu->token_major, (unsigned int)gpu->chip.sms * 8, 1, 1, 256, 1, 1, 0,
	                    NULL, args, NULL));
}

void paged_gpu_time_start(struct paged_gpu *gpu)
{
	MUST(cuEventRecord(gpu->start, NULL));
}

double paged_gpu_time_stop_ns(struct paged_gpu *gpu)
{
	float ms;

	MUST(cuEventRecord(gpu->stop, NULL));
	MUST(cuEventSynchronize(gpu->stop));
	MUST(cuEventElapsedTime(&ms, gpu->start, gpu->stop));
	return ms * 1e6;
}
