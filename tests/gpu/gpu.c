#include "tests/gpu/gpu.h"

#include "common/cudriver.h"
#include "kernels/cuda/images.h"
#include "tests/gpu/yielder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLUSH_BYTES ((size_t)512 << 20)

struct fa_gpu {
	struct fa_cudriver driver;
	CUdevice device;
	struct fa_cuda_chip chip;
	int sms;
	char name[128];
	CUmodule images[FA_CUDA_IMAGES], reference;
	CUfunction *kernels; /* [fa_cuda_kernels_count] */
	CUfunction fn_reference, fn_poison, fn_compare, fn_copy, fn_spin, fn_read;
	CUstream stream;
	CUdeviceptr flush;
	CUevent start, stop;
	struct fa_yielder yielder;
};

extern const char fa_image_reference[];

#define MUST(call)                                                                                 \
	do {                                                                                       \
		const CUresult must_result = gpu->driver.call;                                     \
		if (must_result != CUDA_SUCCESS) {                                                 \
			struct fa_error must_error;                                                \
			fa_cudriver_fail(&gpu->driver, &must_error, must_result, #call);           \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, must_error.text);       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

static int attribute(struct fa_gpu *gpu, CUdevice_attribute which)
{
	int value;

	MUST(cuDeviceGetAttribute(&value, which, gpu->device));
	return value;
}

static void load(struct fa_gpu *gpu)
{
	gpu->kernels = calloc(fa_cuda_kernels_count, sizeof(*gpu->kernels));
	if (!gpu->kernels)
		abort();
	for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

		if (!fa_cuda_kernel_runs(kernel, &gpu->chip))
			continue;
		if (!gpu->images[kernel->image])
			MUST(cuModuleLoadData(&gpu->images[kernel->image],
			                      fa_cuda_images[kernel->image].data));
		MUST(cuModuleGetFunction(&gpu->kernels[i], gpu->images[kernel->image],
		                         kernel->symbol));
		if (kernel->shared_bytes <= gpu->chip.shared_bytes_max)
			MUST(cuFuncSetAttribute(gpu->kernels[i],
			                        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
			                        kernel->shared_bytes));
	}
	MUST(cuModuleLoadData(&gpu->reference, fa_image_reference));
	MUST(cuModuleGetFunction(&gpu->fn_reference, gpu->reference, "fa_test_reference"));
	MUST(cuModuleGetFunction(&gpu->fn_poison, gpu->reference, "fa_test_poison_shared"));
	MUST(cuModuleGetFunction(&gpu->fn_compare, gpu->reference, "fa_test_compare"));
	MUST(cuModuleGetFunction(&gpu->fn_copy, gpu->reference, "fa_test_copy_rows"));
	MUST(cuModuleGetFunction(&gpu->fn_spin, gpu->reference, "fa_test_spin"));
	MUST(cuModuleGetFunction(&gpu->fn_read, gpu->reference, "fa_test_read"));
	MUST(cuFuncSetAttribute(gpu->fn_poison, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
	                        gpu->chip.shared_bytes_max));
}

struct fa_gpu *fa_gpu_open(void)
{
	struct fa_gpu *gpu = calloc(1, sizeof(*gpu));
	struct fa_error error;
	CUcontext context;

	if (!gpu)
		abort();
	if (fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &gpu->driver) < 0) {
		fprintf(stderr, "no GPU: %s\n", error.text);
		free(gpu);
		return NULL;
	}
	if (gpu->driver.cuInit(0) != CUDA_SUCCESS || gpu->driver.cuDeviceGet(&gpu->device, 0)) {
		fprintf(stderr, "no GPU: the driver finds none\n");
		free(gpu);
		return NULL;
	}
	MUST(cuDeviceGetName(gpu->name, sizeof(gpu->name), gpu->device));
	MUST(cuDevicePrimaryCtxRetain(&context, gpu->device));
	MUST(cuCtxSetCurrent(context));
	gpu->chip.arch = 10 * attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
	                 attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
	gpu->chip.shared_bytes_max = attribute(
		gpu, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
	gpu->chip.l2_bytes = attribute(gpu, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
	gpu->sms = attribute(gpu, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	gpu->chip.sms = gpu->sms;
	load(gpu);
	MUST(cuEventCreate(&gpu->start, CU_EVENT_DEFAULT));
	MUST(cuEventCreate(&gpu->stop, CU_EVENT_DEFAULT));
	return gpu;
}

struct fa_gpu *fa_gpu_close(struct fa_gpu *gpu)
{
	if (!gpu)
		return NULL;
	if (gpu->flush)
		MUST(cuMemFree(gpu->flush));
	if (gpu->stream)
		MUST(cuStreamDestroy(gpu->stream));
	fa_yielder_close(&gpu->yielder, &gpu->driver);
	MUST(cuEventDestroy(gpu->start));
	MUST(cuEventDestroy(gpu->stop));
	MUST(cuModuleUnload(gpu->reference));
	for (int i = 0; i < FA_CUDA_IMAGES; i++)
		if (gpu->images[i])
			MUST(cuModuleUnload(gpu->images[i]));
	MUST(cuDevicePrimaryCtxRelease(gpu->device));
	free(gpu->kernels);
	free(gpu);
	return NULL;
}

const struct fa_cuda_chip *fa_gpu_chip(const struct fa_gpu *gpu)
{
	return &gpu->chip;
}

const char *fa_gpu_name(const struct fa_gpu *gpu)
{
	return gpu->name;
}

uint64_t fa_gpu_alloc(struct fa_gpu *gpu, size_t bytes)
{
	CUdeviceptr address;

	MUST(cuMemAlloc(&address, bytes));
	return address;
}

void fa_gpu_free(struct fa_gpu *gpu, uint64_t address)
{
	if (address)
		MUST(cuMemFree(address));
}

uint64_t fa_gpu_alloc_shared(struct fa_gpu *gpu, size_t bytes)
{
	void *at;

	MUST(cuMemHostAlloc(&at, bytes, CU_MEMHOSTALLOC_PORTABLE));
	return (uint64_t)(uintptr_t)at;
}

void fa_gpu_free_shared(struct fa_gpu *gpu, uint64_t address)
{
	if (address)
		MUST(cuMemFreeHost((void *)(uintptr_t)address));
}

void fa_gpu_upload(struct fa_gpu *gpu, uint64_t to, const void *from, size_t bytes)
{
	MUST(cuMemcpyHtoD(to, from, bytes));
}

void fa_gpu_download(struct fa_gpu *gpu, void *to, uint64_t from, size_t bytes)
{
	MUST(cuMemcpyDtoH(to, from, bytes));
}

void fa_gpu_copy_rows(struct fa_gpu *gpu, uint64_t to, size_t to_pitch, uint64_t from,
                      size_t from_pitch, size_t bytes, size_t rows)
{
	uint64_t to_words = to_pitch / 4, from_words = from_pitch / 4, words = bytes / 4;
	void *args[] = { &to, &to_words, &from, &from_words, &words };

	MUST(cuLaunchKernel(gpu->fn_copy, (unsigned int)rows, 1, 1, 256, 1, 1, 0, NULL, args,
	                    NULL));
}

uint64_t fa_gpu_memory_free(struct fa_gpu *gpu)
{
	size_t available, total;

	MUST(cuMemGetInfo(&available, &total));
	return available;
}

void fa_gpu_compare(struct fa_gpu *gpu, uint64_t a, uint64_t b, size_t bytes, uint64_t ret_count)
{
	uint64_t count = bytes / 4;
	void *args[] = { &a, &b, &count, &ret_count };

	MUST(cuLaunchKernel(gpu->fn_compare, (unsigned int)gpu->sms * 2, 1, 1, 256, 1, 1, 0, NULL,
	                    args, NULL));
}

void *fa_gpu_stream(struct fa_gpu *gpu)
{
	if (!gpu->stream)
		MUST(cuStreamCreateWithPriority(&gpu->stream, CU_STREAM_NON_BLOCKING, 0));
	return gpu->stream;
}

void fa_gpu_poison(struct fa_gpu *gpu, uint64_t address, size_t bytes)
{
	MUST(cuMemsetD8(address, 0xff, bytes));
}

void fa_gpu_sync(struct fa_gpu *gpu)
{
	MUST(cuCtxSynchronize());
}

static void make_maps(struct fa_gpu *gpu, const struct fa_cuda_launch *launch,
                      struct fa_cuda_maps *ret_maps)
{
	for (uint32_t i = 0; i < launch->n_maps; i++) {
		const struct fa_cuda_map *map = &launch->maps[i];

		if (fa_cudriver_encode_tensor_map(&gpu->driver, map->data, map->dims, map->strides,
		                                  map->box, &ret_maps->maps[i]) != CUDA_SUCCESS)
			abort();
	}
}

void fa_gpu_launch(struct fa_gpu *gpu, const struct fa_cuda_launch *launch, void *stream)
{
	struct fa_cuda_maps maps;
	void *args[] = { (void *)&launch->args, &maps };

	if (launch->grid == 0)
		return;
	make_maps(gpu, launch, &maps);
	MUST(cuLaunchKernel(gpu->kernels[launch->kernel - fa_cuda_kernels], launch->grid, 1, 1,
	                    (unsigned int)launch->kernel->threads, 1, 1,
	                    (unsigned int)launch->kernel->shared_bytes, stream, args, NULL));
}

int fa_gpu_launch_yielding(struct fa_gpu *gpu, const struct fa_cuda_launch *launch,
                           uint64_t most_ns, uint64_t *random)
{
	struct fa_cuda_attention attention = launch->args;
	struct fa_cuda_maps maps;
	void *args[] = { &attention, &maps };

	if (!launch->kernel->state_bytes || launch->grid > FA_CUDA_PREEMPT_RECORDS)
		return -1;
	if (launch->grid == 0)
		return 0;
	make_maps(gpu, launch, &maps);
	return (int)fa_yielder_run(
		&gpu->yielder, &gpu->driver,
		&(struct fa_yielder_launch){
			.function = gpu->kernels[launch->kernel - fa_cuda_kernels],
			.grid = launch->grid,
			.threads = (uint32_t)launch->kernel->threads,
			.shared_bytes = (uint32_t)launch->kernel->shared_bytes,
			.state_bytes = (uint32_t)launch->kernel->state_bytes,
			.slots = (uint32_t)gpu->sms,
			.attention = &attention,
			.args = args,
		},
		most_ns, random);
}

int fa_gpu_attention(struct fa_gpu *gpu, const struct fa_attention_params *params, void *stream)
{
	struct fa_cuda_launch launch;
	char text[256] = "";
	int r;

	r = fa_cuda_attention_plan(&gpu->chip, params, text, sizeof(text), &launch);
	if (r < 0) {
		fprintf(stderr, "%s\n", text);
		return r;
	}
	fa_gpu_launch(gpu, &launch, stream);
	return 0;
}

void fa_gpu_reference(struct fa_gpu *gpu, const struct fa_attention_params *params,
                      uint64_t ret_out, uint64_t ret_lse, bool naive)
{
	int32_t naive_arg = naive;
	void *args[] = { (void *)params, &ret_out, &ret_lse, &naive_arg };

	if (params->seqlen_q == 0 || params->batch == 0)
		return;
	MUST(cuLaunchKernel(gpu->fn_reference, (unsigned int)params->seqlen_q,
	                    (unsigned int)params->heads, (unsigned int)params->batch, 128, 1, 1, 0,
	                    NULL, args, NULL));
}

void fa_gpu_poison_shared(struct fa_gpu *gpu)
{
	uint32_t bytes = (uint32_t)gpu->chip.shared_bytes_max;
	void *args[] = { &bytes };

	MUST(cuLaunchKernel(gpu->fn_poison, (unsigned int)gpu->sms, 1, 1, 256, 1, 1, bytes, NULL,
	                    args, NULL));
}

void fa_gpu_spin(struct fa_gpu *gpu, uint64_t ns, void *stream)
{
	void *args[] = { &ns };

	MUST(cuLaunchKernel(gpu->fn_spin, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
}

void fa_gpu_flush(struct fa_gpu *gpu, void *stream)
{
	uint64_t count = FLUSH_BYTES / 16;
	void *args[] = { &gpu->flush, &count, &gpu->flush };

	if (!gpu->flush) {
		MUST(cuMemAlloc(&gpu->flush, FLUSH_BYTES));
		MUST(cuMemsetD8(gpu->flush, 1, FLUSH_BYTES));
	}
	MUST(cuLaunchKernel(gpu->fn_read, (unsigned int)gpu->sms * 8, 1, 1, 256, 1, 1, 0, stream,
	                    args, NULL));
}

void fa_gpu_time_start(struct fa_gpu *gpu, void *stream)
{
	MUST(cuEventRecord(gpu->start, stream));
}

double fa_gpu_time_stop_ns(struct fa_gpu *gpu, void *stream)
{
	float ms;

	MUST(cuEventRecord(gpu->stop, stream));
	MUST(cuEventSynchronize(gpu->stop));
	MUST(cuEventElapsedTime(&ms, gpu->start, gpu->stop));
	return ms * 1e6;
}
