/* The CPU backend's works and memory; the test controls the kernels. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"
#include "tests/daemon/device-cpu-scene.h"
#include "tests/lib/pause.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A test needs allocations to fail. */
const char *__asan_default_options(void) __attribute__((visibility("default")));
const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void) __attribute__((visibility("default")));
const char *__tsan_default_options(void)
{
	return "allocator_may_return_null=1";
}

static void test_every_tile_once(void **state)
{
	enum {
		QUEUES = 5,
		WORKS = 40
	};
	static struct item items[QUEUES][WORKS];
	struct fa_device_queue *queues[QUEUES];
	struct fixture f;

	memset(items, 0, sizeof(items));
	fixture_init(&f, 4);
	for (int q = 0; q < QUEUES; q++) {
		queues[q] = queue_new(&f, q % 2);
		for (int w = 0; w < WORKS; w++) {
			items[q][w].job.n_tiles = (q * 31 + w * 7) % 50;
			items[q][w].job.scratch_bytes = (size_t)(w * 1000);
			items[q][w].job.before = w ? &items[q][w - 1].job : NULL;
			items[q][w].job.tile_ns = w % 8 ? 0 : 20 * FA_NS_PER_US;
			launch(&f, queues[q], &items[q][w]);
		}
	}
	for (int q = 0; q < QUEUES; q++) {
		for (int w = 0; w < WORKS; w++) {
			finish(&f, &items[q][w]);
			assert_int_equal(items[q][w].work.status, 0);
			for (int tile = 0; tile < items[q][w].job.n_tiles; tile++)
				assert_int_equal(items[q][w].job.ran[tile], 1);
		}
		queues[q] = ops->queue_free(f.device, queues[q]);
	}
	fixture_deinit(&f);
}

/* Each launch has its own workspace, set up once before its first tile. */
static void test_workspace(void **state)
{
	enum {
		WORKS = 20
	};
	static struct item items[WORKS];
	const struct fake_workspace *begun;
	struct fa_device_queue *queue;
	struct fa_error error;
	struct fixture f;

	memset(items, 0, sizeof(items));
	fixture_init(&f, 3);
	queue = queue_new(&f, 0);
	for (int w = 0; w < WORKS; w++) {
		items[w].job.n_tiles = 10 + w;
		items[w].job.workspace_bytes = w % 3 ? sizeof(*begun) + (size_t)w * 100 : 0;
		items[w].params.q.data = &items[w].job;
		items[w].work.params = &items[w].params;
		assert_int_equal(ops->attention_prepare(f.device, &items[w].work, &error), 0);
		assert_true(items[w].work.host_bytes >= items[w].job.workspace_bytes);
		assert_int_equal(!items[w].work.host_bytes, !items[w].job.workspace_bytes);
		launch(&f, queue, &items[w]);
	}
	for (int w = 0; w < WORKS; w++) {
		finish(&f, &items[w]);
		assert_int_equal(items[w].work.status, 0);
		begun = items[w].work.prepared;
		assert_int_equal(!begun, !items[w].job.workspace_bytes);
		if (begun)
			assert_int_equal(begun->n_ran, items[w].job.n_tiles);
		ops->attention_release(f.device, &items[w].work);
		assert_null(items[w].work.prepared);
	}

	items[0].job.workspace_bytes = (size_t)1 << 60;
	assert_int_equal(ops->attention_prepare(f.device, &items[0].work, &error), -ENOMEM);
	assert_int_not_equal(error.text[0], 0);
	ops->attention_release(f.device, &items[0].work);
	ops->queue_free(f.device, queue);
	fixture_deinit(&f);
}

static void test_no_tiles(void **state)
{
	struct item first = { .job.n_tiles = 2 }, empty = { 0 }, alone = { 0 };
	struct fa_device_queue *a, *b;
	atomic_bool gate = false;
	struct fixture f;

	fixture_init(&f, 1);
	a = queue_new(&f, 0);
	b = queue_new(&f, 0);
	first.job.gate = &gate;
	launch(&f, a, &first);
	launch(&f, a, &empty);
	launch(&f, b, &alone);
	finish(&f, &alone);
	assert_int_equal(alone.work.status, 0);
	assert_false(empty.reaped);
	gate = true;
	finish(&f, &first);
	finish(&f, &empty);
	assert_int_equal(empty.work.status, 0);
	ops->queue_free(f.device, a);
	ops->queue_free(f.device, b);
	fixture_deinit(&f);
}

static void test_cancel(void **state)
{
	struct item running = { .job = { .n_tiles = 1000, .scratch_bytes = 64 } };
	struct item ready = { .job.n_tiles = 3 }, queued = { .job.n_tiles = 3 };
	struct item after = { .job.n_tiles = 3 };
	struct fa_device_queue *a, *b;
	atomic_bool gate = false;
	struct fixture f;

	fixture_init(&f, 1);
	a = queue_new(&f, 0);
	b = queue_new(&f, 0);
	running.job.gate = &gate;
	launch(&f, a, &running);
	wait_started(&running);
	launch(&f, b, &ready);
	launch(&f, b, &queued);
	launch(&f, b, &after);

	ops->cancel(f.device, &queued.work);
	finish(&f, &queued);
	assert_int_equal(queued.work.status, -ECANCELED);
	ops->cancel(f.device, &ready.work);
	finish(&f, &ready);
	assert_int_equal(ready.work.status, -ECANCELED);
	assert_int_equal(ready.work.started_ns, 0);
	ops->cancel(f.device, &running.work);
	assert_false(running.reaped);
	gate = true;
	finish(&f, &running);
	assert_int_equal(running.work.status, -ECANCELED);
	assert_int_equal(running.job.n_ran, 1);
	finish(&f, &after);
	assert_int_equal(after.work.status, 0);
	assert_int_equal(queued.job.n_ran + ready.job.n_ran, 0);
	ops->queue_free(f.device, a);
	ops->queue_free(f.device, b);
	fixture_deinit(&f);
}

/*
 * A worker finds nothing while the work behind a cancelled one is set up, and is woken when that is
 * ready.
 */
static void test_cancel_wakes(void **state)
{
	struct item running = { .job = { .n_tiles = 1, .tile_ns = 50 * FA_NS_PER_MS } };
	struct item items[] = { { .job.n_tiles = 1 },
		                { .job = { .n_tiles = 1, .begin_ns = 200 * FA_NS_PER_MS } } };
	struct fa_paged_request requests[2];
	struct fa_device_queue *a, *b;
	struct fa_error error;
	struct fixture f;

	fixture_init(&f, 1);
	a = queue_new(&f, 0);
	b = queue_new(&f, 0);
	launch(&f, a, &running);
	wait_started(&running);
	for (int i = 0; i < 2; i++) {
		requests[i] = (struct fa_paged_request){ .op = FA_PAGED_ATTEND };
		requests[i].attention.q.data = &items[i].job;
		items[i].work.op = FA_DEVICE_PAGED;
		items[i].work.paged = &requests[i];
		items[i].work.n_paged = 1;
		assert_int_equal(ops->paged_prepare(f.device, &items[i].work, &error), 0);
		ops->launch(f.device, b, &items[i].work);
	}
	ops->cancel(f.device, &items[0].work);
	finish(&f, &items[0]);
	finish(&f, &items[1]);
	assert_int_equal(items[1].work.status, 0);
	finish(&f, &running);
	for (int i = 0; i < 2; i++)
		ops->paged_release(f.device, &items[i].work);
	ops->queue_free(f.device, a);
	ops->queue_free(f.device, b);
	fixture_deinit(&f);
}

static void test_cancel_too_late(void **state)
{
	struct item item = { .job.n_tiles = 1 };
	struct fa_device_queue *queue;
	atomic_bool gate = false;
	struct fixture f;

	fixture_init(&f, 2);
	queue = queue_new(&f, 0);
	item.job.gate = &gate;
	launch(&f, queue, &item);
	wait_started(&item);
	ops->cancel(f.device, &item.work);
	gate = true;
	finish(&f, &item);
	assert_int_equal(item.work.status, 0);
	ops->queue_free(f.device, queue);
	fixture_deinit(&f);
}

static void test_no_memory_for_scratch(void **state)
{
	struct item big = { .job = { .n_tiles = 4, .scratch_bytes = (size_t)1 << 60 } };
	struct item next = { .job = { .n_tiles = 4, .scratch_bytes = 64 } };
	struct fa_device_queue *queue;
	struct fixture f;

	fixture_init(&f, 2);
	queue = queue_new(&f, 0);
	launch(&f, queue, &big);
	launch(&f, queue, &next);
	finish(&f, &big);
	assert_int_equal(big.work.status, -ENOMEM);
	assert_int_equal(big.job.n_ran, 0);
	finish(&f, &next);
	assert_int_equal(next.work.status, 0);
	ops->queue_free(f.device, queue);
	fixture_deinit(&f);
}

static int run_unguarded(const char *missing)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		(void)prctl(PR_SET_DUMPABLE, 0);
		_exit(*(const volatile char *)missing);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* A page that cannot be provided, here beyond the end of a file, fails its request alone. */
static void test_no_page(void **state)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct fa_device_queue *queue, *other;
	struct fixture f;
	char *memory;
	int fd;

	fd = memfd_create("short", MFD_CLOEXEC);
	assert_true(fd >= 0 && ftruncate(fd, (off_t)page) == 0);
	memory = mmap(NULL, 2 * page, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(memory != MAP_FAILED);
	fixture_init(&f, 3);
	queue = queue_new(&f, 0);
	other = queue_new(&f, 0);
	for (int i = 0; i < 20; ++i) {
		struct item bad = { .job = { .n_tiles = 100, .read = memory + page } };
		struct item next = { .job = { .n_tiles = 100, .read = memory } };
		struct item beside = { .job = { .n_tiles = 100, .scratch_bytes = 64 } };

		launch(&f, other, &beside);
		launch(&f, queue, &bad);
		launch(&f, queue, &next);
		finish(&f, &bad);
		assert_int_equal(bad.work.status, -ENOMEM);
		assert_non_null(strstr(bad.work.error.text, "SIGBUS"));
		finish(&f, &next);
		assert_int_equal(next.work.status, 0);
		assert_int_equal(next.job.n_ran, 100);
		finish(&f, &beside);
		assert_int_equal(beside.work.status, 0);
		assert_int_equal(beside.job.n_ran, 100);
	}
	/* Outside of guarded code SIGBUS ends the process. */
	assert_int_equal(WTERMSIG(run_unguarded(memory + page)), SIGBUS);
	ops->queue_free(f.device, queue);
	ops->queue_free(f.device, other);
	fixture_deinit(&f);
	(void)munmap(memory, 2 * page);
	close(fd);
}

/* The same where a paged request begins: in the thread that launches it, or in the worker that ends
 * the request before it. */
static void test_no_page_to_begin(void **state)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct fa_device_queue *queue;
	struct fa_error error;
	struct fixture f;
	char *memory;
	int fd;

	fd = memfd_create("short", MFD_CLOEXEC);
	assert_true(fd >= 0 && ftruncate(fd, (off_t)page) == 0);
	memory = mmap(NULL, 2 * page, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(memory != MAP_FAILED);
	fixture_init(&f, 3);
	queue = queue_new(&f, 0);
	for (int i = 0; i < 20; ++i) {
		struct fake_job second = { .n_tiles = 20 };
		struct item bad = { .job = { .n_tiles = 20 } };
		struct item next = { .job = { .n_tiles = 20, .read = memory } };
		struct fa_paged_request requests[2] = { { .op = FA_PAGED_ATTEND },
			                                { .op = FA_PAGED_ATTEND } };

		*(i % 2 ? &second.begin_read : &bad.job.begin_read) = memory + page;
		requests[0].attention.q.data = &bad.job;
		requests[1].attention.q.data = &second;
		bad.work.op = FA_DEVICE_PAGED;
		bad.work.paged = requests;
		bad.work.n_paged = 2;
		assert_int_equal(ops->paged_prepare(f.device, &bad.work, &error), 0);
		ops->launch(f.device, queue, &bad.work);
		launch(&f, queue, &next);
		finish(&f, &bad);
		assert_int_equal(bad.work.status, -ENOMEM);
		assert_non_null(strstr(bad.work.error.text, "SIGBUS"));
		assert_int_equal(bad.job.n_ran, i % 2 ? 20 : 0);
		assert_int_equal(second.n_ran, 0);
		finish(&f, &next);
		assert_int_equal(next.work.status, 0);
		ops->paged_release(f.device, &bad.work);
	}
	ops->queue_free(f.device, queue);
	fixture_deinit(&f);
	(void)munmap(memory, 2 * page);
	close(fd);
}

static void count_threads(unsigned int *ret_all, unsigned int *ret_open)
{
	uint64_t wanted = 1ull << (SIGTERM - 1) | 1ull << (SIGINT - 1) | 1ull << (SIGHUP - 1) |
	                  1ull << (SIGUSR1 - 1) | 1ull << (SIGCHLD - 1);
	char path[320], line[256], name[64];
	unsigned int all = 0, open = 0;
	struct dirent *entry;
	uint64_t blocked;
	FILE *file;
	DIR *tasks;

	tasks = opendir("/proc/self/task");
	assert_non_null(tasks);
	while ((entry = readdir(tasks))) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		file = fopen(path, "re");
		name[0] = 0;
		while (file && fgets(line, sizeof(line), file)) {
			(void)sscanf(line, "Name: %63s", name);
			if (strcmp(name, "fad-cpu") == 0 &&
			    sscanf(line, "SigBlk: %" SCNx64, &blocked) == 1) {
				all++;
				open += (blocked & wanted) != wanted;
			}
		}
		if (file)
			(void)fclose(file);
	}
	(void)closedir(tasks);
	*ret_all = all;
	*ret_open = open;
}

static void test_threads(void **state)
{
	struct fa_device_config config = { .threads = 100000, .notify = on_notify };
	struct fa_device *device;
	struct fa_device_info info;
	struct fa_error error;
	unsigned int all, open;
	struct fixture f;

	fixture_init(&f, 3);
	count_threads(&all, &open);
	assert_int_equal(all, 3);
	assert_int_equal(open, 0);
	ops->describe(f.device, &info);
	assert_string_equal(info.backend, "cpu");
	assert_non_null(strstr(info.name, "fake"));
	assert_int_equal(info.threads, 3);
	assert_true(info.depth > 0);
	fixture_deinit(&f);
	count_threads(&all, &open);
	assert_int_equal(all, 0);

	fixture_init(&f, 0);
	ops->describe(f.device, &info);
	assert_in_range(info.threads, 1, (uint64_t)sysconf(_SC_NPROCESSORS_CONF));
	fixture_deinit(&f);

	assert_int_equal(ops->open(&config, &error, &device), -EINVAL);
	assert_non_null(strstr(error.text, "100000"));
	assert_null(ops->close(NULL));
}

static void test_idle(void **state)
{
	struct item item = { .job.n_tiles = 100 };
	struct timespec before, after;
	struct fa_device_queue *queue;
	struct fixture f;
	int64_t used_ns;

	fixture_init(&f, 4);
	queue = queue_new(&f, 0);
	launch(&f, queue, &item);
	finish(&f, &item);
	fa_test_elapse_ms(10);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	fa_test_elapse_ms(300);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	used_ns = (after.tv_sec - before.tv_sec) * (int64_t)FA_NS_PER_SEC + after.tv_nsec -
	          before.tv_nsec;
	assert_in_range(used_ns, 0, 30 * FA_NS_PER_MS);
	ops->queue_free(f.device, queue);
	fixture_deinit(&f);
}

static void test_open_by_name(void **state)
{
	struct fa_device_config config = { .threads = 1, .notify = on_notify };
	const struct fa_device_ops *found = NULL;
	struct fa_device *device;
	struct fa_error error;

	assert_int_equal(fa_device_open("abacus", &config, &error, &found, &device), -ENOENT);
	assert_non_null(strstr(error.text, "abacus"));
	assert_null(found);
	assert_int_equal(fa_device_open("cpu", &config, &error, &found, &device), 0);
	assert_ptr_equal(found, &fa_device_cpu);
	found->close(device);
	/* 1: the machine has a GPU, and this build no kernels for it. */
	assert_in_range(fa_device_open("auto", &config, &error, &found, &device), 0, 1);
	found->close(device);
	assert_in_range(fa_device_open(NULL, &config, &error, &found, &device), 0, 1);
	found->close(device);
}

static void test_memory(void **state)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	struct fa_device_memory whole, part, sealed;
	struct fa_error error;
	struct fixture f;

	fixture_init(&f, 1);
	assert_int_equal(fa_memfd_new("test", 3 * 4096, false, &fd), 0);
	assert_int_equal(ops->memory_import_host(f.device, fd, 0, 3 * 4096, false, &error, &whole),
	                 0);
	assert_int_equal(whole.bytes, 3 * 4096);
	assert_true(whole.writable);
	strcpy((char *)whole.address + 4096, "hello");
	assert_int_equal(ops->memory_import_host(f.device, fd, 4096, 100, true, &error, &part), 0);
	assert_false(part.writable);
	assert_string_equal(part.address, "hello");
	fa_test_memory_release(ops, f.device, &whole);
	assert_null(whole.address);
	assert_string_equal(part.address, "hello");
	fa_test_memory_release(ops, f.device, &part);

	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
	assert_int_equal(ops->memory_import_host(f.device, fd, 0, 4096, false, &error, &sealed),
	                 -EPERM);
	assert_non_null(strstr(error.text, "for writing"));
	assert_int_equal(ops->memory_import_host(f.device, fd, 0, 4096, true, &error, &sealed), 0);
	fa_test_memory_release(ops, f.device, &sealed);
	fixture_deinit(&f);
}

static void test_arena(void **state)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	uint64_t piece_bytes = 1;
	struct fa_device_memory memory;
	struct fa_error error;
	struct fixture f;
	char *mine;
	int seals;

	fixture_init(&f, 1);
	assert_int_equal(ops->memory_new_arena(f.device, 10000, &error, &memory, &fd, &piece_bytes),
	                 0);
	assert_int_equal(piece_bytes, 0);
	assert_true(memory.writable);
	assert_int_equal(memory.bytes, 10000);
	seals = fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	assert_int_equal(seals, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	mine = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(mine, MAP_FAILED);
	for (int i = 0; i < 10000; i++)
		assert_int_equal(mine[i], 0);
	mine[9999] = 7;
	assert_int_equal(((char *)memory.address)[9999], 7);
	fa_test_memory_release(ops, f.device, &memory);
	munmap(mine, 10000);

	assert_int_equal(
		ops->memory_new_arena(f.device, UINT64_MAX, &error, &memory, &seals, &piece_bytes),
		-EFBIG);
	assert_int_not_equal(error.text[0], 0);
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_tile_once),
		cmocka_unit_test(test_workspace),
		cmocka_unit_test(test_no_tiles),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_cancel_wakes),
		cmocka_unit_test(test_cancel_too_late),
		cmocka_unit_test(test_no_memory_for_scratch),
		cmocka_unit_test(test_no_page),
		cmocka_unit_test(test_no_page_to_begin),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_open_by_name),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_arena),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
