#include "tools/gpu.h"

#include "kernels/cuda/images.h"

#include <errno.h>
#include <stdlib.h>

static int load(struct fa_gpu *gpu, struct fa_error *error)
{
	const struct fa_cudriver *driver = &gpu->driver;
	CUresult result;

	for (int i = 0; i < FA_CUDA_IMAGES; i++) {
		result = driver->cuModuleLoadData(&gpu->modules[i], fa_cuda_images[i].data);
		if (result != CUDA_SUCCESS)
			return fa_cudriver_fail(driver, error, result, "loading the kernels");
	}
	gpu->kernels = calloc(fa_cuda_kernels_count, sizeof(gpu->kernels[0]));
	if (!gpu->kernels)
		return fa_fail(error, -ENOMEM, "no memory for a table of kernels");
	for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

		if (kernel->arch > gpu->chip.arch ||
		    kernel->shared_bytes > gpu->chip.shared_bytes_max)
			continue;
		result = driver->cuModuleGetFunction(&gpu->kernels[i], gpu->modules[kernel->image],
		                                     kernel->symbol);
		if (result == CUDA_SUCCESS)
			result = driver->cuFuncSetAttribute(
				gpu->kernels[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
				kernel->shared_bytes);
		if (result != CUDA_SUCCESS)
			return fa_cudriver_fail(driver, error, result, kernel->symbol);
	}
	return 0;
}

static int describe(struct fa_gpu *gpu, struct fa_error *error)
{
	const struct fa_cudriver *driver = &gpu->driver;
	int major, minor, shared, l2;
	CUresult result;

	result = driver->cuDeviceGetName(gpu->name, sizeof(gpu->name), gpu->device);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGetAttribute(
			&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu->device);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGetAttribute(
			&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu->device);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGetAttribute(
			&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
			gpu->device);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGetAttribute(&l2, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
		                                      gpu->device);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "asking what the GPU is");
	gpu->chip = (struct fa_cuda_chip){
		.arch = 10 * major + minor,
		.shared_bytes_max = shared,
		.l2_bytes = l2,
	};
	return 0;
}

static int open_device(struct fa_gpu *gpu, struct fa_error *error)
{
	const struct fa_cudriver *driver = &gpu->driver;
	CUresult result;
	int r;

	result = driver->cuInit(0);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGet(&gpu->device, 0);
	if (result != CUDA_SUCCESS) {
		fa_cudriver_fail(driver, error, result, "no GPU");
		return -ENODEV;
	}
	result = driver->cuDevicePrimaryCtxRetain(&gpu->context, gpu->device);
	if (result == CUDA_SUCCESS)
		result = driver->cuCtxSetCurrent(gpu->context);
	if (result == CUDA_SUCCESS)
		result = driver->cuStreamCreateWithPriority(&gpu->stream, CU_STREAM_NON_BLOCKING,
		                                            0);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "using the first GPU");
	r = describe(gpu, error);
	return r < 0 ? r : load(gpu, error);
}

int fa_gpu_open(struct fa_error *error, struct fa_gpu **ret_gpu)
{
	struct fa_gpu *gpu;
	int r;

	for (int i = 0; i < FA_CUDA_IMAGES; i++)
		if (!fa_cuda_images[i].bytes)
			return fa_fail(error, -ENODEV, "this build has no GPU kernels");
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu)
		return fa_fail(error, -ENOMEM, "no memory");
	r = fa_cudriver_open(FA_CUDRIVER_FOR_ALL, error, &gpu->driver);
	if (r == 0)
		r = open_device(gpu, error);
	if (r < 0) {
		fa_gpu_close(gpu);
		return r;
	}
	*ret_gpu = gpu;
	return 0;
}

struct fa_gpu *fa_gpu_close(struct fa_gpu *gpu)
{
	if (!gpu)
		return NULL;
	for (int i = 0; i < FA_CUDA_IMAGES; i++)
		if (gpu->modules[i])
			(void)gpu->driver.cuModuleUnload(gpu->modules[i]);
	if (gpu->stream)
		(void)gpu->driver.cuStreamDestroy(gpu->stream);
	if (gpu->context)
		(void)gpu->driver.cuDevicePrimaryCtxRelease(gpu->device);
	free(gpu->kernels);
	free(gpu);
	return NULL;
}

int fa_gpu_launch(struct fa_gpu *gpu, const struct fa_attention_params *params,
                  struct fa_error *error)
{
	const struct fa_cuda_kernel *kernel;
	struct fa_cuda_launch launch;
	void *args[] = { &launch.args };
	CUresult result;
	int r;

	r = fa_cuda_attention_plan(&gpu->chip, params, error->text, sizeof(error->text), &launch);
	if (r < 0 || !launch.grid)
		return r;
	kernel = launch.kernel;
	result = gpu->driver.cuLaunchKernel(gpu->kernels[kernel - fa_cuda_kernels], launch.grid, 1,
	                                    1, (unsigned int)kernel->threads, 1, 1,
	                                    (unsigned int)kernel->shared_bytes, gpu->stream, args,
	                                    NULL);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(&gpu->driver, error, result, "launching a kernel");
	return 0;
}
