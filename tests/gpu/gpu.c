#include "tests/gpu/gpu.h"

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/images.h"
#include "tests/gpu/driver.h"
#include "tests/gpu/yielder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLUSH_BYTES ((size_t)512 << 20)

/* A ragged launch's list and cu_seqlens, as its kernel reads them. */
struct vectors {
	size_t bytes;
	void *copy;
	CUdeviceptr at;
};

#define VECTORS_MAX 16

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
	CUdeviceptr workspace; /* of packed rows */
	size_t workspace_bytes;
	uint64_t epoch;
	struct vectors vectors[VECTORS_MAX];
	size_t n_vectors;
};

extern const char fa_image_reference[];

static int attribute(struct fa_gpu *gpu, CUdevice_attribute which)
{
	int value;

	MUST(&gpu->driver, cuDeviceGetAttribute(&value, which, gpu->device));
	return value;
}

const struct fa_cudriver *fa_gpu_driver(const struct fa_gpu *gpu)
{
	return &gpu->driver;
}

void fa_gpu_function(struct fa_gpu *gpu, CUmodule module, const char *symbol, int32_t shared_bytes,
                     CUfunction *ret)
{
	MUST(&gpu->driver, cuModuleGetFunction(ret, module, symbol));
	if (shared_bytes > 0 && shared_bytes <= gpu->chip.shared_bytes_max)
		MUST(&gpu->driver,
		     cuFuncSetAttribute(*ret, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
		                        shared_bytes));
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
			MUST(&gpu->driver, cuModuleLoadData(&gpu->images[kernel->image],
			                                    fa_cuda_images[kernel->image].data));
		fa_gpu_function(gpu, gpu->images[kernel->image], kernel->symbol,
		                kernel->shared_bytes, &gpu->kernels[i]);
	}
	MUST(&gpu->driver, cuModuleLoadData(&gpu->reference, fa_image_reference));
	fa_gpu_function(gpu, gpu->reference, "fa_test_reference", 0, &gpu->fn_reference);
	fa_gpu_function(gpu, gpu->reference, "fa_test_poison_shared", gpu->chip.shared_bytes_max,
	                &gpu->fn_poison);
	fa_gpu_function(gpu, gpu->reference, "fa_test_compare", 0, &gpu->fn_compare);
	fa_gpu_function(gpu, gpu->reference, "fa_test_copy_rows", 0, &gpu->fn_copy);
	fa_gpu_function(gpu, gpu->reference, "fa_test_spin", 0, &gpu->fn_spin);
	fa_gpu_function(gpu, gpu->reference, "fa_test_read", 0, &gpu->fn_read);
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
	MUST(&gpu->driver, cuDeviceGetName(gpu->name, sizeof(gpu->name), gpu->device));
	MUST(&gpu->driver, cuDevicePrimaryCtxRetain(&context, gpu->device));
	MUST(&gpu->driver, cuCtxSetCurrent(context));
	gpu->chip.arch = 10 * attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
	                 attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
	gpu->chip.shared_bytes_max = attribute(
		gpu, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
	gpu->chip.l2_bytes = attribute(gpu, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
	gpu->sms = attribute(gpu, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	gpu->chip.sms = gpu->sms;
	gpu->chip.workspace = true;
	load(gpu);
	MUST(&gpu->driver, cuEventCreate(&gpu->start, CU_EVENT_DEFAULT));
	MUST(&gpu->driver, cuEventCreate(&gpu->stop, CU_EVENT_DEFAULT));
	return gpu;
}

static void free_vectors(struct fa_gpu *gpu)
{
	for (; gpu->n_vectors > 0; gpu->n_vectors--) {
		struct vectors *vectors = &gpu->vectors[gpu->n_vectors - 1];

		MUST(&gpu->driver, cuMemFree(vectors->at));
		free(vectors->copy);
	}
}

struct fa_gpu *fa_gpu_close(struct fa_gpu *gpu)
{
	if (!gpu)
		return NULL;
	free_vectors(gpu);
	if (gpu->flush)
		MUST(&gpu->driver, cuMemFree(gpu->flush));
	if (gpu->stream)
		MUST(&gpu->driver, cuStreamDestroy(gpu->stream));
	fa_yielder_close(&gpu->yielder, &gpu->driver);
	MUST(&gpu->driver, cuEventDestroy(gpu->start));
	MUST(&gpu->driver, cuEventDestroy(gpu->stop));
	MUST(&gpu->driver, cuModuleUnload(gpu->reference));
	for (int i = 0; i < FA_CUDA_IMAGES; i++)
		if (gpu->images[i])
			MUST(&gpu->driver, cuModuleUnload(gpu->images[i]));
	MUST(&gpu->driver, cuDevicePrimaryCtxRelease(gpu->device));
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

	MUST(&gpu->driver, cuMemAlloc(&address, bytes));
	return address;
}

void fa_gpu_free(struct fa_gpu *gpu, uint64_t address)
{
	if (address)
		MUST(&gpu->driver, cuMemFree(address));
}

uint64_t fa_gpu_alloc_shared(struct fa_gpu *gpu, size_t bytes)
{
	void *at;

	MUST(&gpu->driver, cuMemHostAlloc(&at, bytes, CU_MEMHOSTALLOC_PORTABLE));
	return (uint64_t)(uintptr_t)at;
}

void fa_gpu_free_shared(struct fa_gpu *gpu, uint64_t address)
{
	if (address)
		MUST(&gpu->driver, cuMemFreeHost((void *)(uintptr_t)address));
}

void fa_gpu_upload(struct fa_gpu *gpu, uint64_t to, const void *from, size_t bytes)
{
	MUST(&gpu->driver, cuMemcpyHtoD(to, from, bytes));
}

void fa_gpu_download(struct fa_gpu *gpu, void *to, uint64_t from, size_t bytes)
{
	MUST(&gpu->driver, cuMemcpyDtoH(to, from, bytes));
}

void fa_gpu_copy_rows(struct fa_gpu *gpu, uint64_t to, size_t to_pitch, uint64_t from,
                      size_t from_pitch, size_t bytes, size_t rows)
{
	uint64_t to_words = to_pitch / 4, from_words = from_pitch / 4, words = bytes / 4;
	void *args[] = { &to, &to_words, &from, &from_words, &words };

	MUST(&gpu->driver, cuLaunchKernel(gpu->fn_copy, (unsigned int)rows, 1, 1, 256, 1, 1, 0,
	                                  NULL, args, NULL));
}

uint64_t fa_gpu_memory_free(struct fa_gpu *gpu)
{
	size_t available, total;

	MUST(&gpu->driver, cuMemGetInfo(&available, &total));
	return available;
}

void fa_gpu_compare(struct fa_gpu *gpu, uint64_t a, uint64_t b, size_t bytes, uint64_t ret_count)
{
	uint64_t count = bytes / 4;
	void *args[] = { &a, &b, &count, &ret_count };

	MUST(&gpu->driver, cuLaunchKernel(gpu->fn_compare, (unsigned int)gpu->sms * 2, 1, 1, 256, 1,
	                                  1, 0, NULL, args, NULL));
}

void *fa_gpu_stream(struct fa_gpu *gpu)
{
	if (!gpu->stream)
		MUST(&gpu->driver,
		     cuStreamCreateWithPriority(&gpu->stream, CU_STREAM_NON_BLOCKING, 0));
	return gpu->stream;
}

void fa_gpu_poison(struct fa_gpu *gpu, uint64_t address, size_t bytes)
{
	MUST(&gpu->driver, cuMemsetD8(address, 0xff, bytes));
}

void fa_gpu_sync(struct fa_gpu *gpu)
{
	MUST(&gpu->driver, cuCtxSynchronize());
}

void fa_gpu_encode_maps(struct fa_gpu *gpu, const struct fa_cuda_map *maps, uint32_t n,
                        struct fa_cuda_maps *ret_maps)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct fa_cuda_map *const map = &maps[i];
		CUresult result;

		result = (map->in_rows ? fa_cudriver_encode_rows_map
		                       : fa_cudriver_encode_tensor_map)(
			&gpu->driver, map->data, map->dims, map->strides, map->box,
			&ret_maps->maps[i]);
		if (result != CUDA_SUCCESS) {
			fprintf(stderr, "the driver refuses map %u\n", i);
			abort();
		}
	}
}

/* Returns the GPU's copy of @bytes at @data, which it takes over; launches with the same share it. */
static CUdeviceptr find_vectors(struct fa_gpu *gpu, void *data, size_t bytes)
{
	struct vectors *vectors = gpu->vectors;

	for (; vectors < gpu->vectors + gpu->n_vectors; vectors++) {
		if (vectors->bytes == bytes && memcmp(vectors->copy, data, bytes) == 0) {
			free(data);
			return vectors->at;
		}
	}
	if (gpu->n_vectors == VECTORS_MAX) {
		MUST(&gpu->driver, cuCtxSynchronize());
		free_vectors(gpu);
	}
	vectors = &gpu->vectors[gpu->n_vectors++];
	*vectors = (struct vectors){ bytes, data, 0 };
	MUST(&gpu->driver, cuMemAlloc(&vectors->at, bytes));
	fa_gpu_upload(gpu, vectors->at, data, bytes);
	return vectors->at;
}

static void set_list(struct fa_gpu *gpu, struct fa_cuda_launch *launch)
{
	struct fa_cuda_attention *args = &launch->args;
	const size_t list_bytes = launch->list_units * sizeof(struct fa_cuda_ragged_unit);
	const size_t batch = (size_t)(args->triples / (args->heads * args->slices));
	const size_t lengths_bytes = (batch + 1) * sizeof(uint32_t);
	char *data = malloc(list_bytes + 2 * lengths_bytes);
	CUdeviceptr at;

	if (!data)
		abort();
	if (!fa_cuda_ragged_list(launch, gpu->chip.l2_bytes, (struct fa_cuda_ragged_unit *)data))
		abort();
	memcpy(data + list_bytes, args->cu_seqlens_q, lengths_bytes);
	memcpy(data + list_bytes + lengths_bytes, args->cu_seqlens_k, lengths_bytes);
	at = find_vectors(gpu, data, list_bytes + 2 * lengths_bytes);
	args->list_units = launch->list_units;
	args->cu_seqlens_q = (const uint32_t *)(at + list_bytes);
	args->cu_seqlens_k = (const uint32_t *)(at + list_bytes + lengths_bytes);
}

static void set_packed_list(struct fa_gpu *gpu, struct fa_cuda_launch *launch)
{
	const size_t bytes = fa_cuda_packed_list_bytes(launch);
	const size_t units_bytes = launch->packed.n_units * sizeof(struct fa_cuda_paged_unit);
	void *data = malloc(bytes);
	CUdeviceptr at;

	if (!data)
		abort();
	fa_cuda_packed_list(launch, data, 0);
	at = find_vectors(gpu, data, bytes);
	launch->packed.units = (const void *)(uintptr_t)at;
	launch->packed.items = (const void *)(uintptr_t)(at + units_bytes);
}

/* Returns @launch with the list and the workspace that it asks for. Launches of all streams share
 * the workspace, so they must not overlap. */
static struct fa_cuda_launch prepared(struct fa_gpu *gpu, const struct fa_cuda_launch *launch)
{
	struct fa_cuda_launch with = *launch;

	if (launch->list_units > 0)
		set_list(gpu, &with);
	if (fa_cuda_packed_list_bytes(launch) > 0)
		set_packed_list(gpu, &with);
	if (launch->workspace_bytes == 0)
		return with;
	if (launch->workspace_bytes > gpu->workspace_bytes) {
		MUST(&gpu->driver, cuCtxSynchronize());
		if (gpu->workspace)
			MUST(&gpu->driver, cuMemFree(gpu->workspace));
		MUST(&gpu->driver, cuMemAlloc(&gpu->workspace, launch->workspace_bytes));
		MUST(&gpu->driver,
		     cuMemsetD8Async(gpu->workspace, 0, FA_CUDA_PACKED_WORKSPACE_ZERO, NULL));
		MUST(&gpu->driver, cuCtxSynchronize());
		gpu->workspace_bytes = launch->workspace_bytes;
	}
	fa_cuda_packed_set(&with, gpu->workspace, ++gpu->epoch);
	return with;
}

void fa_gpu_launch(struct fa_gpu *gpu, const struct fa_cuda_launch *given, void *stream)
{
	struct fa_cuda_launch with = prepared(gpu, given), *launch = &with;
	struct fa_cuda_maps maps;
	void *args[] = { &launch->args, &maps };

	if (launch->grid == 0)
		return;
	fa_gpu_encode_maps(gpu, launch->maps, launch->n_maps, &maps);
	MUST(&gpu->driver,
	     cuLaunchKernel(gpu->kernels[launch->kernel - fa_cuda_kernels], launch->grid, 1, 1,
	                    (unsigned int)launch->kernel->threads, 1, 1,
	                    (unsigned int)launch->kernel->shared_bytes, stream, args, NULL));
}

int fa_gpu_launch_yielding(struct fa_gpu *gpu, const struct fa_cuda_launch *given, uint64_t most_ns,
                           uint64_t *random)
{
	struct fa_cuda_launch with = prepared(gpu, given), *launch = &with;
	struct fa_cuda_maps maps;
	void *args[] = { &launch->args, &maps };

	if (!launch->kernel->state_bytes || launch->grid > FA_CUDA_PREEMPT_RECORDS)
		return -1;
	if (launch->grid == 0)
		return 0;
	fa_gpu_encode_maps(gpu, launch->maps, launch->n_maps, &maps);
	return (int)fa_yielder_run(
		&gpu->yielder, &gpu->driver,
		&(struct fa_yielder_launch){
			.function = gpu->kernels[launch->kernel - fa_cuda_kernels],
			.grid = launch->grid,
			.threads = (uint32_t)launch->kernel->threads,
			.shared_bytes = (uint32_t)launch->kernel->shared_bytes,
			.state_bytes = (uint32_t)launch->kernel->state_bytes,
			.slots = (uint32_t)gpu->sms,
			.attention = &launch->args,
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
	MUST(&gpu->driver, cuLaunchKernel(gpu->fn_reference, (unsigned int)params->seqlen_q,
	                                  (unsigned int)params->heads, (unsigned int)params->batch,
	                                  128, 1, 1, 0, NULL, args, NULL));
}

void fa_gpu_poison_shared(struct fa_gpu *gpu)
{
	uint32_t bytes = (uint32_t)gpu->chip.shared_bytes_max;
	void *args[] = { &bytes };

	MUST(&gpu->driver, cuLaunchKernel(gpu->fn_poison, (unsigned int)gpu->sms, 1, 1, 256, 1, 1,
	                                  bytes, NULL, args, NULL));
}

void fa_gpu_spin(struct fa_gpu *gpu, uint64_t ns, void *stream)
{
	void *args[] = { &ns };

	MUST(&gpu->driver, cuLaunchKernel(gpu->fn_spin, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
}

void fa_gpu_flush(struct fa_gpu *gpu, void *stream)
{
	uint64_t count = FLUSH_BYTES / 16;
	void *args[] = { &gpu->flush, &count, &gpu->flush };

	if (!gpu->flush) {
		MUST(&gpu->driver, cuMemAlloc(&gpu->flush, FLUSH_BYTES));
		MUST(&gpu->driver, cuMemsetD8(gpu->flush, 1, FLUSH_BYTES));
	}
	MUST(&gpu->driver, cuLaunchKernel(gpu->fn_read, (unsigned int)gpu->sms * 8, 1, 1, 256, 1, 1,
	                                  0, stream, args, NULL));
}

void fa_gpu_time_start(struct fa_gpu *gpu, void *stream)
{
	MUST(&gpu->driver, cuEventRecord(gpu->start, stream));
}

double fa_gpu_time_stop_ns(struct fa_gpu *gpu, void *stream)
{
	float ms;

	MUST(&gpu->driver, cuEventRecord(gpu->stop, stream));
	MUST(&gpu->driver, cuEventSynchronize(gpu->stop));
	MUST(&gpu->driver, cuEventElapsedTime(&ms, gpu->start, gpu->stop));
	return ms * 1e6;
}
