#include "tests/gpu/gpu.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS(X)                                                                               \
	X(cuInit)                                                                                  \
	X(cuDeviceGet)                                                                             \
	X(cuDeviceGetName)                                                                         \
	X(cuDeviceGetAttribute)                                                                    \
	X(cuDevicePrimaryCtxRetain)                                                                \
	X(cuDevicePrimaryCtxRelease)                                                               \
	X(cuCtxSetCurrent)                                                                         \
	X(cuCtxSynchronize)                                                                        \
	X(cuGetErrorString)                                                                        \
	X(cuModuleLoadData)                                                                        \
	X(cuModuleUnload)                                                                          \
	X(cuModuleGetFunction)                                                                     \
	X(cuFuncSetAttribute)                                                                      \
	X(cuLaunchKernel)                                                                          \
	X(cuMemAlloc)                                                                              \
	X(cuMemFree)                                                                               \
	X(cuMemcpyHtoD)                                                                            \
	X(cuMemcpyDtoH)                                                                            \
	X(cuMemsetD8)                                                                              \
	X(cuEventCreate)                                                                           \
	X(cuEventDestroy)                                                                          \
	X(cuEventRecord)                                                                           \
	X(cuEventSynchronize)                                                                      \
	X(cuEventElapsedTime)

/* cuda.h defines some names as macros for their versions: two steps see through that. */
#define NAME_OF(symbol) #symbol
#define SYMBOL(name) NAME_OF(name)

#define FLUSH_BYTES ((size_t)512 << 20)

struct fa_gpu {
	void *library;
#define MEMBER(name) __typeof__(&name) fn_##name;
	FUNCTIONS(MEMBER)
#undef MEMBER
	CUdevice device;
	struct fa_cuda_chip chip;
	int sms;
	char name[128];
	CUmodule images[FA_CUDA_IMAGES], reference;
	CUfunction *kernels; /* [fa_cuda_kernels_count] */
	CUfunction fn_reference, fn_poison, fn_spin, fn_read;
	CUdeviceptr flush;
	CUevent start, stop;
};

extern const char fa_image_sm80_f16[], fa_image_sm80_bf16[], fa_image_sm80_f32[];
extern const char fa_image_reference[];

#define MUST(call)                                                                                 \
	do {                                                                                       \
		const CUresult must_result = gpu->fn_##call;                                       \
		if (must_result != CUDA_SUCCESS) {                                                 \
			const char *must_text = "?";                                               \
			gpu->fn_cuGetErrorString(must_result, &must_text);                         \
			fprintf(stderr, "%s:%d: %s: %d, %s\n", __FILE__, __LINE__, #call,          \
			        (int)must_result, must_text);                                      \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

struct fa_gpu *fa_gpu_open(void)
{
	const char *images[FA_CUDA_IMAGES] = { fa_image_sm80_f16, fa_image_sm80_bf16,
		                               fa_image_sm80_f32 };
	struct fa_gpu *gpu = calloc(1, sizeof(*gpu));
	CUcontext context;
	int major, minor, value;

	if (!gpu)
		abort();
	gpu->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!gpu->library) {
		fprintf(stderr, "no GPU: %s\n", dlerror());
		free(gpu);
		return NULL;
	}
#define LOAD(function)                                                                             \
	gpu->fn_##function = (__typeof__(gpu->fn_##function))dlsym(gpu->library,                   \
	                                                           SYMBOL(function));              \
	if (!gpu->fn_##function) {                                                                 \
		fprintf(stderr, "no GPU: libcuda.so.1 lacks %s\n", SYMBOL(function));              \
		free(gpu);                                                                         \
		return NULL;                                                                       \
	}
	FUNCTIONS(LOAD)
#undef LOAD
	if (gpu->fn_cuInit(0) != CUDA_SUCCESS || gpu->fn_cuDeviceGet(&gpu->device, 0)) {
		fprintf(stderr, "no GPU: the driver finds none\n");
		free(gpu);
		return NULL;
	}
	MUST(cuDeviceGetName(gpu->name, sizeof(gpu->name), gpu->device));
	MUST(cuDevicePrimaryCtxRetain(&context, gpu->device));
	MUST(cuCtxSetCurrent(context));
	MUST(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
	                          gpu->device));
	MUST(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
	                          gpu->device));
	gpu->chip.arch = 10 * major + minor;
	MUST(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
	                          gpu->device));
	gpu->chip.shared_bytes_max = value;
	MUST(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, gpu->device));
	gpu->chip.l2_bytes = value;
	MUST(cuDeviceGetAttribute(&gpu->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
	                          gpu->device));
	gpu->chip.sms = gpu->sms;

	for (int i = 0; i < FA_CUDA_IMAGES; i++)
		MUST(cuModuleLoadData(&gpu->images[i], images[i]));
	gpu->kernels = calloc(fa_cuda_kernels_count, sizeof(*gpu->kernels));
	if (!gpu->kernels)
		abort();
	for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

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
	MUST(cuModuleGetFunction(&gpu->fn_spin, gpu->reference, "fa_test_spin"));
	MUST(cuModuleGetFunction(&gpu->fn_read, gpu->reference, "fa_test_read"));
	MUST(cuFuncSetAttribute(gpu->fn_poison, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
	                        gpu->chip.shared_bytes_max));
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
	MUST(cuEventDestroy(gpu->start));
	MUST(cuEventDestroy(gpu->stop));
	MUST(cuModuleUnload(gpu->reference));
	for (int i = 0; i < FA_CUDA_IMAGES; i++)
		MUST(cuModuleUnload(gpu->images[i]));
	MUST(cuDevicePrimaryCtxRelease(gpu->device));
	free(gpu->kernels);
	dlclose(gpu->library);
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

void fa_gpu_upload(struct fa_gpu *gpu, uint64_t to, const void *from, size_t bytes)
{
	MUST(cuMemcpyHtoD(to, from, bytes));
}

void fa_gpu_download(struct fa_gpu *gpu, void *to, uint64_t from, size_t bytes)
{
	MUST(cuMemcpyDtoH(to, from, bytes));
}

void fa_gpu_poison(struct fa_gpu *gpu, uint64_t address, size_t bytes)
{
	MUST(cuMemsetD8(address, 0xff, bytes));
}

void fa_gpu_sync(struct fa_gpu *gpu)
{
	MUST(cuCtxSynchronize());
}

void fa_gpu_launch(struct fa_gpu *gpu, const struct fa_cuda_launch *launch, void *stream)
{
	void *args[] = { (void *)&launch->args };

	if (launch->grid == 0)
		return;
	MUST(cuLaunchKernel(gpu->kernels[launch->kernel - fa_cuda_kernels], launch->grid, 1, 1,
	                    (unsigned int)launch->kernel->threads, 1, 1,
	                    (unsigned int)launch->kernel->shared_bytes, stream, args, NULL));
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
