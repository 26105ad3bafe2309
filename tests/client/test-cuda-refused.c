/*
 * CUDA memory that cannot be shared, and driver calls that fail. The error text states the reason,
 * and neither side leaks.
 */
#include "tests/client/cuda-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define BYTES 65536ull

static struct fa_cuda_scene scene;
static struct fa_client *client;
static struct fa_buffer *buffer;

static void begin(void)
{
	client = fa_cuda_connect(scene.daemon.socket);
}

static int import(uint64_t at, uint64_t bytes)
{
	return fa_buffer_import_cuda(client, at, bytes, 0, &buffer);
}

static uint64_t alloc(uint64_t bytes)
{
	CUdeviceptr at;

	fa_cu(cuMemAlloc(&at, bytes));
	return at;
}

static void kinds_case(int socket)
{
	struct fa_cuda_vmm plain, half;
	CUdeviceptr managed, async;
	static char host[4096];
	void *pinned;

	begin();
	fa_refused(import((uintptr_t)host, sizeof(host)), -EINVAL, "fa_buffer_new()");
	fa_refused(import(0, 4096), -EINVAL, "knows no memory");
	fa_refused(import(UINT64_MAX - 100, 4096), -EINVAL, "no range");
	fa_cu(cuMemHostAlloc(&pinned, BYTES, 0));
	fa_refused(import((uintptr_t)pinned, BYTES), -ENOTSUP, "fa_buffer_import_fd()");
	fa_cu(cuMemFreeHost(pinned));
	fa_cu(cuMemAllocManaged(&managed, BYTES, 1));
	fa_refused(import(managed, BYTES), -ENOTSUP, "use cuMemAlloc");
	fa_cu(cuMemFree(managed));
	fa_cu(cuMemAllocAsync(&async, BYTES, NULL));
	fa_refused(import(async, BYTES), -ENOTSUP, "memory pool (cuMemAllocAsync)");
	fa_cu(cuMemFreeAsync(async, NULL));
	fa_cu(cuCtxSynchronize());

	fa_cuda_vmm_new(&plain, 2, 0);
	fa_refused(import(plain.at, plain.bytes), -ENOTSUP, "requestedHandleTypes");
	fa_cuda_vmm_free(&plain);
	/* The bad allocations are in the second packet; the daemon has accepted the first. */
	fa_cuda_vmm_new(&half, 12, POSIX_FD);
	fa_cu(cuMemUnmap(half.at + 10 * FA_CUDA_CHUNK, FA_CUDA_CHUNK));
	fa_refused(import(half.at, half.bytes), -EINVAL, "nothing is allocated");
	fa_cuda_vmm_new(&plain, 1, 0);
	fa_cu(cuMemUnmap(plain.at, FA_CUDA_CHUNK));
	fa_cu(cuMemMap(half.at + 10 * FA_CUDA_CHUNK, FA_CUDA_CHUNK, 0, plain.handles[0], 0));
	fa_refused(import(half.at, half.bytes), -ENOTSUP, "requestedHandleTypes");
	fa_cuda_expect_buffers(client, 0);
	fa_ok(import(half.at, 10 * FA_CUDA_CHUNK));
	fa_cuda_attend(client, buffer, half.at, 1);
	fa_buffer_free(buffer);
	fa_disconnect(client);
}

static void arguments_case(int socket)
{
	uint64_t at = alloc(BYTES);

	begin();
	fa_refused(import(at, BYTES + 1), -EINVAL, "the allocation that it begins in");
	fa_refused(import(at + BYTES, 1), -EINVAL, "knows no memory");
	fa_refused(import(at, 0), -EINVAL, "0 bytes");
	fa_refused(import(at, UINT64_MAX), -EINVAL, "not possible");
	fa_refused(fa_buffer_import_cuda(client, at, 1, FA_BUFFER_DEVICE, &buffer), -EINVAL,
	           "unknown bits");
	fa_refused(fa_buffer_import_cuda(client, at, 1, 0, NULL), -EINVAL, "NULL");
	fa_refused(fa_buffer_import_cuda(NULL, at, 1, 0, &buffer), -EINVAL, "NULL");
	fa_refused(fa_cuda_trim(NULL), -EINVAL, "NULL");
	fa_cuda_expect_buffers(client, 0);

	/* A tensor must stay in its buffer's window, though the allocation is larger. */
	fa_ok(import(at, fa_cuda_attend_bytes() / 2));
	fa_cuda_attend_fails(client, buffer, -EINVAL, "beyond the end");
	fa_buffer_free(buffer);
	fa_disconnect(client);
	fa_cu(cuMemFree(at));
}

static void other_gpu_case(int socket)
{
	uint64_t at = alloc(BYTES);

	begin();
	fa_refused(import(at, BYTES), -ENOTSUP, "connect to the daemon of its own GPU");
	fa_check_contains(fa_error(), "GPU-");
	/* An arena is mapped on the daemon's GPU, whatever context is current. */
	fa_ok(fa_buffer_new(client, BYTES, FA_BUFFER_DEVICE, &buffer));
	fa_buffer_free(buffer);
	fa_disconnect(client);
	fa_cu(cuMemFree(at));
}

static void faults_case(int socket)
{
	static const struct {
		const char *fault;
		int kind;
		int status;
		const char *part;
	} cases[] = {
		{ "cuInit:1=100", 0, -ENODEV, "CUDA_ERROR_NO_DEVICE" },
		{ "cuCtxGetCurrent:1=201", 0, -EINVAL, "CUDA_ERROR_INVALID_CONTEXT" },
		{ "cuDeviceGetUuid:1=999", 0, -ENODEV, "CUDA_ERROR_UNKNOWN" },
		{ "cuMemGetAddressRange:1=1", 0, -EINVAL, "nothing is allocated" },
		{ "cuIpcGetMemHandle:1=801", 0, -ENOTSUP, "CUDA_ERROR_NOT_SUPPORTED" },
		{ "cuMemRetainAllocationHandle:1=1", 1, -ENOTSUP, "cannot be handed over" },
		{ "cuMemExportToShareableHandle:1=2", 1, -ENOMEM, "cannot be exported" },
		{ "cuMemExportToShareableHandle:8=2", 1, -ENOMEM, "cannot be exported" },
		/* The daemon has some allocations; the client reports that no more come. */
		{ "cuMemExportToShareableHandle:9=2", 1, -ENOMEM, "cannot be exported" },
		{ "cuMemExportToShareableHandle:20=2", 1, -ENOMEM, "cannot be exported" },
		{ "cuMemImportFromShareableHandle:1=1", 2, -EINVAL, "cannot be imported" },
		{ "cuMemAddressReserve:1=2", 2, -ENOMEM, "cannot be mapped" },
		{ "cuMemMap:1=2", 2, -ENOMEM, "cannot be mapped" },
		{ "cuMemSetAccess:1=1", 2, -EINVAL, "cannot be mapped" },
	};
	struct fa_test_cuda_lives before;
	struct fa_cuda_vmm vmm;
	uint64_t at = alloc(BYTES);
	int n_fds;

	begin();
	fa_cuda_vmm_new(&vmm, 20, POSIX_FD);
	fa_test_cuda_lives(cu_page, &before);
	n_fds = fa_test_count_fds(0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
		for (int again = 0; again < 2; ++again) {
			int r;

			if (!again)
				fa_test_cuda_fail(cu_page, cases[i].fault);
			r = cases[i].kind == 0 ? import(at, BYTES)
			    : cases[i].kind == 1
			            ? import(vmm.at, vmm.bytes)
			            : fa_buffer_new(client, BYTES, FA_BUFFER_DEVICE, &buffer);
			fa_test_cuda_fail(cu_page, NULL);
			if (again) {
				fa_ok(r);
				fa_buffer_free(buffer);
			} else {
				if (r != cases[i].status)
					fa_test_fail(__FILE__, __LINE__, "%s: %d, %s",
					             cases[i].fault, r, fa_error());
				fa_check_contains(fa_error(), cases[i].part);
			}
			fa_ok(fa_cuda_trim(client));
			fa_cuda_expect_buffers(client, 0);
			fa_check(fa_test_cuda_lives_equal(cu_page, &before, true));
			fa_check_eq(fa_test_count_fds(0), n_fds);
		}
	}
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
	fa_cu(cuMemFree(at));
}

static void daemon_faults_case(int socket)
{
	struct fa_cuda_vmm vmm;
	uint64_t at = alloc(BYTES);

	begin();
	fa_cuda_vmm_new(&vmm, 20, POSIX_FD);
	fa_test_cuda_fail(scene.page, "cuIpcOpenMemHandle:1=205");
	fa_refused(import(at, BYTES), -EINVAL, "CUDA_ERROR_MAP_FAILED");
	fa_test_cuda_fail(scene.page, "cuMemMap:13=2");
	fa_refused(import(vmm.at, vmm.bytes), -ENOMEM, "piece 12 of 20");
	fa_test_cuda_fail(scene.page, "cuMemCreate:1=2");
	fa_refused(fa_buffer_new(client, BYTES, FA_BUFFER_DEVICE, &buffer), -ENOMEM,
	           "CUDA_ERROR_OUT_OF_MEMORY");
	fa_test_cuda_fail(scene.page, NULL);
	fa_cuda_expect_buffers(client, 0);
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
	fa_cu(cuMemFree(at));
}

static const char limits[] = "[limits]\n"
			     "session_buffers = 6\n"
			     "fds = 40\n";

static void limits_case(int socket)
{
	struct fa_buffer *buffers[6];
	struct fa_cuda_vmm vmm;
	uint64_t at[8];

	begin();
	for (int i = 0; i < 8; ++i)
		at[i] = alloc(BYTES);
	for (int i = 0; i < 8; ++i) {
		fa_ok(import(at[i], BYTES));
		fa_buffer_free(buffer);
	}
	fa_cuda_expect_buffers(client, 2);
	for (int i = 0; i < 6; ++i)
		fa_ok(fa_buffer_import_cuda(client, at[i], BYTES, 0, &buffers[i]));
	fa_refused(import(at[6], BYTES), -EDQUOT, "session_buffers");
	fa_ok(import(at[3], BYTES));
	fa_buffer_free(buffer);
	for (int i = 0; i < 6; ++i)
		fa_buffer_free(buffers[i]);

	/* The daemon charges descriptors in flight from the start. */
	fa_cuda_vmm_new(&vmm, 50, POSIX_FD);
	fa_refused(import(vmm.at, vmm.bytes), -EDQUOT, "50 more would exceed the limit fds");
	fa_ok(import(vmm.at, 30 * FA_CUDA_CHUNK));
	fa_buffer_free(buffer);
	fa_ok(fa_cuda_trim(client));
	fa_cuda_expect_buffers(client, 0);
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
	for (int i = 0; i < 8; ++i)
		fa_cu(cuMemFree(at[i]));
}

static void pid_case(int socket)
{
	struct fa_cuda_vmm vmm;
	uint64_t at = alloc(BYTES);

	begin();
	fa_refused(import(at, BYTES), -ENOTSUP, "PID");
	fa_check_contains(fa_error(), "file descriptor");
	fa_cuda_vmm_new(&vmm, 3, POSIX_FD);
	fa_ok(import(vmm.at, vmm.bytes));
	fa_cuda_attend(client, buffer, vmm.at, 1);
	fa_buffer_free(buffer);
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
	fa_cu(cuMemFree(at));
}

static int no_function(void *userdata)
{
	setenv("FAD_TEST_CUDA_LACKS", "cuMemMap", 1);
	begin();
	fa_refused(import(4096, 4096), -ENOSYS, "cuMemMap");
	fa_refused(fa_buffer_new(client, 4096, FA_BUFFER_DEVICE, &buffer), -ENOSYS, "cuMemMap");
	fa_ok(fa_buffer_new(client, 4096, 0, &buffer));
	fa_disconnect(client);
	return 0;
}

static int no_gpu(void *userdata)
{
	setenv("FAD_TEST_CUDA_DEVICES", "0", 1);
	begin();
	fa_refused(import(4096, 4096), -ENODEV, "CUDA_ERROR_NO_DEVICE");
	fa_refused(fa_buffer_new(client, 4096, FA_BUFFER_DEVICE, &buffer), -ENODEV,
	           "CUDA_ERROR_NO_DEVICE");
	fa_disconnect(client);
	return 0;
}

static int cpu_daemon(void *userdata)
{
	begin();
	fa_refused(import(4096, 4096), -ENOTSUP, "backend is cpu");
	fa_disconnect(client);
	return 0;
}

static void in_scene(const struct fa_test_daemon_options *options, void (*function)(int socket),
                     int device)
{
	struct fa_cuda_child child;

	fa_cuda_scene_start(&scene, options);
	child = fa_cuda_child(function, device);
	fa_cuda_child_end(&child);
	fa_cuda_scene_stop(&scene);
}

static void test_kinds(void **state)
{
	in_scene(NULL, kinds_case, 0);
}

static void test_arguments(void **state)
{
	in_scene(NULL, arguments_case, 0);
}

static void test_other_gpu(void **state)
{
	setenv("FAD_TEST_CUDA_DEVICES", "2", 1);
	in_scene(NULL, other_gpu_case, 1);
	unsetenv("FAD_TEST_CUDA_DEVICES");
}

static void test_faults(void **state)
{
	in_scene(NULL, faults_case, 0);
}

static void test_daemon_faults(void **state)
{
	in_scene(NULL, daemon_faults_case, 0);
}

static void test_limits(void **state)
{
	in_scene(&(struct fa_test_daemon_options){ .config = limits }, limits_case, 0);
}

static void test_pid(void **state)
{
	setenv("FAD_TEST_CUDA_PID", "17", 1);
	in_scene(NULL, pid_case, 0);
	unsetenv("FAD_TEST_CUDA_PID");
}

static void test_no_driver(void **state)
{
	static const char *const cpu[] = { "--backend", "cpu", NULL };
	const struct fa_test_daemon_options options = { .args = cpu };

	fa_cuda_scene_start(&scene, NULL);
	fa_check_eq(fa_test_reap(fa_test_fork(no_function, NULL)), 0);
	fa_check_eq(fa_test_reap(fa_test_fork(no_gpu, NULL)), 0);
	fa_cuda_scene_stop(&scene);

	fa_test_daemon_start(&scene.daemon, &options);
	fa_check_eq(fa_test_reap(fa_test_fork(cpu_daemon, NULL)), 0);
	fa_test_daemon_stop(&scene.daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),         cmocka_unit_test(test_arguments),
		cmocka_unit_test(test_other_gpu),     cmocka_unit_test(test_faults),
		cmocka_unit_test(test_daemon_faults), cmocka_unit_test(test_limits),
		cmocka_unit_test(test_pid),           cmocka_unit_test(test_no_driver),
	};

	return cmocka_run_group_tests_name("cuda refused", tests, NULL, NULL);
}
