/* Modules, and functions in them. */
#include "tests/cuda-driver/module.h"
#include "tests/cuda-driver/image.h"

#include <stdlib.h>
#include <string.h>

#define SHARED_BYTES_PLAIN (48 << 10) /* dynamic shared memory that a kernel has by default */
#define SHARED_BYTES_MAX 232448

struct fa_fake_module {
	struct fa_fake_module *next;
	struct fa_fake_context *context;
	uint32_t image;
};

static struct fa_fake_module *modules;
static struct fa_fake_function *functions;
const struct fa_cpu_isa *fa_fake_isa;

/* All static functions are called under the lock. */

static struct fa_fake_module *module_find(CUmodule value)
{
	for (struct fa_fake_module *module = modules; module; module = module->next)
		if (module == (struct fa_fake_module *)value)
			return module;
	return NULL;
}

struct fa_fake_function *fa_fake_function_find(CUfunction value)
{
	for (struct fa_fake_function *function = functions; function; function = function->next)
		if (function == (struct fa_fake_function *)value)
			return function;
	return NULL;
}

static void module_free(struct fa_fake_module *module)
{
	struct fa_fake_function **at = &functions;
	struct fa_fake_module **link = &modules;

	while (*at)
		if ((*at)->module == module) {
			struct fa_fake_function *function = *at;

			*at = function->next;
			free(function);
		} else {
			at = &(*at)->next;
		}
	while (*link != module)
		link = &(*link)->next;
	*link = module->next;
	free(module);
	fa_fake_count(FA_TEST_CUDA_MODULES, -1);
}

void fa_fake_modules_end(struct fa_fake_context *context)
{
	struct fa_fake_module *module = modules;

	while (module) {
		struct fa_fake_module *next = module->next;

		if (module->context == context) {
			atomic_fetch_add(&fa_fake.page->abandoned, 1);
			module_free(module);
		}
		module = next;
	}
}

CUresult cuModuleLoadData(CUmodule *ret_module, const void *data)
{
	const struct fa_fake_image *image = data;
	CUresult result = CUDA_SUCCESS;
	struct fa_fake_module *module;
	char text[256];

	FA_FAKE_ENTER(cuModuleLoadData, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	result = fa_fake_refuse_capture();
	if (result != CUDA_SUCCESS)
		return result;
	if (!fa_fake_is_text(data) &&
	    (strncmp(image->magic, FA_FAKE_IMAGE_MAGIC, sizeof(image->magic)) ||
	     image->image > FA_FAKE_IMAGE_PLAIN))
		return CUDA_ERROR_INVALID_IMAGE;
	module = calloc(1, sizeof(*module));
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fa_fake_lock();
	if (!fa_fake_isa && fa_cpu_isa_select(text, sizeof(text), &fa_fake_isa) < 0) {
		result = fa_fake_misuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "%s", text);
		free(module);
	} else {
		module->context = fa_fake_current();
		module->image = fa_fake_is_text(data) ? FA_FAKE_IMAGE_TEXT : image->image;
		module->next = modules;
		modules = module;
		fa_fake_count(FA_TEST_CUDA_MODULES, 1);
		*ret_module = (CUmodule)module;
	}
	fa_fake_unlock();
	return result;
}

CUresult cuModuleUnload(CUmodule value)
{
	struct fa_fake_module *module;

	FA_FAKE_ENTER(cuModuleUnload, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	module = module_find(value);
	if (module)
		module_free(module);
	fa_fake_unlock();
	return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Finds a kernel's row in one of the two tables. Returns false if the module has no such kernel. */
static bool find_kernel(const struct fa_fake_module *module, const char *name,
                        struct fa_fake_function *function)
{
	for (size_t i = 0; i < fa_cuda_kernels_count; ++i)
		if ((uint32_t)fa_cuda_kernels[i].image == module->image &&
		    !strcmp(fa_cuda_kernels[i].symbol, name))
			function->kernel = &fa_cuda_kernels[i];
	for (size_t i = 0; i < fa_cuda_paged_kernels_count; ++i)
		if ((uint32_t)fa_cuda_paged_kernels[i].image + FA_CUDA_IMAGES == module->image &&
		    !strcmp(fa_cuda_paged_kernels[i].symbol, name))
			function->paged = &fa_cuda_paged_kernels[i];
	function->plain = module->image == FA_FAKE_IMAGE_PLAIN;
	if (module->image == FA_FAKE_IMAGE_TEXT)
		function->text = fa_fake_text_kernel_find(name);
	return function->kernel || function->paged || function->plain || function->text;
}

CUresult cuModuleGetFunction(CUfunction *ret_function, CUmodule value, const char *name)
{
	struct fa_fake_function *function, found = { .shared_bytes_max = SHARED_BYTES_PLAIN };
	CUresult result = CUDA_ERROR_NOT_FOUND;

	FA_FAKE_ENTER(cuModuleGetFunction, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	found.module = module_find(value);
	if (!found.module) {
		result = CUDA_ERROR_INVALID_HANDLE;
	} else if (find_kernel(found.module, name, &found)) {
		function = calloc(1, sizeof(*function));
		result = function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (function) {
			*function = found;
			function->context = found.module->context;
			function->next = functions;
			functions = function;
			*ret_function = (CUfunction)function;
		}
	}
	fa_fake_unlock();
	return result;
}

CUresult cuFuncGetAttribute(int *ret_value, CUfunction_attribute attribute, CUfunction value)
{
	CUresult result = CUDA_SUCCESS;
	const struct fa_fake_function *function;

	FA_FAKE_ENTER(cuFuncGetAttribute, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	function = fa_fake_function_find(value);
	if (!function)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
		*ret_value = 0;
	else if (attribute == CU_FUNC_ATTRIBUTE_NUM_REGS)
		*ret_value = 255;
	else if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
		*ret_value = function->shared_bytes_max;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	fa_fake_unlock();
	return result;
}

CUresult cuFuncSetAttribute(CUfunction value, CUfunction_attribute attribute, int number)
{
	CUresult result = CUDA_SUCCESS;
	struct fa_fake_function *function;

	FA_FAKE_ENTER(cuFuncSetAttribute, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	function = fa_fake_function_find(value);
	if (!function)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || number < 0 ||
	         number > SHARED_BYTES_MAX)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		function->shared_bytes_max = number;
	fa_fake_unlock();
	return result;
}
