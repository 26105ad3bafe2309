/*
 * The CUDA driver's function table: loading, results as errno, and declarations against <cuda.h>.
 * Usage: test-cudriver common/cudriver.h NEW-DRIVER OLD-DRIVER
 */
#include "common/cudriver.h"
#include "tests/unit/cudriver-facts.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *header, *new_driver, *old_driver;

/* ---- loading, in a child that finds the driver in @folder */

struct result {
	int r;
	char text[FA_ERROR_TEXT_BYTES];
};

/* Main function of the child. */
static int open_main(bool all)
{
	struct result result = { 0 };
	struct fa_cudriver driver = { 0 };
	struct fa_error error = { "" };
	bool client, rest;

	result.r = fa_cudriver_open(all ? FA_CUDRIVER_FOR_ALL : FA_CUDRIVER_FOR_CLIENT, &error,
	                            &driver);
	memcpy(result.text, error.text, sizeof(error.text));
	client = driver.library && driver.cuGetErrorName && driver.cuMemSetAccess;
	rest = driver.cuDriverGetVersion && driver.cuLaunchKernel;
	/* Success fills the requested part of the table, failure nothing. */
	if (client != (result.r == 0) || rest != (result.r == 0 && all))
		return 1;
	return write(STDOUT_FILENO, &result, sizeof(result)) != sizeof(result);
}

static struct result open_in(const char *folder, bool all)
{
	struct result result;
	int fds[2], status;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(fds[1], STDOUT_FILENO);
		setenv("LD_LIBRARY_PATH", folder, 1);
		execl("/proc/self/exe", "test-cudriver", all ? "open-all" : "open-client", NULL);
		_exit(1);
	}
	close(fds[1]);
	assert_int_equal(read(fds[0], &result, sizeof(result)), sizeof(result));
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	return result;
}

static void contains(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static void opened(void **state)
{
	assert_int_equal(open_in(new_driver, true).r, 0);
	assert_int_equal(open_in(new_driver, false).r, 0);
}

static void no_driver(void **state)
{
	const struct result result = open_in("/nonexistent", true);

	if (result.r == 0)
		skip(); /* this machine has a driver */
	assert_int_equal(result.r, -ENODEV);
	contains(result.text, "no CUDA driver");
	contains(result.text, "libcuda.so.1");
}

static void too_old(void **state)
{
	struct result result = open_in(old_driver, false);

	assert_int_equal(result.r, -ENOSYS);
	contains(result.text, "too old");
	contains(result.text, "12.0");

	setenv("FAD_TEST_CUDA_VERSION", "11080", 1);
	result = open_in(new_driver, false);
	unsetenv("FAD_TEST_CUDA_VERSION");
	assert_int_equal(result.r, -ENOSYS);
	contains(result.text, "12.0");
}

static void lacks_a_function(void **state)
{
	struct result result;

	setenv("FAD_TEST_CUDA_LACKS", "cuMemMap", 1);
	result = open_in(new_driver, false);
	assert_int_equal(result.r, -ENOSYS);
	contains(result.text, "cuMemMap");

	/* The library launches no graphs. */
	setenv("FAD_TEST_CUDA_LACKS", "cuGraphLaunch", 1);
	assert_int_equal(open_in(new_driver, false).r, 0);
	result = open_in(new_driver, true);
	assert_int_equal(result.r, -ENOSYS);
	contains(result.text, "cuGraphLaunch");
	unsetenv("FAD_TEST_CUDA_LACKS");
}

/* ---- results to errno */

static void test_errnos(void **state)
{
	static const struct {
		CUresult result;
		int r;
	} cases[] = {
		{ CUDA_SUCCESS, 0 },
		{ CUDA_ERROR_INVALID_VALUE, -EINVAL },
		{ CUDA_ERROR_INVALID_CONTEXT, -EINVAL },
		{ CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM },
		{ CUDA_ERROR_NOT_READY, -EAGAIN },
		{ CUDA_ERROR_NOT_SUPPORTED, -ENOTSUP },
		{ CUDA_ERROR_NOT_PERMITTED, -EPERM },
		{ CUDA_ERROR_NOT_FOUND, -ENOENT },
		{ CUDA_ERROR_NO_DEVICE, -ENODEV },
		{ CUDA_ERROR_ECC_UNCORRECTABLE, -ENODEV },
		{ CUDA_ERROR_ILLEGAL_ADDRESS, -ENODEV },
		{ CUDA_ERROR_MISALIGNED_ADDRESS, -ENODEV },
		{ CUDA_ERROR_LAUNCH_FAILED, -ENODEV },
		{ CUDA_ERROR_UNKNOWN, -ENODEV },
		{ CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, -EINVAL },
		{ (CUresult)12345, -EINVAL },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i)
		if (fa_cudriver_errno(cases[i].result) != cases[i].r)
			fail_msg("%d means %d, not %d", (int)cases[i].result,
			         fa_cudriver_errno(cases[i].result), cases[i].r);
}

static CUresult name_of(CUresult error, const char **ret_name)
{
	if (error != CUDA_ERROR_OUT_OF_MEMORY)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_name = "CUDA_ERROR_OUT_OF_MEMORY";
	return CUDA_SUCCESS;
}

static CUresult text_of(CUresult error, const char **ret_text)
{
	if (error != CUDA_ERROR_OUT_OF_MEMORY)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_text = "out of memory";
	return CUDA_SUCCESS;
}

static void sentences(void **state)
{
	const struct fa_cudriver driver = { .cuGetErrorName = name_of,
		                            .cuGetErrorString = text_of };
	struct fa_error error;

	assert_int_equal(fa_cudriver_fail(&driver, &error, CUDA_ERROR_OUT_OF_MEMORY, "no arena"),
	                 -ENOMEM);
	assert_string_equal(error.text, "no arena: CUDA_ERROR_OUT_OF_MEMORY, out of memory");
	assert_int_equal(fa_cudriver_fail(&driver, &error, (CUresult)12345, "it broke"), -EINVAL);
	assert_string_equal(error.text, "it broke: an unknown error, no description");
	assert_int_equal(fa_cudriver_fail(&driver, NULL, CUDA_ERROR_UNKNOWN, "it broke"), -ENODEV);
}

/* ---- the declarations */

static const struct cudriver_fact *fact_find(const char *name)
{
	for (const struct cudriver_fact *fact = cudriver_ours; fact->name; ++fact)
		if (!strcmp(fact->name, name))
			return fact;
	return NULL;
}

/* Constants are defined as "CU… = …," or "#define CU_… …". */
static bool number_in(const char *line, char name[80])
{
	if (sscanf(line, " #define %79[A-Z0-9_]", name) == 1)
		return !strncmp(name, "CU_", 3);
	return sscanf(line, " %79[A-Z0-9_] =", name) == 1 && !strncmp(name, "CU", 2) &&
	       strstr(line, " = ");
}

/* A constant missing in the list would never be compared. */
static void test_list_is_complete(void **state)
{
	char line[256], name[80];
	FILE *file = fopen(header, "re");
	unsigned int n = 0;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		if (!number_in(line, name))
			continue;
		++n;
		if (!fact_find(name))
			fail_msg("%s is not in cudriver-facts.h", name);
	}
	fclose(file);
	assert_true(n > 80);
}

static void same_as_theirs(void **state)
{
	unsigned int n_different = 0;

	if (!cudriver_theirs)
		skip();
	for (size_t i = 0; cudriver_ours[i].name; ++i) {
		assert_string_equal(cudriver_ours[i].name, cudriver_theirs[i].name);
		if (cudriver_ours[i].value == cudriver_theirs[i].value)
			continue;
		++n_different;
		print_error("%s is %lld, in <cuda.h> %lld\n", cudriver_ours[i].name,
		            cudriver_ours[i].value, cudriver_theirs[i].value);
	}
	assert_int_equal(n_different, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opened),
		cmocka_unit_test(no_driver),
		cmocka_unit_test(too_old),
		cmocka_unit_test(lacks_a_function),
		cmocka_unit_test(test_errnos),
		cmocka_unit_test(sentences),
		cmocka_unit_test(test_list_is_complete),
		cmocka_unit_test(same_as_theirs),
	};

	if (argc == 2 && !strncmp(argv[1], "open-", 5))
		return open_main(!strcmp(argv[1], "open-all"));
	if (argc != 4)
		return 2;
	header = argv[1];
	new_driver = argv[2];
	old_driver = argv[3];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
