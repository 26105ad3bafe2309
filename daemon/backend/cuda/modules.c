/* Loads the kernels when the device or its pool is opened: later that might hold up everything. */
#include "daemon/backend/cuda/modules.h"

#include "common/cleanup.h"
#include "kernels/cuda/images.h"
#include "kernels/cuda/paged-images.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Beyond this a kernel must ask for dynamic shared memory. */
#define SHARED_BYTES_DEFAULT (48 << 10)

static int load_module(struct fa_device *device, const struct fa_cuda_image_data *data,
                       const char *name, CUmodule *module, struct fa_error *error)
{
	char doing[64];
	CUresult result;

	if (*module)
		return 0;
	if (!data->bytes)
		return fa_fail(error, -ENODEV, "this fad was built without %s", name);
	result = device->driver.cuModuleLoadData(module, data->data);
	if (result == CUDA_SUCCESS)
		return 0;
	*module = NULL;
	snprintf(doing, sizeof(doing), "%s cannot be loaded", name);
	return fa_cudriver_fail(&device->driver, error, result, doing);
}

static int load_function(struct fa_device *device, CUmodule module, const char *symbol,
                         int shared_bytes, CUfunction *ret_function, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	CUfunction function;
	char doing[128];
	CUresult result;

	snprintf(doing, sizeof(doing), "kernel %s cannot be loaded", symbol);
	result = driver->cuModuleGetFunction(&function, module, symbol);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, doing);
	if (shared_bytes > SHARED_BYTES_DEFAULT)
		result = driver->cuFuncSetAttribute(
			function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, doing);
	*ret_function = function;
	return 0;
}

static int load_kernel(struct fa_device *device, size_t i, struct fa_error *error)
{
	const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];
	char name[48];
	int r;

	snprintf(name, sizeof(name), "module %d of its GPU kernels", (int)kernel->image);
	r = load_module(device, &fa_cuda_images[kernel->image], name,
	                &device->modules[kernel->image], error);
	if (r == 0)
		r = load_function(device, device->modules[kernel->image], kernel->symbol,
		                  kernel->shared_bytes, &device->functions[i], error);
	return r;
}

/* Portable kernels do the same as those built for this chip alone. */
static void drop_special(struct fa_device *device, const struct fa_error *why)
{
	for (size_t i = 0; i < fa_cuda_kernels_count; ++i) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

		if (!fa_cuda_kernel_is_special(kernel))
			continue;
		device->functions[i] = NULL;
		if (device->modules[kernel->image])
			(void)device->driver.cuModuleUnload(device->modules[kernel->image]);
		device->modules[kernel->image] = NULL;
	}
	device->chip.portable = true;
	device->special_error = *why;
}

int fa_cuda_kernels_load(struct fa_device *device, struct fa_error *error)
{
	int r;

	device->functions = calloc(fa_cuda_kernels_count, sizeof(*device->functions));
	if (!device->functions)
		return fa_fail(error, -ENOMEM, "no memory for the table of GPU kernels");
	for (size_t i = 0; i < fa_cuda_kernels_count; ++i) {
		if (!fa_cuda_kernel_runs(&fa_cuda_kernels[i], &device->chip))
			continue;
		r = load_kernel(device, i, error);
		if (r < 0 && fa_cuda_kernel_is_special(&fa_cuda_kernels[i]))
			drop_special(device, error);
		else if (r < 0)
			return r;
	}
	for (size_t i = 0; i < fa_cuda_kernels_count; ++i)
		device->n_functions += device->functions[i] != NULL;
	return 0;
}

static void drop_special_paged(struct fa_device *device)
{
	for (size_t i = 0; i < fa_cuda_paged_kernels_count; ++i) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];

		if (!fa_cuda_paged_kernel_is_special(kernel))
			continue;
		device->paged_functions[i] = NULL;
		if (device->paged_modules[kernel->image])
			(void)device->driver.cuModuleUnload(device->paged_modules[kernel->image]);
		device->paged_modules[kernel->image] = NULL;
	}
	device->chip.portable_paged = true;
}

int fa_cuda_paged_kernels_load(struct fa_device *device, struct fa_error *error)
{
	int r;

	if (device->paged_functions)
		return 0;
	device->paged_functions = calloc(fa_cuda_paged_kernels_count,
	                                 sizeof(*device->paged_functions));
	if (!device->paged_functions)
		return fa_fail(error, -ENOMEM, "no memory for the table of GPU kernels");
	for (size_t i = 0; i < fa_cuda_paged_kernels_count; ++i) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];
		char name[64];

		if (!fa_cuda_paged_kernel_runs(kernel, &device->chip))
			continue;
		snprintf(name, sizeof(name), "module %d of its GPU kernels over pages",
		         (int)kernel->image);
		r = load_module(device, &fa_cuda_paged_images[kernel->image], name,
		                &device->paged_modules[kernel->image], error);
		if (r == 0)
			r = load_function(device, device->paged_modules[kernel->image],
			                  kernel->symbol, kernel->shared_bytes,
			                  &device->paged_functions[i], error);
		if (r < 0 && fa_cuda_paged_kernel_is_special(kernel))
			drop_special_paged(device);
		else if (r < 0)
			return r;
	}
	return 0;
}

void fa_cuda_kernels_unload(struct fa_device *device)
{
	for (int i = 0; i < FA_CUDA_PAGED_IMAGES; ++i)
		if (device->paged_modules[i])
			(void)device->driver.cuModuleUnload(device->paged_modules[i]);
	free(device->paged_functions);
	for (int i = 0; i < FA_CUDA_IMAGES; ++i)
		if (device->modules[i])
			(void)device->driver.cuModuleUnload(device->modules[i]);
	free(device->functions);
}

int fa_cuda_rewrite(struct fa_device *device, struct fa_attention_params *params,
                    uint32_t **ret_lengths, struct fa_error *error)
{
	*ret_lengths = NULL;
	return fa_cuda_masks_rewrite(params, FA_CUDA_SEQUENCES_MAX, error->text,
	                             sizeof(error->text), ret_lengths);
}

int fa_cuda_check(struct fa_device *device, const struct fa_attention_params *asked,
                  struct fa_error *error)
{
	_fa_cleanup_(fa_freep) uint32_t *lengths = NULL;
	struct fa_attention_params copy = *asked, *params = &copy;
	struct fa_cuda_launch launch;
	struct fa_error unused;
	int r;

	if (!error)
		error = &unused;
	r = fa_attention_check(params, error->text, sizeof(error->text));
	if (r == 0)
		r = fa_cuda_rewrite(device, params, &lengths, error);
	if (r < 0)
		return r;
	if (params->cu_seqlens_q && params->batch > FA_CUDA_SEQUENCES_MAX)
		return fa_fail(error, -ENOTSUP, "batch %d is not supported: at most %d if ragged",
		               params->batch, FA_CUDA_SEQUENCES_MAX);
	r = fa_cuda_attention_plan(&device->chip, params, error->text, sizeof(error->text),
	                           &launch);
	if (r < 0)
		return r;
	if ((params->alibi_slopes || params->sinks) && params->heads > FA_CUDA_VECTOR_HEADS_MAX)
		return fa_fail(error, -ENOTSUP,
		               "heads %d is not supported: at most %d with slopes or sinks",
		               params->heads, FA_CUDA_VECTOR_HEADS_MAX);
	return 0;
}
