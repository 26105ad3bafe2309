/*
 * factl says whether the daemon runs under MPS, and warns if it does not and a client has GPU
 * memory.
 */
#include "tests/client/cuda-scene.h"
#include "tests/lib/check.h"
#include "tools/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct fa_cuda_scene scene;
static const char *wanted;

static void expect(struct fa_client *client, bool warned)
{
	char line[64], *json, *text = NULL;
	size_t bytes;
	FILE *file;

	fa_ok(fa_status(client, &json));
	file = open_memstream(&text, &bytes);
	fa_check(file);
	fa_check_eq(fa_status_print(json, file), 0);
	fclose(file);
	snprintf(line, sizeof(line), "\nMPS       %s\n", wanted);
	if (!strstr(text, line) || !strstr(text, "warning: 1 client uses") == warned)
		fa_test_fail(__FILE__, __LINE__, "not MPS %s%s: %s", wanted,
		             warned ? " and a warning" : "", text);
	free(text);
	free(json);
}

static void client_case(int socket)
{
	const bool without = strcmp(wanted, "on") != 0;
	struct fa_client *client = fa_cuda_connect(scene.daemon.socket);
	struct fa_buffer *imported, *arena, *host;
	struct fa_timeline *timeline;
	CUdeviceptr at;

	expect(client, false);
	fa_ok(fa_buffer_new(client, 4096, 0, &host));
	expect(client, false);
	fa_cu(cuMemAlloc(&at, 4096));
	fa_ok(fa_buffer_import_cuda(client, at, 4096, 0, &imported));
	expect(client, without);
	fa_ok(fa_buffer_new(client, 4096, FA_BUFFER_DEVICE, &arena));
	fa_buffer_free(imported);
	expect(client, without);
	fa_buffer_free(arena);
	fa_ok(fa_cuda_trim(client));
	expect(client, false);
	fa_ok(fa_timeline_open(client, &timeline));
	expect(client, without);
	fa_buffer_free(host);
	fa_disconnect(client);
	fa_cu(cuMemFree(at));
}

static void run(const char *state)
{
	wanted = state;
	fa_cuda_scene_start(&scene, NULL);
	fa_cuda_alone(client_case);
	fa_cuda_scene_stop(&scene);
}

static void test_off(void **state)
{
	run("off");
}

static void test_on(void **state)
{
	setenv("FAD_TEST_CUDA_MPS", "1", 1);
	run("on");
	unsetenv("FAD_TEST_CUDA_MPS");
}

/* Fail call 7 of cuDeviceGetAttribute. */
static void test_unknown(void **state)
{
	setenv("FAD_TEST_CUDA_FAIL", "cuDeviceGetAttribute:7=1", 1);
	run("unknown");
	unsetenv("FAD_TEST_CUDA_FAIL");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_off),
		cmocka_unit_test(test_on),
		cmocka_unit_test(test_unknown),
	};

	return cmocka_run_group_tests_name("cuda-mps", tests, NULL, NULL);
}
