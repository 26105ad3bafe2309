/* Programs, and their forked children, load the CUDA driver only if they share GPU memory. */
#include "tests/client/cuda-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct fa_cuda_scene scene;

static int setup(void **state)
{
	fa_cuda_scene_start(&scene, NULL);
	return 0;
}

static int teardown(void **state)
{
	fa_cuda_scene_stop(&scene);
	return 0;
}

static bool has_driver(void)
{
	bool found = false;
	char line[1024];
	FILE *file;

	file = fopen("/proc/self/maps", "re");
	fa_check(file);
	while (fgets(line, sizeof(line), file))
		found = found || strstr(line, "libcuda");
	fclose(file);
	return found;
}

static void test_driver_not_loaded(void **state)
{
	struct fa_case attention = { .heads = 2, .seqlen_q = 20 };
	struct fa_info info = { .size = sizeof(info) };
	struct fa_attention request;
	struct fa_client *client;
	struct fa_buffer *buffer;
	CUdeviceptr none = 0;

	client = fa_cuda_connect(scene.daemon.socket);
	fa_ok(fa_info(client, &info));
	assert_string_equal(info.backend, "cuda");
	fa_case_plan(&attention);
	fa_ok(fa_buffer_new(client, attention.bytes, 0, &buffer));
	fa_case_fill(&attention, fa_buffer_data(buffer));
	request = fa_case_attention(&attention, buffer);
	fa_ok(fa_attention(client, &request, NULL));
	fa_check(fa_case_error(&attention, fa_buffer_data(buffer)) <= 1);
	fa_ok(fa_cuda_trim(client));
	fa_buffer_free(buffer);
	fa_check(!has_driver());

	fa_check_eq(fa_buffer_import_cuda(client, none, 4096, 0, &buffer), -EINVAL);
	fa_check(has_driver());
	fa_disconnect(client);
}

static struct fa_client *parents;
static struct fa_buffer *handle, *arena;

static int in_child(void *userdata)
{
	struct fa_buffer *buffer;

	fa_refused(fa_buffer_import_cuda(parents, fa_buffer_device_data(handle), 4096, 0, &buffer),
	           -ECHILD, "fork");
	fa_refused(fa_cuda_trim(parents), -ECHILD, "fork");
	fa_buffer_free(handle);
	fa_buffer_free(arena);
	fa_disconnect(parents);
	return 0;
}

static void fork_case(int socket)
{
	uint64_t bytes = fa_cuda_attend_bytes();
	CUdeviceptr at;

	parents = fa_cuda_connect(scene.daemon.socket);
	fa_cu(cuMemAlloc(&at, bytes));
	fa_ok(fa_buffer_import_cuda(parents, at, bytes, 0, &handle));
	fa_ok(fa_buffer_new(parents, bytes, FA_BUFFER_DEVICE, &arena));
	fa_check_eq(fa_test_reap(fa_test_fork(in_child, NULL)), 0);
	fa_cuda_expect_buffers(parents, 2);
	fa_cuda_attend(parents, handle, at, 1);
	fa_cuda_attend(parents, arena, fa_buffer_device_data(arena), 2);
	fa_buffer_free(handle);
	fa_buffer_free(arena);
	fa_disconnect(parents);
	fa_cu(cuMemFree(at));
}

static void test_fork(void **state)
{
	fa_cuda_alone(fork_case);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fork),
		cmocka_unit_test(test_driver_not_loaded),
	};

	return cmocka_run_group_tests_name("cuda unused", tests, setup, teardown);
}
