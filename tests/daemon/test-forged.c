/*
 * Clients that lie about what has finished: they write to all they can map, and try to map what
 * they must not write. Nothing is released early, and only their own numbers suffer.
 */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_scene scene;
static struct fa_raw raw;

static int start(void **state)
{
	fa_scene_start(&scene, NULL);
	fa_raw_open(&raw, scene.daemon.socket);
	return 0;
}

static int stop(void **state)
{
	fa_raw_close(&raw);
	fa_scene_check(&scene);
	fa_scene_stop(&scene);
	return 0;
}

static void test_page(void **state)
{
	static const int seals[] = { F_SEAL_SEAL, F_SEAL_WRITE, F_SEAL_GROW, F_SEAL_FUTURE_WRITE };
	struct stat st;
	char path[64];
	int fd;

	fa_check(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, raw.page_fd, 0) ==
	         MAP_FAILED);
	fa_check(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, raw.page_fd, 0) == MAP_FAILED);
	fa_check(mprotect((void *)raw.page, 4096, PROT_READ | PROT_WRITE) < 0);
	fa_check(write(raw.page_fd, "forged", 6) < 0);
	fa_check(pwrite(raw.page_fd, "forged", 6, 0) < 0);
	fa_check(ftruncate(raw.page_fd, 0) < 0);
	fa_check(ftruncate(raw.page_fd, 1) < 0);
	fa_check(ftruncate(raw.page_fd, 1 << 20) < 0);
	fa_check(fallocate(raw.page_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0);
	for (size_t i = 0; i < sizeof(seals) / sizeof(seals[0]); ++i)
		fa_check(fcntl(raw.page_fd, F_ADD_SEALS, seals[i]) < 0);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", raw.page_fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0) {
		fa_check(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
		fa_check(write(fd, "forged", 6) < 0);
		close(fd);
	}
	fd = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	fa_check(!fstat(raw.page_fd, &st));
	fa_check(st.st_size >= FA_COMPLETION_PAGE_BYTES);
	for (int i = 0; i < FA_COMPLETION_SLOTS; ++i)
		fa_check_eq(raw.page[i].completed, 0);

	fa_scene_bystander(&scene);
	for (int i = 0; i < FA_COMPLETION_SLOTS; ++i)
		fa_check_eq(raw.page[i].completed, 0);
}

/* The status is a copy: writing to it changes nothing in the daemon. */
static void test_status_memory(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STATUS);

	fa_raw_call(&raw, &message, NULL, 0);
	fa_check_eq(raw.n_fds, 1);
	fa_check(write(raw.fds[0], "forged", 6) < 0);
	fa_check(ftruncate(raw.fds[0], 0) < 0);
	fa_check(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, raw.fds[0], 0) == MAP_FAILED);
}

struct scribbler {
	struct fa_raw_buffer *buffers;
	size_t n;
	atomic_bool stop;
	uint64_t rounds;
};

static void *scribble(void *userdata)
{
	struct scribbler *scribbler = userdata;
	struct fa_test_random random = { 99 };

	while (!atomic_load(&scribbler->stop)) {
		for (size_t i = 0; i < scribbler->n; ++i) {
			volatile uint64_t *words = (volatile void *)scribbler->buffers[i].data;
			uint64_t n = scribbler->buffers[i].bytes / sizeof(*words);

			for (int j = 0; j < 4096; ++j)
				words[fa_test_random_below(&random, n)] = fa_test_random(&random);
		}
		scribbler->rounds++;
	}
	return NULL;
}

static void test_scribble(void **state)
{
	struct fa_case attention = {
		.batch = 2,
		.heads = 8,
		.kv_heads = 2,
		.head_dim = 64,
		.seqlen_q = 96,
		.seqlen_k = 300,
		.causal = true,
		.lse = true,
	};
	const uint64_t n = fa_test_sanitized() ? 60 : 200;
	struct fa_raw_buffer buffers[2];
	struct scribbler scribbler = { .buffers = buffers, .n = 2 };
	pthread_t thread;

	fa_case_plan(&attention);
	fa_raw_buffer_arena(&raw, &buffers[0], 1, attention.bytes);
	fa_raw_buffer_register(&raw, &buffers[1], 2, attention.bytes, 0);
	fa_check(!pthread_create(&thread, NULL, scribble, &scribbler));
	for (uint64_t value = 1; value <= n; ++value) {
		struct fa_wire_message message = fa_case_message(&attention, value % 2 + 1, 0, 0,
		                                                 value);

		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		if (value % 10 == 0) {
			fa_scene_bystander(&scene);
			for (uint64_t v = value - 9; v <= value; ++v)
				fa_raw_wait_expect(&raw, 0, v, 0, NULL);
		}
	}
	atomic_store(&scribbler.stop, true);
	fa_check(!pthread_join(thread, NULL));
	fa_check(scribbler.rounds > 0);
	fa_check_eq(raw.page[0].completed, n);
	fa_check_eq(raw.page[0].failed, 0);

	for (uint64_t i = 0; i < 2; ++i) {
		struct fa_wire_message message = fa_case_message(&attention, (uint32_t)i + 1, 0, 0,
		                                                 n + 1 + i);

		attention.seed = i + 7;
		fa_case_fill(&attention, buffers[i].data);
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_wait_expect(&raw, 0, n + 1 + i, 0, NULL);
		fa_check(fa_case_error(&attention, buffers[i].data) <= 1);
	}
	fa_raw_buffer_free(&raw, &buffers[0]);
	fa_raw_buffer_free(&raw, &buffers[1]);
}

static uint64_t mapped(void)
{
	struct fa_test_usage usage;

	fa_test_daemon_usage(&scene.daemon, &usage);
	return usage.memfd_bytes;
}

static int64_t charged(void)
{
	struct fa_test_accounts accounts;

	fa_test_accounts(&scene.bystander, &accounts);
	return accounts.buffer_bytes;
}

static void free_id(uint32_t id, int status)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

	message.buffer_free.buffer = id;
	fa_raw_call_expect(&raw, &message, NULL, 0, status, NULL);
}

static void cancel(uint64_t value)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

	message.cancel.value = value;
	fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
}

/*
 * A buffer is freed, its id reused and its memory overwritten while one request runs on it and
 * another waits. Both end on the memory that they began with.
 */
static void test_freed_in_use(void **state)
{
	struct fa_case slow = fa_case_slow(), small = { .heads = 2, .head_dim = 16, .lse = true };
	struct fa_raw_buffer slow_buffer, first, second;
	struct fa_wire_message message;

	fa_case_plan(&small);
	fa_raw_buffer_register(&raw, &slow_buffer, 1, slow.bytes, 0);
	fa_raw_buffer_register(&raw, &first, 2, small.bytes, 0);
	fa_case_fill(&small, first.data);
	message = fa_case_message(&slow, 1, 0, 0, 1);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	message = fa_case_message(&small, 2, 0, 0, 2);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);

	free_id(2, 0);
	free_id(2, -ENOENT);
	free_id(1, 0);
	fa_raw_buffer_register(&raw, &second, 2, small.bytes, 0);
	memset(second.data, 0x5a, second.bytes);

	fa_check(mapped() >= scene.usage.memfd_bytes + slow.bytes + 2 * small.bytes);
	fa_check(charged() >= (int64_t)(scene.accounts.buffer_bytes + (int64_t)slow.bytes +
	                                2 * (int64_t)small.bytes));
	fa_check_eq(raw.page[0].completed, 0);
	message = fa_case_message(&small, 1, 0, 0, 3);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_scene_bystander(&scene);

	cancel(1);
	fa_raw_wait_expect(&raw, 0, 1, -ECANCELED, NULL);
	fa_raw_wait_expect(&raw, 0, 2, 0, NULL);
	fa_raw_wait_expect(&raw, 0, 3, -ENOENT, "q.buffer is 1");
	fa_check(fa_case_error(&small, first.data) <= 1);
	for (uint64_t i = 0; i < second.bytes; ++i)
		fa_check_eq(second.data[i], 0x5a);

	fa_check_eventually(charged() == scene.accounts.buffer_bytes + (int64_t)small.bytes);
	free_id(2, 0);
	fa_raw_buffer_free(NULL, &slow_buffer);
	fa_raw_buffer_free(NULL, &first);
	fa_raw_buffer_free(NULL, &second);
}

/* The client leaves while its request runs on memory that must stay. */
static void test_client_leaves(void **state)
{
	struct fa_case slow = fa_case_slow();
	struct fa_raw_buffer buffer;

	for (int i = 0; i < 5; ++i) {
		struct fa_wire_message message = fa_case_message(&slow, 1, 0, 0, 1);

		fa_raw_close(&raw);
		fa_raw_open(&raw, scene.daemon.socket);
		if (i % 2)
			fa_raw_buffer_register(&raw, &buffer, 1, slow.bytes, 0);
		else
			fa_raw_buffer_arena(&raw, &buffer, 1, slow.bytes);
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_ping(&raw);
		fa_test_any_moment_us((uint64_t)i * 10000);
		fa_raw_close(&raw);
		/* Punches holes into memory that the daemon still reads. */
		(void)fallocate(buffer.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
		                (off_t)buffer.bytes);
		fa_raw_buffer_free(NULL, &buffer);
		fa_scene_bystander(&scene);
	}
	fa_raw_open(&raw, scene.daemon.socket);
}

#define test(function) cmocka_unit_test_setup_teardown(function, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_page),         test(test_status_memory), test(test_scribble),
		test(test_freed_in_use), test(test_client_leaves),
	};

	return cmocka_run_group_tests_name("forged completions", tests, NULL, NULL);
}
