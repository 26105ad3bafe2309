/*
 * CUDA memory that a client imports, on the tests' CUDA driver: kinds of memory, windows, the cache
 * of imports and its eviction.
 */
#include "tests/client/cuda-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
/* The library keeps up to this many unused imports. */
#define UNUSED_MAX 256

static struct fa_cuda_scene scene;
static struct fa_client *client;

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

static void begin(void)
{
	client = fa_cuda_connect(scene.daemon.socket);
}

static int64_t opens(void)
{
	return scene.page->live[FA_TEST_CUDA_IPC_OPENS];
}

static uint64_t alloc(uint64_t bytes)
{
	CUdeviceptr at;

	fa_cu(cuMemAlloc(&at, bytes));
	return at;
}

static struct fa_buffer *import(uint64_t at, uint64_t bytes)
{
	struct fa_buffer *buffer;

	fa_ok(fa_buffer_import_cuda(client, at, bytes, 0, &buffer));
	fa_check_eq(fa_buffer_device_data(buffer), at);
	fa_check_eq(fa_buffer_bytes(buffer), bytes);
	fa_check(!fa_buffer_data(buffer));
	return buffer;
}

static void handle_case(int socket)
{
	uint64_t bytes = fa_cuda_attend_bytes(), at;
	struct fa_buffer *whole, *part;

	begin();
	at = alloc(3 * bytes);
	whole = import(at, 3 * bytes);
	fa_cuda_attend(client, whole, at, 1);
	part = import(at + bytes + 4, bytes);
	fa_cuda_attend(client, part, at + bytes + 4, 2);
	fa_check_eq(opens(), 1);
	fa_cuda_expect_buffers(client, 1);
	fa_buffer_free(part);
	fa_cuda_attend(client, whole, at, 3);
	fa_buffer_free(whole);
	fa_disconnect(client);
	fa_cu(cuMemFree(at));
}

static void pieces_case(int socket)
{
	const uint64_t bytes = fa_cuda_attend_bytes();
	struct fa_buffer *whole, *border, *inside;
	struct fa_cuda_vmm vmm;
	uint64_t at;

	begin();
	fa_cuda_vmm_new(&vmm, 20, POSIX_FD);
	whole = import(vmm.at, vmm.bytes);
	fa_check_eq(scene.page->live[FA_TEST_CUDA_MAPPINGS] - scene.lives.n[FA_TEST_CUDA_MAPPINGS],
	            20);
	fa_check(bytes < FA_CUDA_CHUNK);
	/* This buffer crosses two allocations, which are sent in different packets. */
	at = vmm.at + 17 * FA_CUDA_CHUNK - bytes / 2 / 2 * 2;
	border = import(at, bytes);
	fa_cuda_attend(client, border, at, 1);
	at = vmm.at + 19 * FA_CUDA_CHUNK;
	inside = import(at, FA_CUDA_CHUNK);
	fa_cuda_attend(client, inside, at, 2);
	fa_cuda_attend(client, whole, vmm.at, 3);
	fa_cuda_expect_buffers(client, 1);
	fa_buffer_free(inside);
	fa_buffer_free(border);
	fa_buffer_free(whole);
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
}

static void packets_case(int socket)
{
	struct fa_cuda_vmm vmm;

	begin();
	fa_cuda_vmm_new(&vmm, 26, POSIX_FD);
	for (uint64_t n = 1; n <= vmm.n; ++n) {
		struct fa_buffer *buffer = import(vmm.at, n * FA_CUDA_CHUNK);

		fa_cuda_attend(client, buffer, vmm.at, n);
		fa_cuda_attend(client, buffer, vmm.at, n + 1);
		fa_buffer_free(buffer);
		fa_ok(fa_cuda_trim(client));
	}
	fa_cuda_expect_buffers(client, 0);
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
}

static void many_case(int socket)
{
	struct fa_buffer *buffer;
	struct fa_cuda_vmm vmm;
	uint64_t begin_ns;

	begin();
	fa_cuda_vmm_new(&vmm, 300, POSIX_FD);
	begin_ns = fa_now_ns();
	buffer = import(vmm.at, vmm.bytes);
	print_message("300 allocations: %llu us\n",
	              (unsigned long long)(fa_now_ns() - begin_ns) / 1000);
	fa_cuda_attend(client, buffer, vmm.at, 1);
	fa_buffer_free(buffer);
	buffer = import(vmm.at + vmm.bytes - FA_CUDA_CHUNK, FA_CUDA_CHUNK);
	fa_cuda_attend(client, buffer, vmm.at + vmm.bytes - FA_CUDA_CHUNK, 1);
	fa_cuda_expect_buffers(client, 1);
	fa_buffer_free(buffer);
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
}

static void read_only_case(int socket)
{
	uint64_t bytes = fa_cuda_attend_bytes(), at;
	struct fa_buffer *read_only, *writable;

	begin();
	at = alloc(bytes);
	fa_ok(fa_buffer_import_cuda(client, at, bytes, FA_BUFFER_READ_ONLY, &read_only));
	fa_cuda_attend_fails(client, read_only, -EINVAL, "read-only");
	writable = import(at, bytes);
	fa_cuda_attend(client, writable, at, 1);
	fa_cuda_attend_fails(client, read_only, -EINVAL, "read-only");
	fa_buffer_free(read_only);
	fa_buffer_free(writable);
	fa_disconnect(client);
	fa_cu(cuMemFree(at));
}

static void arena_case(int socket)
{
	const uint64_t bytes = fa_cuda_attend_bytes() + 4096;
	struct fa_buffer *arena, *host;
	uint64_t at;
	char zeros[64], text[64];

	begin();
	fa_ok(fa_buffer_new(client, bytes, FA_BUFFER_DEVICE, &arena));
	fa_check(!fa_buffer_data(arena));
	fa_check_eq(fa_buffer_bytes(arena), bytes);
	at = fa_buffer_device_data(arena);
	fa_check(at);
	memset(zeros, 0, sizeof(zeros));
	fa_cu(cuMemcpyDtoH(text, at + bytes - sizeof(text), sizeof(text)));
	fa_check(!memcmp(text, zeros, sizeof(zeros)));
	fa_cuda_attend(client, arena, at, 1);
	fa_ok(fa_buffer_new(client, bytes, 0, &host));
	fa_check(fa_buffer_data(host));
	fa_check_eq(fa_buffer_device_data(host), 0);
	fa_check_eq(fa_buffer_device_data(NULL), 0);
	fa_buffer_free(host);
	fa_buffer_free(arena);
	fa_ok(fa_buffer_new(client, bytes, FA_BUFFER_DEVICE, &arena));
	fa_disconnect(client);
	fa_cu(cuDevicePrimaryCtxRelease(0));
	fa_check_eq(cu_page->live[FA_TEST_CUDA_MAPPINGS], 0);
	fa_check_eq(cu_page->live[FA_TEST_CUDA_RESERVATIONS], 0);
	fa_check_eq(cu_page->live[FA_TEST_CUDA_HANDLES], 0);
	fa_check_eq(cu_page->live[FA_TEST_CUDA_CONTEXTS], 0);
}

static void expect_current(CUcontext expected)
{
	CUcontext current;

	fa_cu(cuCtxGetCurrent(&current));
	fa_check(current == expected);
}

static void contexts_case(int socket)
{
	uint64_t bytes = fa_cuda_attend_bytes(), at;
	struct fa_buffer *handle, *pieces, *arena;
	struct fa_cuda_vmm vmm;
	CUcontext context;

	begin();
	fa_cu(cuCtxGetCurrent(&context));
	at = alloc(bytes);
	fa_cuda_vmm_new(&vmm, 9, POSIX_FD);
	fa_cu(cuCtxSetCurrent(NULL));
	handle = import(at, bytes);
	expect_current(NULL);
	pieces = import(vmm.at, vmm.bytes);
	expect_current(NULL);
	fa_ok(fa_buffer_new(client, bytes, FA_BUFFER_DEVICE, &arena));
	expect_current(NULL);
	fa_cu(cuCtxSetCurrent(context));
	fa_cuda_attend(client, handle, at, 1);
	fa_cuda_attend(client, pieces, vmm.at, 2);
	fa_cuda_attend(client, arena, fa_buffer_device_data(arena), 3);
	expect_current(context);
	fa_buffer_free(arena);
	fa_check_eq(cu_page->live[FA_TEST_CUDA_CONTEXTS], 1);
	fa_buffer_free(handle);
	fa_buffer_free(pieces);
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
	fa_cu(cuMemFree(at));
}

static void kept_case(int socket)
{
	uint64_t bytes = 4096, at[UNUSED_MAX + 10];
	struct fa_buffer *buffer;
	int64_t n = sizeof(at) / sizeof(at[0]);

	begin();
	for (int64_t i = 0; i < n; ++i) {
		at[i] = alloc(bytes);
		fa_buffer_free(import(at[i], bytes));
		fa_cuda_expect_buffers(client, i < UNUSED_MAX ? i + 1 : UNUSED_MAX);
	}
	buffer = import(at[11], bytes);
	fa_cuda_expect_buffers(client, UNUSED_MAX);
	fa_buffer_free(buffer);
	fa_check_eq(opens(), UNUSED_MAX);
	fa_buffer_free(import(at[0], bytes));
	fa_cuda_expect_buffers(client, UNUSED_MAX);

	buffer = import(at[20], bytes);
	fa_ok(fa_cuda_trim(client));
	fa_cuda_expect_buffers(client, 1);
	fa_buffer_free(buffer);
	fa_cuda_expect_buffers(client, 1);
	fa_ok(fa_cuda_trim(client));
	fa_cuda_expect_buffers(client, 0);
	fa_disconnect(client);
	for (int64_t i = 0; i < n; ++i)
		fa_cu(cuMemFree(at[i]));
}

/*
 * The cache drops freed memory at the next import or free, and never takes new memory at the same
 * address for the old.
 */
static void freed_case(int socket)
{
	const uint64_t bytes = fa_cuda_attend_bytes();
	uint64_t at, other, again;
	struct fa_buffer *buffer;
	struct fa_cuda_vmm vmm;

	begin();
	at = alloc(bytes);
	other = alloc(bytes);
	fa_buffer_free(import(at, bytes));
	fa_cuda_expect_buffers(client, 1);
	fa_cu(cuMemFree(at));
	buffer = import(other, bytes);
	fa_cuda_expect_buffers(client, 1);
	fa_buffer_free(buffer);

	fa_cu(cuMemFree(other));
	again = alloc(bytes);
	fa_check_eq(again, at);
	buffer = import(again, bytes);
	fa_cuda_expect_buffers(client, 1);
	fa_cuda_attend(client, buffer, again, 1);
	fa_buffer_free(buffer);

	other = alloc(bytes);
	buffer = import(other, bytes);
	fa_cu(cuMemFree(again));
	fa_cuda_expect_buffers(client, 2);
	fa_buffer_free(buffer);
	fa_cuda_expect_buffers(client, 1);
	fa_cu(cuMemFree(other));

	fa_cuda_vmm_new(&vmm, 10, POSIX_FD);
	fa_buffer_free(import(vmm.at, vmm.bytes));
	fa_cuda_vmm_replace(&vmm, 6);
	buffer = import(vmm.at, vmm.bytes);
	fa_cuda_expect_buffers(client, 1);
	fa_buffer_free(buffer);
	buffer = import(vmm.at + 6 * FA_CUDA_CHUNK, FA_CUDA_CHUNK);
	fa_cuda_expect_buffers(client, 1);
	fa_cuda_attend(client, buffer, vmm.at + 6 * FA_CUDA_CHUNK, 2);
	fa_buffer_free(buffer);
	fa_disconnect(client);
	fa_cuda_vmm_free(&vmm);
}

/*
 * The program frees memory that a buffer still uses; new memory at the same address is not taken
 * for the old.
 */
static void freed_in_use_case(int socket)
{
	const uint64_t bytes = fa_cuda_attend_bytes();
	uint64_t at = alloc(bytes), again;
	struct fa_buffer *old, *buffer;

	begin();
	old = import(at, bytes);
	fa_cu(cuMemFree(at));
	again = alloc(bytes);
	fa_check_eq(again, at);
	buffer = import(again, bytes);
	fa_cuda_expect_buffers(client, 2);
	fa_cuda_attend(client, buffer, again, 1);
	fa_buffer_free(old);
	fa_cuda_expect_buffers(client, 2);
	fa_buffer_free(buffer);
	fa_cuda_expect_buffers(client, 1);
	fa_disconnect(client);
	fa_cu(cuMemFree(again));
}

#define THREADS 4
#define ROUNDS 60

static uint64_t shared_at[3];
static struct fa_cuda_vmm shared_vmm;

static void *import_and_free(void *userdata)
{
	const uint64_t bytes = fa_cuda_attend_bytes();
	struct fa_test_random random = { (uintptr_t)userdata };

	for (int i = 0; i < ROUNDS; ++i) {
		struct fa_buffer *buffer;
		uint64_t which = fa_test_random_below(&random, 5), at;

		at = which < 3 ? shared_at[which]
		               : shared_vmm.at + fa_test_random_below(&random, 11) * FA_CUDA_CHUNK;
		fa_ok(fa_buffer_import_cuda(
			client, at, which == 4 ? shared_vmm.at + shared_vmm.bytes - at : bytes, 0,
			&buffer));
		if (!fa_test_random_below(&random, 8))
			fa_ok(fa_cuda_trim(client));
		if (!fa_test_random_below(&random, 4))
			fa_ok(fa_ping(client));
		fa_buffer_free(buffer);
	}
	return NULL;
}

static void threads_case(int socket)
{
	pthread_t threads[THREADS];

	begin();
	for (int i = 0; i < 3; ++i)
		shared_at[i] = alloc(fa_cuda_attend_bytes());
	fa_cuda_vmm_new(&shared_vmm, 12, POSIX_FD);
	for (uintptr_t i = 0; i < THREADS; ++i)
		fa_check(!pthread_create(&threads[i], NULL, import_and_free, (void *)(i + 1)));
	for (int i = 0; i < THREADS; ++i)
		pthread_join(threads[i], NULL);
	fa_ok(fa_cuda_trim(client));
	fa_cuda_expect_buffers(client, 0);
	fa_disconnect(client);
	for (int i = 0; i < 3; ++i)
		fa_cu(cuMemFree(shared_at[i]));
	fa_cuda_vmm_free(&shared_vmm);
}

#define CASE(name)                                                                                 \
	static void test_##name(void **state)                                                      \
	{                                                                                          \
		fa_cuda_alone(name##_case);                                                        \
	}

CASE(handle)
CASE(pieces)
CASE(packets)
CASE(many)
CASE(read_only)
CASE(arena)
CASE(contexts)
CASE(kept)
CASE(freed)
CASE(freed_in_use)
CASE(threads)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_handle),    cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_packets),   cmocka_unit_test(test_many),
		cmocka_unit_test(test_read_only), cmocka_unit_test(test_arena),
		cmocka_unit_test(test_contexts),  cmocka_unit_test(test_kept),
		cmocka_unit_test(test_freed),     cmocka_unit_test(test_freed_in_use),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests_name("cuda import", tests, setup, teardown);
}
