/* The status of a daemon with more sessions than it lists. */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define LISTED 128 /* FA_STATUS_LISTED_MAX */
#define CROWD 1500

static struct fa_test_daemon daemon_;

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_);
	return 0;
}

/* One file each for us, two for the daemon. */
static void raise_limit(uint64_t n)
{
	struct rlimit limit;

	fa_check(!getrlimit(RLIMIT_NOFILE, &limit));
	if (limit.rlim_max < n) {
		print_message("only %llu descriptors may be open\n",
		              (unsigned long long)limit.rlim_max);
		skip();
	}
	limit.rlim_cur = limit.rlim_max;
	fa_check(!setrlimit(RLIMIT_NOFILE, &limit));
}

/* A session whose buffers are not kept here, as they are large. */
static int crowd_member(void)
{
	static struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	close(raw.page_fd);
	return raw.fd;
}

static json_t *status_of(struct fa_raw *raw, uint64_t *ret_ns)
{
	uint64_t begin = fa_now_ns();
	_fa_cleanup_(fa_freep) char *text = fa_raw_status(raw);
	json_t *status;

	*ret_ns = fa_now_ns() - begin;
	status = json_loads(text, 0, NULL);
	fa_check(status);
	return status;
}

static json_int_t number(json_t *object, const char *key)
{
	json_t *value = json_object_get(object, key);

	fa_check(json_is_integer(value));
	return json_integer_value(value);
}

static void check_lists(json_t *status, const struct fa_raw *viewer, json_int_t n)
{
	json_t *sessions = json_object_get(status, "sessions");

	fa_check_eq(number(status, "connections"), n);
	fa_check_eq(number(status, "sessions_total"), n);
	fa_check_eq(number(status, "tenants_total"), 1);
	fa_check_eq(json_array_size(sessions), n < LISTED ? n : LISTED);
	fa_check_eq(json_array_size(json_object_get(status, "tenants")), 1);
	/* Who asks is always among them. */
	fa_check_eq(number(json_array_get(sessions, 0), "session"), (long long)viewer->session);
	for (size_t i = 1; i < json_array_size(sessions); ++i)
		fa_check(number(json_array_get(sessions, i), "session") !=
		         (json_int_t)viewer->session);
	fa_check_eq(number(json_array_get(json_object_get(status, "tenants"), 0), "sessions"), n);
	json_decref(status);
}

static void test_many(void **state)
{
	uint64_t ns, few_ns = UINT64_MAX, many_ns = UINT64_MAX;
	static struct fa_raw viewer;
	static int crowd[CROWD];

	raise_limit(2 * CROWD + 200);
	fa_test_daemon_start(&daemon_, &(struct fa_test_daemon_options){
					       .config = "[limits]\nsessions = 4000\n" });
	for (int i = 0; i < LISTED - 2; ++i)
		crowd[i] = crowd_member();
	fa_raw_open(&viewer, daemon_.socket);
	for (int i = 0; i < 30; ++i) {
		check_lists(status_of(&viewer, &ns), &viewer, LISTED - 1);
		few_ns = ns < few_ns ? ns : few_ns;
	}
	for (int i = LISTED - 2; i < CROWD; ++i)
		crowd[i] = crowd_member();
	/* On a busy machine until one was not disturbed. */
	for (int i = 0; i < 30 || (i < 1000 && many_ns >= 3 * few_ns); ++i) {
		check_lists(status_of(&viewer, &ns), &viewer, CROWD + 1);
		many_ns = ns < many_ns ? ns : many_ns;
	}
	print_message("%d sessions: %d us, %d: %d us\n", LISTED - 1, (int)(few_ns / 1000),
	              CROWD + 1, (int)(many_ns / 1000));
	/* Of six times as many, no more is said. */
	fa_check(many_ns < 3 * few_ns);
	for (int i = 0; i < CROWD; ++i)
		close(crowd[i]);
	fa_raw_close(&viewer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_many, stop),
	};

	return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
