/* How the CUDA backend opens, and which GPU it chooses. */
#include "daemon/backend/cuda/modules.h"
#include "daemon/backend/cuda/queue.h"
#include "tests/daemon/cuda-device.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct fa_device_ops *const ops = &fa_device_cuda;

static void open_refused(const char *name, int expected, const char *part)
{
	struct cuda_device cuda;
	struct fa_error error;

	fa_check_eq(cuda_device_try(&cuda, name, &error), expected);
	fa_check_contains(error.text, part);
}

static void open_child(void)
{
	struct fa_device_info info;
	struct cuda_device cuda;
	char name[64];

	setenv("FAD_TEST_CUDA_DEVICES", "3", 1);
	cuda_device_open(&cuda, NULL);
	ops->describe(cuda.device, &info);
	fa_check(!strcmp(info.backend, "cuda"));
	fa_check(info.name[0]);
	fa_check(info.uuid[0] | info.uuid[1]);
	fa_check(info.polled);
	fa_check_eq(info.threads, 0);
	fa_check_eq(info.depth, FA_CUDA_QUEUE_DEPTH);
	fa_check(info.memory_bytes >= info.memory_free_bytes && info.memory_free_bytes);
	fa_check_contains(info.details, "kernels");
	fa_check_eq(ops->health(cuda.device, NULL), 0);
	/* Set before the driver was initialised. */
	fa_check(!strcmp(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32"));
	fa_check(!strcmp(getenv("CUDA_MODULE_LOADING"), "EAGER"));
	cuda_device_close(&cuda);

	cuda_device_open(&cuda, "1");
	ops->describe(cuda.device, &info);
	cuda_device_close(&cuda);

	snprintf(name, sizeof(name), "GPU-");
	for (int i = 0; i < 16; ++i)
		snprintf(name + strlen(name), sizeof(name) - strlen(name), "%s%02X",
		         i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		         ((const unsigned char *)info.uuid)[i]);
	for (int i = 0; i < 2; ++i) {
		struct fa_device_info again;

		cuda_device_open(&cuda, name);
		ops->describe(cuda.device, &again);
		fa_check(again.uuid[0] == info.uuid[0] && again.uuid[1] == info.uuid[1]);
		cuda_device_close(&cuda);
		for (char *c = name + 4; *c; ++c)
			if (*c >= 'A' && *c <= 'F')
				*c = (char)(*c - 'A' + 'a');
	}
	open_refused("3", -ENODEV, "finds 3");
	open_refused("99999999999999999999", -EINVAL, "device is");
	open_refused("1x", -EINVAL, "device is \"1x\"");
	open_refused("-1", -EINVAL, "device is");
	open_refused("GPU-00000000-0000-0000-0000-000000000000", -ENODEV, "none of the 3 GPUs");
}

static void no_gpu_child(void)
{
	setenv("FAD_TEST_CUDA_DEVICES", "0", 1);
	open_refused(NULL, -ENXIO, "CUDA");
}

static void old_driver_child(void)
{
	setenv("FAD_TEST_CUDA_LACKS", "cuMemMap", 1);
	open_refused(NULL, -ENOSYS, "cuMemMap");
}

static void exclusive_child(void)
{
	setenv("FAD_TEST_CUDA_FAIL", "cuDevicePrimaryCtxRetain:1=46", 1);
	open_refused(NULL, -EBUSY, "another process may have it");
}

static void environment_child(void)
{
	setenv("FAD_TUNE_STAGING", "sometimes", 1);
	open_refused(NULL, -EINVAL, "FAD_TUNE_STAGING is \"sometimes\"");
	setenv("FAD_TUNE_STAGING", "auto", 1);
	setenv("FAD_TUNE_PIN_PART_BYTES", "12345", 1);
	open_refused(NULL, -EINVAL, "FAD_TUNE_PIN_PART_BYTES");
	setenv("FAD_TUNE_PIN_PART_BYTES", "64k", 1);
	open_refused(NULL, -EINVAL, "expected a number");
}

static void portable_run(struct cuda_device *cuda, bool portable)
{
	const struct fa_case attention = { .dtype = FA_WIRE_DTYPE_BF16,
		                           .seqlen_q = 70,
		                           .lse = true };
	struct fa_device_group *group = cuda_group(cuda);
	struct fa_device_queue *queue = cuda_queue(cuda, group, 0);
	struct fa_test_cuda_calls before, after;

	fa_test_cuda_calls(cuda->page, &before);
	cuda_job_run(cuda, queue, &attention, CUDA_ARENA);
	fa_test_cuda_calls(cuda->page, &after);
	fa_check_eq(after.n[FA_TEST_CUDA_cuTensorMapEncodeTiled] -
	                    before.n[FA_TEST_CUDA_cuTensorMapEncodeTiled],
	            portable ? 0 : FA_CUDA_MAPS);
	ops->queue_free(cuda->device, queue);
	ops->group_free(cuda->device, group);
}

/* Portable kernels are required, and replace chip-specific ones that cannot be loaded. */
static void portable_child(void)
{
	static const struct {
		const char *call;
		int code;
		const char *part;
	} cases[] = {
		{ "cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU, "NO_BINARY_FOR_GPU" },
		{ "cuModuleGetFunction", CUDA_ERROR_NOT_FOUND, "NOT_FOUND" },
		{ "cuFuncSetAttribute", CUDA_ERROR_INVALID_VALUE, "INVALID_VALUE" },
	};
	struct fa_test_cuda_calls before, after;
	struct fa_test_cuda_page *page;
	struct fa_device_info info;
	struct cuda_device cuda;
	size_t portable = 0;
	char text[64];

	for (size_t i = 0; i < fa_cuda_kernels_count; ++i)
		portable += !fa_cuda_kernel_is_special(&fa_cuda_kernels[i]);
	fa_check(portable < fa_cuda_kernels_count);
	cuda_device_open(&cuda, NULL);
	fa_check(!cuda.device->chip.portable);
	fa_check_eq(cuda.device->n_functions, fa_cuda_kernels_count);
	portable_run(&cuda, false);
	page = fa_test_cuda_attach(&cuda_dir, getpid());
	cuda_device_close(&cuda);

	/* Fail the last such call of the loading, and the first. */
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); ++i) {
		fa_test_cuda_calls(page, &before);
		cuda_device_open(&cuda, NULL);
		fa_test_cuda_calls(page, &after);
		cuda_device_close(&cuda);
		for (enum fa_test_cuda_call call = 0; call < FA_TEST_CUDA_CALLS; ++call)
			if (!strcmp(fa_test_cuda_call_name(call), cases[i].call))
				snprintf(text, sizeof(text), "%s:%d=%d", cases[i].call,
				         (int)(after.n[call] - before.n[call]), cases[i].code);
		fa_test_cuda_fail(page, text);
		cuda_device_open(&cuda, NULL);
		fa_test_cuda_fail(page, NULL);
		fa_check(cuda.device->chip.portable);
		fa_check_eq(cuda.device->n_functions, portable);
		ops->describe(cuda.device, &info);
		snprintf(text, sizeof(text), " %zu kernels,", portable);
		fa_check_contains(info.details, text);
		fa_check_contains(info.details, "none for its chip alone: ");
		fa_check_contains(info.details, cases[i].part);
		portable_run(&cuda, true);
		cuda_device_close(&cuda);

		snprintf(text, sizeof(text), "%s:1=%d", cases[i].call, cases[i].code);
		fa_test_cuda_fail(page, text);
		open_refused(NULL, fa_cudriver_errno(cases[i].code), cases[i].part);
		fa_test_cuda_fail(page, NULL);
	}
	fa_test_cuda_detach(page);
}

/*
 * Paged kernels are loaded with the first pool: if one chip-specific one is missing, all are
 * portable.
 */
static void check_portable_paged(const struct fa_device *device, bool portable)
{
	fa_check_eq(device->chip.portable_paged, portable);
	fa_check(!device->chip.portable);
	for (size_t i = 0; i < fa_cuda_paged_kernels_count; ++i) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];
		const bool left = portable && fa_cuda_paged_kernel_is_special(kernel);

		if (!device->paged_functions[i] != left)
			fa_test_fail(__FILE__, __LINE__, "%s is %s", kernel->symbol,
			             left ? "loaded" : "not loaded");
		fa_check_eq(!device->paged_modules[kernel->image], left);
	}
}

static void portable_paged_child(void)
{
	struct fa_error error;
	struct cuda_device cuda;
	int n_special = 0;
	char text[64];
	size_t n;

	for (size_t i = 0; i < fa_cuda_paged_kernels_count; ++i) {
		if (!fa_cuda_paged_kernel_is_special(&fa_cuda_paged_kernels[i]))
			continue;
		++n_special;
		cuda_device_open(&cuda, NULL);
		/* Kernels are loaded in the table's order. */
		snprintf(text, sizeof(text), "cuModuleGetFunction:%zu=%d", i + 1,
		         CUDA_ERROR_NOT_FOUND);
		fa_test_cuda_fail(cuda.page, text);
		fa_check_eq(fa_cuda_paged_kernels_load(cuda.device, &error), 0);
		fa_test_cuda_fail(cuda.page, NULL);
		check_portable_paged(cuda.device, true);
		portable_run(&cuda, false);
		cuda_device_close(&cuda);
	}
	fa_check(n_special > 0);

	cuda_device_open(&cuda, NULL);
	fa_check_eq(fa_cuda_paged_kernels_load(cuda.device, &error), 0);
	check_portable_paged(cuda.device, false);
	cuda_device_close(&cuda);

	for (n = 0; fa_cuda_paged_kernel_is_special(&fa_cuda_paged_kernels[n]); ++n)
		;
	cuda_device_open(&cuda, NULL);
	snprintf(text, sizeof(text), "cuModuleGetFunction:%zu=%d", n + 1, CUDA_ERROR_NOT_FOUND);
	fa_test_cuda_fail(cuda.page, text);
	fa_check_eq(fa_cuda_paged_kernels_load(cuda.device, &error),
	            fa_cudriver_errno(CUDA_ERROR_NOT_FOUND));
	fa_test_cuda_fail(cuda.page, NULL);
	fa_check_contains(error.text, "NOT_FOUND");
	cuda_device_close(&cuda);
}

static void test_open(void **state)
{
	cuda_in_child(open_child);
	cuda_in_child(no_gpu_child);
	cuda_in_child(old_driver_child);
	cuda_in_child(exclusive_child);
	cuda_in_child(environment_child);
	cuda_in_child(portable_child);
	cuda_in_child(portable_paged_child);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open),
	};
	int r;

	fa_test_cuda_begin(&cuda_dir);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
