/* Every kind of memory in the CUDA backend. */
#include "common/memfd.h"
#include "tests/daemon/cuda-device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE 4096ull
#define PIECE CUDA_EXPORTER_PIECE

static const struct fa_device_ops *const ops = &fa_device_cuda;

static void host_import(struct cuda_device *cuda, int fd, uint64_t offset, uint64_t bytes,
                        bool read_only, struct fa_device_memory *ret_memory)
{
	struct fa_error error;

	if (ops->memory_import_host(cuda->device, fd, offset, bytes, read_only, &error,
	                            ret_memory) < 0)
		fa_test_fail(__FILE__, __LINE__, "%s", error.text);
	fa_check_eq(ret_memory->bytes, bytes);
	fa_check_eq(ret_memory->writable, !read_only);
}

static void host_child(void)
{
	const uint64_t bytes = 5 * 1048576 + 100;
	struct fa_device_memory memory, again;
	struct cuda_device cuda;
	struct fa_error error;
	unsigned char *data;
	int fd, sealed;

	setenv("FAD_TUNE_PIN_PART_BYTES", "1048576", 1);
	cuda_device_open(&cuda, NULL);
	fa_check_eq(fa_memfd_new("test", bytes + PAGE, false, &fd), 0);
	data = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fa_check(data != MAP_FAILED);

	host_import(&cuda, fd, PAGE, bytes, false, &memory);
	fa_check_eq(cuda.page->live[FA_TEST_CUDA_REGISTRATIONS], 6);
	data[PAGE] = 1;
	data[PAGE + bytes - 1] = 2;
	fa_check_eq(((unsigned char *)memory.address)[0], 1);
	fa_check_eq(((unsigned char *)memory.address)[bytes - 1], 2);
	host_import(&cuda, fd, 0, PAGE, true, &again);
	fa_test_memory_release(ops, cuda.device, &memory);
	fa_test_memory_release(ops, cuda.device, &again);
	fa_check_eq(cuda.page->live[FA_TEST_CUDA_REGISTRATIONS], 0);

	fa_check_eq(fa_memfd_new("test", PAGE, false, &sealed), 0);
	fa_check_eq(fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE), 0);
	fa_check(ops->memory_import_host(cuda.device, sealed, 0, PAGE, false, &error, &memory) < 0);
	fa_check_contains(error.text, "for writing");
	host_import(&cuda, sealed, 0, PAGE, true, &memory);
	fa_test_memory_release(ops, cuda.device, &memory);

	/* The driver cannot register read-only: writable memory is registered writable. */
	fa_test_cuda_fail(cuda.page, "cuMemHostRegister:1=801");
	host_import(&cuda, fd, 0, PAGE, true, &memory);
	fa_test_memory_release(ops, cuda.device, &memory);
	fa_test_cuda_fail(cuda.page, "cuMemHostRegister:1=801");
	fa_check_eq(ops->memory_import_host(cuda.device, sealed, 0, PAGE, true, &error, &memory),
	            -ENOTSUP);
	fa_check_contains(error.text, "CUDA_ERROR_NOT_SUPPORTED");

	memory = (struct fa_device_memory){};
	fa_test_cuda_fail(cuda.page, "cuMemHostRegister:3=2");
	fa_check_eq(ops->memory_import_host(cuda.device, fd, 0, bytes, false, &error, &memory),
	            -ENOMEM);
	fa_check_contains(error.text, "cannot be pinned");
	fa_check(memory.backend && !memory.address);
	fa_test_memory_release(ops, cuda.device, &memory);
	fa_check_eq(cuda.page->live[FA_TEST_CUDA_REGISTRATIONS], 0);

	fa_check(ops->memory_import_host(cuda.device, fd, 0, 1ull << 62, false, &error, &memory) <
	         0);
	fa_check(ops->memory_import_host(cuda.device, fd, 0, UINT64_MAX, false, &error, &memory) <
	         0);
	munmap(data, bytes + PAGE);
	close(fd);
	close(sealed);
	cuda_device_close(&cuda);
}

static void test_host(void **state)
{
	cuda_in_child(host_child);
}

static void arena_child(void)
{
	const uint64_t bytes = PIECE + 12345;
	struct fa_device_memory memory, shared;
	struct fa_device_piece piece;
	struct cuda_device cuda;
	struct fa_error error;
	uint64_t free_bytes;
	int fd;

	setenv("FAD_TEST_CUDA_MEMORY_MIB", "1024", 1);
	cuda_device_open(&cuda, NULL);
	fa_check_eq(ops->memory_new_arena(cuda.device, bytes, &error, &memory, &fd, &piece.bytes),
	            0);
	fa_check_eq(memory.bytes, bytes);
	fa_check_eq(piece.bytes, 2 * PIECE);
	fa_check(memory.writable);
	fa_check(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	for (uint64_t i = 0; i < bytes; ++i)
		fa_check_eq(((unsigned char *)memory.address)[i], 0);

	piece.fd = fd;
	fa_check_eq(ops->memory_import_pieces(cuda.device, &piece, 1, 100, PIECE, false, &error,
	                                      &shared),
	            0);
	((unsigned char *)memory.address)[107] = 9;
	fa_check_eq(((unsigned char *)shared.address)[7], 9);
	fa_test_memory_release(ops, cuda.device, &memory);
	fa_check_eq(((unsigned char *)shared.address)[7], 9);
	fa_test_memory_release(ops, cuda.device, &shared);
	close(fd);

	fa_check_eq(
		ops->memory_new_arena(cuda.device, 1ull << 30, &error, &memory, &fd, &piece.bytes),
		-ENOMEM);
	fa_check_contains(error.text, "1073741824 bytes");
	fa_check_eq(
		ops->memory_new_arena(cuda.device, UINT64_MAX, &error, &memory, &fd, &piece.bytes),
		-ENOMEM);

	free_bytes = (uint64_t)cuda.page->live[FA_TEST_CUDA_DEVICE_BYTES];
	for (int i = 0; i < 6; ++i) {
		static const char *const calls[] = {
			"cuMemCreate",    "cuMemAddressReserve", "cuMemMap",
			"cuMemSetAccess", "cuMemsetD8Async",     "cuMemExportToShareableHandle"
		};
		char rule[64];

		snprintf(rule, sizeof(rule), "%s:1=2", calls[i]);
		fa_test_cuda_fail(cuda.page, rule);
		fa_check_eq(ops->memory_new_arena(cuda.device, PIECE, &error, &memory, &fd,
		                                  &piece.bytes),
		            -ENOMEM);
		fa_check_eq(cuda.page->live[FA_TEST_CUDA_DEVICE_BYTES], free_bytes);
		fa_check_eq(cuda.page->live[FA_TEST_CUDA_RESERVATIONS], 0);
	}
	cuda_device_close(&cuda);
}

static void test_arena(void **state)
{
	cuda_in_child(arena_child);
}

static int pieces_try(struct cuda_device *cuda, const struct fa_device_piece *pieces, size_t n,
                      uint64_t offset, uint64_t bytes, bool read_only, struct fa_error *error)
{
	struct fa_device_memory memory = {};
	int r;

	error->text[0] = 0;
	r = ops->memory_import_pieces(cuda->device, pieces, n, offset, bytes, read_only, error,
	                              &memory);
	fa_check(r == 0 || (error->text[0] && !memory.backend));
	if (r == 0)
		fa_test_memory_release(ops, cuda->device, &memory);
	return r;
}

static struct cuda_exporter exporter;

static void pieces_child(void)
{
	struct fa_device_piece *pieces = exporter.pieces, wrong[2];
	struct fa_device_memory memory, again;
	struct cuda_device cuda;
	struct fa_error error;
	int fd;

	cuda_device_open(&cuda, NULL);
	fa_check_eq(ops->memory_import_pieces(cuda.device, pieces, 2, 0, 2 * PIECE, false, &error,
	                                      &memory),
	            0);
	fa_check_eq(memory.bytes, 2 * PIECE);
	for (uint64_t i = 0; i < 2 * PIECE; i += 61)
		fa_check_eq(((unsigned char *)memory.address)[i],
		            cuda_exporter_byte((unsigned int)(i / PIECE), i % PIECE));
	fa_check_eq(ops->memory_import_pieces(cuda.device, pieces, 2, PIECE - 10, 20, true, &error,
	                                      &again),
	            0);
	fa_check(!again.writable);
	fa_check_eq(again.bytes, 20);
	fa_check_eq(((unsigned char *)again.address)[9], cuda_exporter_byte(0, PIECE - 1));
	fa_check_eq(((unsigned char *)again.address)[10], cuda_exporter_byte(1, 0));
	fa_test_memory_release(ops, cuda.device, &memory);
	fa_check_eq(((unsigned char *)again.address)[10], cuda_exporter_byte(1, 0));
	fa_test_memory_release(ops, cuda.device, &again);

	/* Importable even if the driver cannot map read-only. */
	fa_test_cuda_fail(cuda.page, "cuMemSetAccess:1=801");
	fa_check_eq(pieces_try(&cuda, pieces, 2, 0, PIECE, true, &error), 0);

	fa_check_eq(pieces_try(&cuda, pieces, 2, 0, 2 * PIECE, false, &error), 0);
	fa_check_eq(pieces_try(&cuda, pieces, 2, 1, 2 * PIECE, false, &error), -EINVAL);
	fa_check_contains(error.text, "offset 1 and 4194304 bytes");
	fa_check_contains(error.text, "2 pieces, which have 4194304 bytes");
	fa_check_eq(pieces_try(&cuda, pieces, 2, UINT64_MAX, 2, false, &error), -EINVAL);
	fa_check_eq(pieces_try(&cuda, pieces, 2, 2, UINT64_MAX, false, &error), -EINVAL);
	fa_check_eq(pieces_try(&cuda, pieces, 0, 0, 1, false, &error), -EINVAL);

	memcpy(wrong, pieces, sizeof(wrong));
	wrong[1].bytes = PIECE / 2;
	fa_check_eq(pieces_try(&cuda, wrong, 2, 0, PIECE, false, &error), -EINVAL);
	fa_check_contains(error.text, "piece 1 of 2 has 1048576 bytes; expected a multiple");
	wrong[1].bytes = 0;
	fa_check_eq(pieces_try(&cuda, wrong, 2, 0, PIECE, false, &error), -EINVAL);
	wrong[1].bytes = 2 * PIECE;
	fa_check_eq(pieces_try(&cuda, wrong, 2, 0, PIECE, false, &error), -EINVAL);
	fa_check_contains(error.text, "piece 1 of 2, 4194304 bytes:");
	fa_check_contains(error.text, "is its size right?");
	wrong[0].bytes = wrong[1].bytes = UINT64_MAX / PIECE * PIECE;
	fa_check_eq(pieces_try(&cuda, wrong, 2, 0, PIECE, false, &error), -EINVAL);
	fa_check_contains(error.text, "too many bytes");

	memcpy(wrong, pieces, sizeof(wrong));
	fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	wrong[1].fd = fd;
	fa_check_eq(pieces_try(&cuda, wrong, 2, 0, PIECE, false, &error), -EINVAL);
	fa_check_contains(error.text, "piece 1 of 2");
	fa_check_contains(error.text, "stands for no allocation");
	close(fd);
	wrong[1].fd = 54321;
	fa_check_eq(pieces_try(&cuda, wrong, 2, 0, PIECE, false, &error), -EINVAL);
	fa_check_eq(fa_memfd_new("test", PIECE, true, &fd), 0);
	wrong[0].fd = fd;
	fa_check_eq(pieces_try(&cuda, wrong, 1, 0, PIECE, false, &error), -EINVAL);
	close(fd);
	fa_check_eq(ops->health(cuda.device, &error), 0);

	/* The mapping outlives the exporter's memory and the exporter. */
	fa_check_eq(ops->memory_import_pieces(cuda.device, pieces, 2, 0, 2 * PIECE, false, &error,
	                                      &memory),
	            0);
	cuda_exporter_free(&exporter);
	fa_check_eq(((unsigned char *)memory.address)[PIECE], cuda_exporter_byte(1, 0));
	fa_test_memory_release(ops, cuda.device, &memory);
	cuda_device_close(&cuda);
}

static void other_gpu_child(void)
{
	struct cuda_device cuda;
	struct fa_error error;
	struct fa_device_memory memory = {};

	setenv("FAD_TEST_CUDA_DEVICES", "2", 1);
	cuda_device_open(&cuda, "0");
	fa_check_eq(pieces_try(&cuda, exporter.pieces, 2, 0, PIECE, false, &error), -ENOTSUP);
	fa_check_contains(error.text, "not on GPU 0");
	fa_check(ops->memory_import_ipc(cuda.device, exporter.handle, 0, 1, false, &error,
	                                &memory) < 0);
	fa_test_memory_release(ops, cuda.device, &memory);
	cuda_device_close(&cuda);
}

static void test_pieces(void **state)
{
	cuda_exporter_start(&exporter, 0);
	cuda_in_child(pieces_child);
	cuda_exporter_stop(&exporter);
	setenv("FAD_TEST_CUDA_DEVICES", "2", 1);
	cuda_exporter_start(&exporter, 1);
	cuda_in_child(other_gpu_child);
	cuda_exporter_stop(&exporter);
	unsetenv("FAD_TEST_CUDA_DEVICES");
}

static int ipc_try(struct cuda_device *cuda, const uint8_t handle[64], uint64_t offset,
                   uint64_t bytes, struct fa_error *error)
{
	struct fa_device_memory memory = {};
	int r;

	error->text[0] = 0;
	r = ops->memory_import_ipc(cuda->device, handle, offset, bytes, false, error, &memory);
	fa_check(r == 0 || (error->text[0] && !memory.address));
	if (memory.backend)
		fa_test_memory_release(ops, cuda->device, &memory);
	return r;
}

static void ipc_child(void)
{
	const uint64_t bytes = CUDA_EXPORTER_BYTES;
	struct fa_device_memory memory, again;
	uint8_t garbage[64] = { 1, 2, 3 };
	struct cuda_device cuda;
	struct fa_error error;
	char text[128];

	cuda_device_open(&cuda, NULL);
	fa_check_eq(ops->memory_import_ipc(cuda.device, exporter.handle, 0, bytes, false, &error,
	                                   &memory),
	            0);
	fa_check_eq(memory.bytes, bytes);
	for (uint64_t i = 0; i < bytes; i += 17)
		fa_check_eq(((unsigned char *)memory.address)[i], cuda_exporter_byte(2, i));
	/* Memory opened twice is mapped once, and unmapped at the last close. */
	fa_check_eq(ops->memory_import_ipc(cuda.device, exporter.handle, 1000, bytes - 1000, true,
	                                   &error, &again),
	            0);
	fa_check((char *)again.address == (char *)memory.address + 1000);
	fa_check(!again.writable);
	fa_test_memory_release(ops, cuda.device, &memory);
	fa_check_eq(((unsigned char *)again.address)[0], cuda_exporter_byte(2, 1000));
	fa_test_memory_release(ops, cuda.device, &again);
	fa_check_eq(cuda.page->live[FA_TEST_CUDA_IPC_OPENS], 0);

	snprintf(text, sizeof(text), "which has %llu bytes", (unsigned long long)bytes);
	fa_check_eq(ipc_try(&cuda, exporter.handle, bytes - 1, 1, &error), 0);
	fa_check_eq(ipc_try(&cuda, exporter.handle, 1ull << 30, 1, &error), -EINVAL);
	fa_check_contains(error.text, "offset 1073741824 and 1 bytes");
	fa_check_eq(ipc_try(&cuda, exporter.handle, 0, 1ull << 30, &error), -EINVAL);
	fa_check_eq(ipc_try(&cuda, exporter.handle, UINT64_MAX, 2, &error), -EINVAL);
	fa_check_eq(ipc_try(&cuda, exporter.handle, bytes, 1, &error), -EINVAL);
	fa_check_contains(error.text, text);

	fa_check_eq(ipc_try(&cuda, garbage, 0, 1, &error), -EINVAL);
	fa_check_contains(error.text, "this is no handle");
	/* A device that lives may also return this code. */
	fa_test_cuda_fail(cuda.page, "cuIpcOpenMemHandle:1=1");
	fa_check_eq(ipc_try(&cuda, exporter.handle, 0, 1, &error), -EINVAL);

	/* Memory freed while open keeps its contents; then the handle is stale. */
	fa_check_eq(ops->memory_import_ipc(cuda.device, exporter.handle, 0, bytes, false, &error,
	                                   &memory),
	            0);
	cuda_exporter_free(&exporter);
	fa_check_eq(((unsigned char *)memory.address)[5], cuda_exporter_byte(2, 5));
	fa_test_memory_release(ops, cuda.device, &memory);
	fa_check_eq(ipc_try(&cuda, exporter.handle, 0, 1, &error), -EINVAL);
	fa_check_contains(error.text, "was freed");
	fa_check_eq(ops->health(cuda.device, &error), 0);
	cuda_device_close(&cuda);
}

static void dead_child(void)
{
	struct cuda_device cuda;
	struct fa_error error;

	cuda_device_open(&cuda, NULL);
	fa_check_eq(ipc_try(&cuda, exporter.handle, 0, 1, &error), -EINVAL);
	fa_check_contains(error.text, "its process has ended");
	cuda_device_close(&cuda);
}

static void equal_pids_child(void)
{
	struct cuda_device cuda;
	struct fa_error error;
	char text[16];

	snprintf(text, sizeof(text), "%d", exporter.pid);
	setenv("FAD_TEST_CUDA_PID", text, 1);
	cuda_device_open(&cuda, NULL);
	fa_check_eq(ipc_try(&cuda, exporter.handle, 0, 1, &error), -ENOTSUP);
	fa_check_contains(error.text, "CUDA_ERROR_INVALID_CONTEXT");
	fa_check_contains(error.text, "same PID");
	fa_check_contains(error.text, "exported as a file descriptor");
	fa_check_eq(pieces_try(&cuda, exporter.pieces, 2, 0, PIECE, false, &error), 0);
	cuda_device_close(&cuda);
}

static void test_ipc(void **state)
{
	cuda_exporter_start(&exporter, 0);
	cuda_in_child(equal_pids_child);
	cuda_in_child(ipc_child);
	cuda_exporter_stop(&exporter);
	cuda_exporter_start(&exporter, 0);
	cuda_exporter_stop(&exporter);
	cuda_in_child(dead_child);
}

struct worker {
	struct cuda_device *cuda;
	pthread_t thread;
	unsigned int seed;
};

static void *work(void *userdata)
{
	struct worker *worker = userdata;
	struct cuda_device *cuda = worker->cuda;
	struct fa_device_memory memory;
	struct fa_error error;
	uint64_t piece_bytes;
	int r, fd;

	for (int i = 0; i < 40; ++i) {
		fd = -1;
		switch ((worker->seed + (unsigned int)i) % 4) {
		case 0:
			fa_check_eq(fa_memfd_new("test", 3 * PAGE, true, &fd), 0);
			r = ops->memory_import_host(cuda->device, fd, PAGE, PAGE + 1, false, &error,
			                            &memory);
			break;
		case 1:
			r = ops->memory_new_arena(cuda->device, 100, &error, &memory, &fd,
			                          &piece_bytes);
			break;
		case 2:
			r = ops->memory_import_ipc(cuda->device, exporter.handle, 10, 100, false,
			                           &error, &memory);
			break;
		default:
			r = ops->memory_import_pieces(cuda->device, exporter.pieces, 2, 10, PIECE,
			                              i % 2, &error, &memory);
		}
		if (r < 0)
			fa_test_fail(__FILE__, __LINE__, "%s", error.text);
		fa_test_memory_release(ops, cuda->device, &memory);
		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

static void workers_child(void)
{
	const struct fa_case attention = { .seqlen_q = 30, .heads = 2, .sinks = true };
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	struct worker workers[4];

	setenv("FAD_TUNE_PIN_PART_BYTES", "1048576", 1);
	cuda_device_open(&cuda, NULL);
	for (unsigned int i = 0; i < 4; ++i) {
		workers[i] = (struct worker){ .cuda = &cuda, .seed = i };
		fa_check_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	for (int i = 0; i < 30; ++i)
		cuda_job_run(&cuda, queue, &attention, i % 2 ? CUDA_HOST : CUDA_ARENA);
	for (unsigned int i = 0; i < 4; ++i)
		pthread_join(workers[i].thread, NULL);
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

static void test_workers(void **state)
{
	cuda_exporter_start(&exporter, 0);
	cuda_in_child(workers_child);
	cuda_exporter_stop(&exporter);
}

#define SEQUENCES 4096u
#define LENGTH 65536u
#define PAGE_TOKENS 256

/*
 * Streams must not keep memory for partial results, which the pool and other clients need.
 * Deterministic results have a partial per few tiles of each sequence; many sequences that share
 * pages cost their client nothing.
 */
static void large_child(void)
{
	static uint32_t cu_new[SEQUENCES + 1], lengths[SEQUENCES], before[SEQUENCES];
	static uint32_t table[LENGTH / PAGE_TOKENS], table_start[SEQUENCES];
	const struct fa_paged_cache cache = {
		.dtype = FA_ATTENTION_BF16,
		.layers = 1,
		.kv_heads = 8,
		.head_dim = 128,
		.head_dim_v = 128,
		.page_tokens = PAGE_TOKENS,
		.v_offset = 8 * 128 * PAGE_TOKENS * 2,
	};
	struct fa_paged_step step = {
		.cu_new = cu_new,
		.lengths = lengths,
		.lengths_before = before,
		.table = table,
		.table_start = table_start,
		.table_entries = LENGTH / PAGE_TOKENS,
		.host_table = table,
	};
	struct fa_paged_request request = {
		.op = FA_PAGED_ATTEND,
		.attention = { .cache = &cache,
		               .step = &step,
		               .heads = 8 * 16,
		               .q = { (void *)(uintptr_t)4096, 0, 128 * 128, 128 },
		               .out = { (void *)(uintptr_t)4096, 0, 128 * 128, 128 },
		               .scale = 1,
		               .causal = true,
		               .window_left = -1,
		               .window_right = -1 },
	};
	struct fa_device_work work;
	struct cuda_device cuda;
	struct fa_error error;
	void *base;

	cuda_device_open(&cuda, NULL);
	fa_check_eq(ops->pool_open(cuda.device, 4 << 20, 4, &error, &base), 0);
	for (uint32_t b = 0; b < SEQUENCES; ++b) {
		cu_new[b + 1] = b + 1;
		lengths[b] = LENGTH;
		before[b] = LENGTH - 1;
	}
	for (int i = 0; i < 4; ++i) {
		const bool large = i == 1;

		step.batch = i % 2 ? SEQUENCES : 16;
		request.attention.deterministic = i < 2;
		work = (struct fa_device_work){ .op = FA_DEVICE_PAGED, .paged = &request };
		work.n_paged = 1;
		fa_check_eq(ops->paged_prepare(cuda.device, &work, &error), large ? -ENOTSUP : 0);
		if (large)
			fa_check_contains(error.text, "bytes for partial results");
		ops->paged_release(cuda.device, &work);
	}
	ops->pool_close(cuda.device);
	cuda_device_close(&cuda);
}

static void test_large(void **state)
{
	cuda_in_child(large_child);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_host),    cmocka_unit_test(test_arena),
		cmocka_unit_test(test_pieces),  cmocka_unit_test(test_ipc),
		cmocka_unit_test(test_workers), cmocka_unit_test(test_large),
	};
	int r;

	fa_test_cuda_begin(&cuda_dir);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
