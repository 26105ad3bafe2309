/*
 * What `factl status` prints: rings, requests done, limits, and chunks that do not survive a
 * restart.
 */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/ring.h"
#include "tools/status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 100

static struct fa_test_daemon daemon_;

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_);
	return 0;
}

/* Returns `factl status`'s text for @json; valid until the next call. */
static const char *print(const char *json)
{
	static char text[65536];
	FILE *file;

	file = fmemopen(text, sizeof(text), "w");
	fa_check(file);
	fa_check_eq(fa_status_print(json, file), 0);
	fclose(file);
	return text;
}

/* Finds the ring columns in the line of @session; returns false if there is no such line. */
static bool find_ring(const char *text, uint64_t session, char ring[16], char by_ring[16],
                      char doorbells[16])
{
	const char *line = strstr(text, "\nResources of clients\n");

	while (line && (line = strchr(line, '\n'))) {
		unsigned long long number;

		++line;
		/* Memory is printed as two words, a number and a unit. */
		if (sscanf(line, "%llu %*u %*s %*s %*u %15s %15s %15s", &number, ring, by_ring,
		           doorbells) == 4 &&
		    number == session)
			return true;
	}
	return false;
}

static bool is_asleep(struct fa_raw *viewer, uint64_t session)
{
	_fa_cleanup_(fa_freep) char *json = fa_raw_status(viewer);
	const char *text = print(json);
	char ring[16], by_ring[16], doorbells[16];

	fa_check(find_ring(text, session, ring, by_ring, doorbells));
	fa_check(strcmp(ring, "asleep") == 0 || strcmp(ring, "polled") == 0);
	fa_check_eq(strtoull(by_ring, NULL, 10), REQUESTS);
	fa_check(strtoull(doorbells, NULL, 10) >= 1);
	return strcmp(ring, "asleep") == 0;
}

static void test_live(void **state)
{
	static struct fa_raw viewer, raw;
	char words[3][16], *json;
	const char *text;
	struct fa_raw_ring ring;

	fa_test_daemon_start(&daemon_, NULL);
	fa_raw_open(&viewer, daemon_.socket);
	fa_raw_open(&raw, daemon_.socket);
	fa_raw_ring_open(&raw, &ring, 0);
	for (uint64_t value = 1; value <= REQUESTS; ++value)
		fa_raw_ring_marker(&ring, 0, value);
	fa_raw_ring_wait(&raw, &ring, 0, REQUESTS);
	/* The daemon sleeps, as no more requests come. */
	fa_check_eventually(is_asleep(&viewer, raw.session));

	json = fa_raw_status(&viewer);
	text = print(json);
	fa_check(find_ring(text, viewer.session, words[0], words[1], words[2]));
	for (int i = 0; i < 3; ++i)
		assert_string_equal(words[i], "-");
	free(json);
	fa_raw_ring_close(&ring);
	fa_raw_close(&raw);
	fa_raw_close(&viewer);
}

#define HEAD                                                                                       \
	"{\"requests\": {}, \"tenants\": [], \"sessions\": [{\"session\": 7, \"name\": \"x\", "    \
	"\"buffers\": 1, \"buffer_bytes\": 4096, \"streams\": 2"

/* Compares a daemon that polls the ring now with one that does not report whether it does. */
static void test_words(void **state)
{
	static const struct {
		const char *json, *ring, *by_ring, *doorbells;
	} cases[] = {
		{ HEAD ", \"ring_bytes\": 4096, \"ring_requests\": 12345678901, "
		       "\"ring_doorbells\": 3, \"ring_asleep\": false}]}",
		  "polled", "12.3G", "3" },
		{ HEAD ", \"ring_bytes\": 4096, \"ring_requests\": 5, \"ring_doorbells\": 0}]}",
		  "yes", "5", "0" },
		{ HEAD "}]}", "-", "-", "-" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
		char ring[16], by_ring[16], doorbells[16];
		const char *text = print(cases[i].json);

		fa_check(find_ring(text, 7, ring, by_ring, doorbells));
		assert_string_equal(ring, cases[i].ring);
		assert_string_equal(by_ring, cases[i].by_ring);
		assert_string_equal(doorbells, cases[i].doorbells);
	}
}

/* Prints the limits in a line of their own, "-" for those that a daemon has not or does not report. */
static void test_tenants(void **state)
{
#define REQUESTS_OF "{\"requests\": {\"busy_ns\": 4000}, \"sessions\": [], \"tenants\": "
#define POOL_OF "], \"pool\": {\"tenants\": [{\"uid\": 8, \"cgroup\": \"/p\", "
	const char *text;

	text = print(REQUESTS_OF
	             "[{\"uid\": 7, \"cgroup\": \"/a\", \"sessions\": 3, \"fds\": 9, "
	             "\"buffer_bytes\": 2048, \"limits\": {\"sessions\": 1024, "
	             "\"buffer_bytes\": 1073741824, \"fds\": 9223372036854775807}, "
	             "\"finished\": 12, \"failed\": 2, \"busy_ns\": 1000}" POOL_OF
	             "\"used_bytes\": 1024, \"idle_bytes\": 0, \"caches\": 2, "
	             "\"sequences\": 5}]}, \"limits\": {\"pool_bytes\": 9223372036854775807, "
	             "\"caches\": 32}}");
	fa_check_contains(text, "\n     1    7          -        12       2  1.00 us  25.0%  /a\n");
	fa_check_contains(text, "\n limit      1024        -  1.00 GiB       -    -  ");
	fa_check_contains(text, "\n     1         3        -  2.00 KiB       -    9  ");
	fa_check_contains(text, "\nlimit         -     -      32          -\n");
	fa_check_contains(text, "\n    8  1.00 KiB   0 B       2          5  /p\n");

	text = print(REQUESTS_OF "[{\"uid\": 7, \"cgroup\": \"/a\", \"sessions\": 3}]}");
	fa_check_contains(text, "\n     1         3        -  ");
	fa_check(!strstr(text, "limit"));
	fa_check_contains(text, "  -         -       -     -      -  /a\n");
}

/* Only chunks that are not kept are marked. */
static void test_unkept(void **state)
{
#define POOL "{\"requests\": {}, \"tenants\": [], \"sessions\": [], \"pool\": {\"chunks\": 5"
	assert_non_null(
		strstr(print(POOL ", \"chunks_unkept\": 3}}"), "warning: 3 chunks cannot be kept"));
	assert_null(strstr(print(POOL ", \"chunks_unkept\": 0}}"), "kept"));
	assert_null(strstr(print(POOL "}}"), "kept"));
}

static void test_wrong(void **state)
{
	assert_int_equal(fa_status_print("{}", stdout), -EINVAL);
	assert_int_equal(fa_status_print("[", stdout), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_live, stop),
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_tenants),
		cmocka_unit_test(test_unkept),
		cmocka_unit_test(test_wrong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
