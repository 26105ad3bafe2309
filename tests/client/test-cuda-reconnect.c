/*
 * Buffers of GPU memory when another daemon replaces a dead one: of the same kind, without a GPU,
 * with a GPU again.
 */
#include "tests/client/cuda-scene.h"
#include "tests/lib/check.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static char dir[48];
static struct fa_test_cuda cuda;

static struct fa_test_daemon server;
static struct fa_client *client;
static struct fa_buffer *handle, *pieces, *part, *arena, *host;
static struct fa_cuda_vmm vmm;
static CUdeviceptr at, unused;

static void start(bool cpu)
{
	static const char *const args[] = { "--backend", "cpu", NULL };

	fa_test_daemon_start(
		&server, &(struct fa_test_daemon_options){ .dir = dir, .args = cpu ? args : NULL });
}

static void kill_daemon(void)
{
	fa_test_daemon_signal(&server, SIGKILL);
	fa_check_eq(WTERMSIG(fa_test_daemon_reap(&server)), SIGKILL);
	fa_check_eventually(fa_client_state(client) == FA_CLIENT_LOST);
}

static void begin(size_t n_pieces)
{
	const uint64_t bytes = fa_cuda_attend_bytes();
	struct fa_buffer *buffer;

	start(false);
	client = fa_cuda_connect(server.socket);
	fa_cu(cuMemAlloc(&at, bytes));
	fa_cu(cuMemAlloc(&unused, bytes));
	fa_cuda_vmm_new(&vmm, n_pieces, POSIX_FD);
	fa_ok(fa_buffer_import_cuda(client, unused, bytes, 0, &buffer));
	fa_ok(fa_buffer_import_cuda(client, at, bytes, 0, &handle));
	fa_ok(fa_buffer_import_cuda(client, vmm.at, vmm.bytes, 0, &pieces));
	fa_ok(fa_buffer_import_cuda(client, vmm.at + vmm.bytes - FA_CUDA_CHUNK, FA_CUDA_CHUNK, 0,
	                            &part));
	fa_ok(fa_buffer_new(client, bytes, FA_BUFFER_DEVICE, &arena));
	fa_ok(fa_buffer_new(client, bytes, 0, &host));
	fa_buffer_free(buffer);
	fa_cuda_expect_buffers(client, 5);
}

static void end(void)
{
	fa_buffer_free(part);
	fa_buffer_free(pieces);
	fa_buffer_free(handle);
	fa_buffer_free(arena);
	fa_buffer_free(host);
	fa_ok(fa_cuda_trim(client));
	fa_cuda_expect_buffers(client, 0);
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
	fa_test_daemon_stop(&server);
}

static void attend(uint64_t seed)
{
	fa_cuda_attend(client, handle, at, seed);
	fa_cuda_attend(client, pieces, vmm.at, seed + 1);
	fa_cuda_attend(client, part, vmm.at + vmm.bytes - FA_CUDA_CHUNK, seed + 2);
	fa_cuda_attend(client, arena, fa_buffer_device_data(arena), seed + 3);
}

static void same_case(int socket)
{
	begin(20);
	attend(1);
	for (uint64_t i = 0; i < 3; ++i) {
		kill_daemon();
		start(false);
		attend(10 * i);
		fa_cuda_expect_buffers(client, 4);
	}
	end();
}

/* An arena's descriptor keeps its memory after the daemon that made it has died. */
static void contents_case(int socket)
{
	char text[8] = "";

	begin(1);
	fa_cu(cuMemcpyHtoD(fa_buffer_device_data(arena), "persist", 8));
	kill_daemon();
	start(false);
	fa_ok(fa_ping(client));
	fa_cu(cuMemcpyDtoH(text, fa_buffer_device_data(arena), 8));
	fa_check(!strcmp(text, "persist"));
	end();
}

static void freed_case(int socket)
{
	begin(20);
	kill_daemon();
	fa_cu(cuMemFree(at));
	fa_cuda_vmm_replace(&vmm, 13);
	start(false);
	fa_cuda_attend(client, arena, fa_buffer_device_data(arena), 1);
	fa_cuda_attend_fails(client, handle, -ESTALE, "was freed");
	fa_cuda_attend_fails(client, pieces, -ESTALE, "was freed");
	fa_cuda_attend_fails(client, part, -ESTALE, "q.buffer is lost");
	fa_cuda_expect_buffers(client, 2);

	fa_buffer_free(part);
	fa_ok(fa_buffer_import_cuda(client, vmm.at + vmm.bytes - FA_CUDA_CHUNK, FA_CUDA_CHUNK, 0,
	                            &part));
	fa_cuda_attend(client, part, vmm.at + vmm.bytes - FA_CUDA_CHUNK, 1);
	end();
}

/* An export fails midway: the daemon does not wait for the remaining allocations. */
static void fault_case(int socket)
{
	begin(20);
	kill_daemon();
	fa_test_cuda_fail(cu_page, "cuMemExportToShareableHandle:12=2");
	start(false);
	fa_cuda_attend(client, handle, at, 1);
	fa_test_cuda_fail(cu_page, NULL);
	fa_cuda_attend_fails(client, pieces, -ESTALE, "CUDA_ERROR_OUT_OF_MEMORY");
	fa_cuda_expect_buffers(client, 3);

	kill_daemon();
	start(false);
	attend(1);
	end();
}

static void refused_case(int socket)
{
	struct fa_test_cuda_page *page;

	begin(20);
	kill_daemon();
	start(false);
	page = fa_test_cuda_attach(&cuda, server.pid);
	fa_test_cuda_fail(page, "cuIpcOpenMemHandle:1=205,cuMemMap:3=2");
	fa_ok(fa_ping(client));
	fa_test_cuda_detach(page);
	fa_cuda_attend_fails(client, handle, -ESTALE, "CUDA_ERROR_MAP_FAILED");
	fa_cuda_attend_fails(client, pieces, -ESTALE, "piece");
	fa_cuda_attend(client, arena, fa_buffer_device_data(arena), 1);
	end();
}

static void other_backend_case(int socket)
{
	begin(20);
	kill_daemon();
	start(true);
	fa_ok(fa_ping(client));
	fa_cuda_attend_fails(client, handle, -ESTALE, "has backend cpu");
	fa_cuda_attend_fails(client, pieces, -ESTALE, "has backend cpu");
	fa_cuda_attend_fails(client, arena, -ESTALE, "has backend cpu");
	fa_refused(fa_buffer_import_cuda(client, at, 1, 0, &(struct fa_buffer *){ NULL }), -ENOTSUP,
	           "backend is cpu");
	fa_cuda_expect_buffers(client, 1);

	kill_daemon();
	start(false);
	attend(1);
	kill_daemon();
	start(true);
	fa_ok(fa_ping(client));
	end();
}

/* The client notices the loss only when it sends the next request. */
static void unnoticed_case(int socket)
{
	for (size_t i = 0; i < 3; ++i) {
		begin(20);
		fa_cuda_attend(client, handle, at, 1);
		fa_test_daemon_signal(&server, SIGKILL);
		fa_check_eq(WTERMSIG(fa_test_daemon_reap(&server)), SIGKILL);
		start(true);
		fa_cuda_attend_fails(client,
		                     i == 0   ? handle
		                     : i == 1 ? pieces
		                              : arena,
		                     -ESTALE, "has backend cpu");
		fa_cuda_expect_buffers(client, 1);
		end();
	}
}

#define THREADS 3

static atomic_bool finished;

static void *import_and_free(void *userdata)
{
	struct fa_test_random random = { (uintptr_t)userdata };

	while (!atomic_load(&finished)) {
		const uint64_t first = fa_test_random_below(&random, 20);
		const uint64_t bytes = (20 - first) * FA_CUDA_CHUNK;
		struct fa_buffer *buffer;
		int r;

		if (fa_test_random_below(&random, 3))
			r = fa_buffer_import_cuda(client, vmm.at + first * FA_CUDA_CHUNK, bytes, 0,
			                          &buffer);
		else
			r = fa_buffer_import_cuda(client, at, 4096, 0, &buffer);
		if (r == 0)
			fa_buffer_free(buffer);
		else if (r != -ECONNRESET)
			fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
		if (!fa_test_random_below(&random, 8))
			fa_ok(fa_cuda_trim(client));
	}
	return NULL;
}

static void threads_case(int socket)
{
	pthread_t threads[THREADS];

	begin(20);
	for (uintptr_t i = 0; i < THREADS; ++i)
		fa_check(!pthread_create(&threads[i], NULL, import_and_free, (void *)(i + 1)));
	for (int i = 0; i < 5; ++i) {
		fa_test_any_moment_us(30000);
		fa_test_daemon_signal(&server, SIGKILL);
		fa_check_eq(WTERMSIG(fa_test_daemon_reap(&server)), SIGKILL);
		start(false);
	}
	fa_test_any_moment_us(30000);
	atomic_store(&finished, true);
	for (int i = 0; i < THREADS; ++i)
		pthread_join(threads[i], NULL);
	fa_ok(fa_reconnect(client));
	attend(1);
	end();
}

static int make_scene(void **state)
{
	fa_test_dir_make(dir, sizeof(dir));
	fa_test_cuda_begin(&cuda);
	return 0;
}

static int remove_scene(void **state)
{
	fa_test_cuda_end(&cuda);
	fa_test_dir_remove(dir);
	return 0;
}

#define CASE(name)                                                                                 \
	static void test_##name(void **state)                                                      \
	{                                                                                          \
		fa_cuda_alone(name##_case);                                                        \
	}

CASE(same)
CASE(contents)
CASE(freed)
CASE(fault)
CASE(refused)
CASE(other_backend)
CASE(unnoticed)
CASE(threads)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same),      cmocka_unit_test(test_contents),
		cmocka_unit_test(test_freed),     cmocka_unit_test(test_fault),
		cmocka_unit_test(test_refused),   cmocka_unit_test(test_other_backend),
		cmocka_unit_test(test_unnoticed), cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests_name("cuda reconnect", tests, make_scene, remove_scene);
}
