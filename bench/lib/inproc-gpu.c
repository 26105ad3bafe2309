#include "bench/lib/inproc-gpu.h"

#include <errno.h>
#include <stdlib.h>

static int load(struct fa_inproc_gpu *gpu, struct fa_error *error)
{
	const struct fa_cudriver *driver = &gpu->driver;
	CUresult result;

	gpu->kernels = calloc(fa_cuda_kernels_count, sizeof(gpu->kernels[0]));
	if (!gpu->kernels)
		return fa_fail(error, -ENOMEM, "no memory for a table of kernels");
	for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

		if (!fa_cuda_kernel_runs(kernel, &gpu->chip))
			continue;
		result = CUDA_SUCCESS;
		if (!gpu->modules[kernel->image])
			result = driver->cuModuleLoadData(&gpu->modules[kernel->image],
			                                  fa_cuda_images[kernel->image].data);
		if (result != CUDA_SUCCESS)
			return fa_cudriver_fail(driver, error, result, "loading the kernels");
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

static int load_bench(struct fa_inproc_gpu *gpu, struct fa_error *error)
{
	const struct fa_cudriver *driver = &gpu->driver;
	CUresult result;

	result = driver->cuModuleLoadData(&gpu->bench, fa_bench_image.data);
	if (result == CUDA_SUCCESS)
		result = driver->cuModuleGetFunction(&gpu->spin, gpu->bench, "fa_bench_spin");
	if (result == CUDA_SUCCESS)
		result = driver->cuModuleGetFunction(&gpu->read, gpu->bench, "fa_bench_read");
	if (result == CUDA_SUCCESS)
		result = driver->cuEventCreate(&gpu->start, CU_EVENT_DEFAULT);
	if (result == CUDA_SUCCESS)
		result = driver->cuEventCreate(&gpu->stop, CU_EVENT_DEFAULT);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "loading the helper kernels");
	return 0;
}

static int describe(struct fa_inproc_gpu *gpu, struct fa_error *error)
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
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGetAttribute(
			&gpu->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "querying the GPU");
	gpu->chip = (struct fa_cuda_chip){
		.arch = 10 * major + minor,
		.shared_bytes_max = shared,
		.l2_bytes = l2,
		.sms = gpu->sms,
		.workspace = true,
	};
	return 0;
}

static int open_device(struct fa_inproc_gpu *gpu, struct fa_error *error)
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
	if (r == 0)
		r = load(gpu, error);
	return r < 0 ? r : load_bench(gpu, error);
}

int fa_inproc_gpu_open(struct fa_error *error, struct fa_inproc_gpu **ret_gpu)
{
	struct fa_inproc_gpu *gpu;
	int r;

	for (int i = 0; i < FA_CUDA_IMAGES; i++)
		if (!fa_cuda_images[i].bytes || !fa_bench_image.bytes)
			return fa_fail(error, -ENODEV, "this build has no GPU kernels");
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu)
		return fa_fail(error, -ENOMEM, "no memory");
	r = fa_cudriver_open(FA_CUDRIVER_FOR_ALL, error, &gpu->driver);
	if (r == 0)
		r = open_device(gpu, error);
	if (r < 0) {
		fa_inproc_gpu_close(gpu);
		return r;
	}
	*ret_gpu = gpu;
	return 0;
}

struct fa_inproc_gpu *fa_inproc_gpu_close(struct fa_inproc_gpu *gpu)
{
	if (!gpu)
		return NULL;
	for (int i = 0; i < FA_CUDA_IMAGES; i++)
		if (gpu->modules[i])
			(void)gpu->driver.cuModuleUnload(gpu->modules[i]);
	if (gpu->bench)
		(void)gpu->driver.cuModuleUnload(gpu->bench);
	if (gpu->start)
		(void)gpu->driver.cuEventDestroy(gpu->start);
	if (gpu->stop)
		(void)gpu->driver.cuEventDestroy(gpu->stop);
	if (gpu->flush)
		(void)gpu->driver.cuMemFree(gpu->flush);
	if (gpu->stream)
		(void)gpu->driver.cuStreamDestroy(gpu->stream);
	if (gpu->context)
		(void)gpu->driver.cuDevicePrimaryCtxRelease(gpu->device);
	free(gpu->kernels);
	free(gpu);
	return NULL;
}

int fa_inproc_gpu_launch(struct fa_inproc_gpu *gpu, const struct fa_attention_params *params,
                         struct fa_error *error)
{
	const struct fa_cuda_kernel *kernel;
	struct fa_cuda_chip chip = gpu->chip;
	struct fa_cuda_launch launch;
	struct fa_cuda_maps maps;
	void *args[] = { &launch.args, &maps };
	CUresult result;
	int r;

	/* Packed rows of a ragged batch would need a list. */
	chip.workspace = !params->cu_seqlens_q;
	r = fa_cuda_attention_plan(&chip, params, error->text, sizeof(error->text), &launch);
	if (r < 0 || !launch.grid)
		return r;
	kernel = launch.kernel;
	if (launch.workspace_bytes > gpu->workspace_bytes) {
		/* Nothing is in flight at the first launch of the largest shape. */
		result = gpu->driver.cuMemAlloc(&gpu->workspace, launch.workspace_bytes);
		if (result == CUDA_SUCCESS)
			result = gpu->driver.cuMemsetD8Async(
				gpu->workspace, 0, FA_CUDA_PACKED_WORKSPACE_ZERO, gpu->stream);
		if (result != CUDA_SUCCESS)
			return fa_cudriver_fail(&gpu->driver, error, result,
			                        "allocating a workspace");
		gpu->workspace_bytes = launch.workspace_bytes;
	}
	if (launch.workspace_bytes > 0)
		fa_cuda_packed_set(&launch, gpu->workspace, ++gpu->epoch);
	for (uint32_t i = 0; i < launch.n_maps; i++) {
		const struct fa_cuda_map *map = &launch.maps[i];

		result = fa_cudriver_encode_tensor_map(&gpu->driver, map->data, map->dims,
		                                       map->strides, map->box, &maps.maps[i]);
		if (result != CUDA_SUCCESS)
			return fa_cudriver_fail(&gpu->driver, error, result,
			                        "describing the tensors");
	}
	result = gpu->driver.cuLaunchKernel(gpu->kernels[kernel - fa_cuda_kernels], launch.grid, 1,
	                                    1, (unsigned int)kernel->threads, 1, 1,
	                                    (unsigned int)kernel->shared_bytes, gpu->stream, args,
	                                    NULL);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(&gpu->driver, error, result, "launching a kernel");
	return 0;
}

int fa_inproc_gpu_spin(struct fa_inproc_gpu *gpu, uint64_t ns)
{
	void *args[] = { &ns };

	return gpu->driver.cuLaunchKernel(gpu->spin, 1, 1, 1, 1, 1, 1, 0, gpu->stream, args, NULL)
	               ? -EIO
	               : 0;
}

int fa_inproc_gpu_read(struct fa_inproc_gpu *gpu)
{
	const struct fa_cudriver *driver = &gpu->driver;
	uint64_t count = FA_INPROC_GPU_FLUSH_BYTES / 16;
	void *args[] = { &gpu->flush, &count, &gpu->flush };

	if (!gpu->flush &&
	    (driver->cuMemAlloc(&gpu->flush, FA_INPROC_GPU_FLUSH_BYTES) != CUDA_SUCCESS ||
	     driver->cuMemsetD8(gpu->flush, 0x5a, FA_INPROC_GPU_FLUSH_BYTES) != CUDA_SUCCESS))
		return -EIO;
	return driver->cuLaunchKernel(gpu->read, (unsigned int)gpu->sms * 4, 1, 1, 512, 1, 1, 0,
	                              gpu->stream, args, NULL)
	               ? -EIO
	               : 0;
}

int fa_inproc_gpu_time_start(struct fa_inproc_gpu *gpu)
{
	return gpu->driver.cuEventRecord(gpu->start, gpu->stream) ? -EIO : 0;
}

int fa_inproc_gpu_time_stop(struct fa_inproc_gpu *gpu, double *ret_ns)
{
	const struct fa_cudriver *driver = &gpu->driver;
	float ms;

	if (driver->cuEventRecord(gpu->stop, gpu->stream) != CUDA_SUCCESS ||
	    driver->cuEventSynchronize(gpu->stop) != CUDA_SUCCESS ||
	    driver->cuEventElapsedTime(&ms, gpu->start, gpu->stop) != CUDA_SUCCESS)
		return -EIO;
	*ret_ns = (double)ms * 1e6;
	return 0;
}
