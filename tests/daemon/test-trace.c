/* The trace's file: many threads, a full queue, a full file, and files that cannot be written. */
#include "daemon/base/trace.h"

#include "common/clock.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define THREADS 4
#define EACH 5000

static char path[] = "/tmp/fad-trace-XXXXXX";

static int set_up(void **state)
{
	const int fd = mkstemp(path);

	assert_true(fd >= 0);
	close(fd);
	return 0;
}

static int tear_down(void **state)
{
	unlink(path);
	strcpy(path + sizeof(path) - 7, "XXXXXX");
	return 0;
}

static void *record(void *userdata)
{
	const uint64_t session = (uintptr_t)userdata;

	for (uint64_t i = 0; i < EACH; ++i)
		fa_trace_slice("slice", fa_now_ns(), session, i);
	return NULL;
}

static size_t count(const json_t *root, const char *name)
{
	json_t *event;
	size_t n = 0, i;

	json_array_foreach(root, i, event)
	{
		const char *found = json_string_value(json_object_get(event, "name"));

		assert_non_null(found);
		n += strcmp(found, name) == 0;
	}
	return n;
}

static json_t *load(void)
{
	json_error_t error;
	json_t *root = json_load_file(path, 0, &error);

	if (!root)
		print_error("%s:%d: %s\n", path, error.line, error.text);
	assert_true(json_is_array(root));
	return root;
}

/* All records are in the file, or counted as dropped. */
static void test_threads(void **state)
{
	struct fa_trace_result result;
	pthread_t threads[THREADS];
	struct fa_error error;
	json_t *root;

	assert_int_equal(fa_trace_open(path, FA_TRACE_BYTES_MAX, &error), 0);
	assert_true(fa_trace_on());
	for (uintptr_t i = 0; i < THREADS; ++i)
		assert_int_equal(pthread_create(&threads[i], NULL, record, (void *)(i + 1)), 0);
	for (int i = 0; i < THREADS; ++i)
		pthread_join(threads[i], NULL);
	fa_trace_close(&result);
	assert_false(fa_trace_on());
	assert_int_equal(result.error, 0);
	assert_int_equal(result.n_written + result.n_dropped, THREADS * EACH);
	root = load();
	assert_int_equal(count(root, "slice"), result.n_written);
	assert_int_equal(count(root, "thread_name"), THREADS);
	assert_int_equal(count(root, "dropped"), 1);
	json_decref(root);
	fa_trace_close(&result);
	assert_int_equal(result.n_written, 0);
}

/* The file ends soon after its limit, whatever comes. */
static void test_bounded(void **state)
{
	const uint64_t limit = 100000;
	struct fa_trace_result result;
	struct fa_error error;
	struct stat status;
	json_t *root;

	assert_int_equal(fa_trace_open(path, limit, &error), 0);
	for (uint64_t i = 0; i < 3 * EACH; ++i)
		fa_trace_request(&(struct fa_trace_request){ .name = "request",
		                                             .session = 1,
		                                             .value = i,
		                                             .queued_ns = 1000 + i,
		                                             .started_ns = 2000 + i,
		                                             .finished_ns = 3000 + i });
	fa_trace_close(&result);
	assert_int_equal(result.error, 0);
	assert_true(result.n_written > 50 && result.n_dropped > EACH);
	assert_int_equal(result.n_written + result.n_dropped, 3 * EACH);
	assert_int_equal(stat(path, &status), 0);
	assert_true((uint64_t)status.st_size >= limit && (uint64_t)status.st_size < limit + 4096);
	root = load();
	/* A request has two events of its own, and two on the device. */
	assert_int_equal(count(root, "request"), 4 * result.n_written);
	assert_int_equal(count(root, "wait"), 2 * result.n_written);
	json_decref(root);
}

static void test_files(void **state)
{
	struct fa_trace_result result;
	struct fa_error error;
	struct stat status;

	assert_int_equal(fa_trace_open("/no/such/folder/trace", 1, &error), -ENOENT);
	assert_non_null(strstr(error.text, "/no/such/folder/trace cannot be made"));
	assert_false(fa_trace_on());
	unlink(path);
	assert_int_equal(symlink("/tmp/elsewhere", path), 0);
	assert_int_equal(fa_trace_open(path, 1, &error), -ELOOP);
	unlink(path);
	assert_int_equal(fa_trace_open(path, FA_TRACE_BYTES_MAX, &error), 0);
	assert_int_equal(stat(path, &status), 0);
	assert_int_equal(status.st_mode & 0777, 0600);
	fa_trace_close(&result);
	json_decref(load());

	assert_int_equal(fa_trace_open("/dev/full", FA_TRACE_BYTES_MAX, &error), 0);
	fa_trace_slice("slice", fa_now_ns(), 1, 1);
	fa_trace_close(&result);
	assert_int_equal(result.error, -ENOSPC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_threads, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_bounded, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_files, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
