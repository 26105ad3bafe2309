/*
 * Many clients at once on a real daemon, by ring and by socket: every request is computed once and
 * in order, shares are fair, and the daemon's memory does not grow. A client whose requests wait
 * for ever and a stopped one disturb nobody. `fabench crowd` measures the same clients.
 */
#include "bench/lib/crowd.h"
#include "client/faclient.h"
#include "common/ring.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <jansson.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DEPTH 16
#define REST_NS (5 * FA_NS_PER_MS)
#define BESIDE 20
/*
 * After this many requests a ring has wrapped, whose entries have 64 bytes or more, and so have the
 * session_requests completion records.
 */
#define AROUND (FA_RING_BYTES_DEFAULT / 64)
#define GATED_MIN 2
#define PROCESSORS_MIN 16

static struct fa_test_daemon daemon_process;

static int setup(void **state)
{
	fa_test_daemon_start(&daemon_process, NULL);
	return 0;
}

static int teardown(void **state)
{
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static int clients_of(int all)
{
	return fa_test_long() ? all : 8;
}

static bool is_roomy(void)
{
	cpu_set_t cpus;

	return !fa_test_sanitized() && sched_getaffinity(0, sizeof(cpus), &cpus) == 0 &&
	       CPU_COUNT(&cpus) >= PROCESSORS_MIN;
}

static struct fa_crowd *make_crowd(int clients, uint32_t flags, uint32_t depth, uint64_t rest_ns)
{
	const struct fa_crowd_options options = { .socket = daemon_process.socket,
		                                  .name = "crowd",
		                                  .clients = clients,
		                                  .flags = flags,
		                                  .depth = depth,
		                                  .rest_ns = rest_ns };
	struct fa_crowd *crowd;

	fa_check_eq(fa_crowd_new(&options, &crowd), 0);
	return crowd;
}

static void end_crowd(struct fa_crowd *crowd)
{
	struct fa_crowd_sum sum;

	fa_check_eq(fa_crowd_end(crowd, &sum), 0);
	fa_check(sum.asked > 0);
	fa_check_eq(sum.wrong, 0);
	fa_check_eq(sum.failed, 0);
	fa_check_eq(sum.correct, sum.asked);
}

static void flood(uint32_t flags)
{
	const unsigned int ms = fa_test_long() ? 60000 : 2000;
	const int clients = clients_of(64);
	struct fa_crowd *crowd = make_crowd(clients, flags, DEPTH, 0);
	uint64_t fewest = UINT64_MAX, most = 0, total = 0;
	struct fa_test_usage before, after;

	fa_crowd_go(crowd);
	fa_test_elapse_ms(ms / 4);
	/* From here on the daemon touches no memory for the first time. */
	for (int i = 0; i < clients; ++i)
		fa_check_eventually(fa_crowd_done(crowd, i) > (fa_test_sanitized() ? 64 : AROUND));
	fa_test_daemon_usage(&daemon_process, &before);
	fa_test_elapse_ms(ms - ms / 4);
	fa_test_daemon_usage(&daemon_process, &after);
	for (int i = 0; i < clients; ++i) {
		const uint64_t done = fa_crowd_done(crowd, i);

		fewest = done < fewest ? done : fewest;
		most = done > most ? done : most;
		total += done;
	}
	end_crowd(crowd);
	fa_crowd_free(crowd);
	print_message("%llu requests in %u ms, of one client %llu to %llu\n",
	              (unsigned long long)total, ms, (unsigned long long)fewest,
	              (unsigned long long)most);
	if (fa_test_long() && is_roomy())
		assert_true(2 * fewest >= most);
	if (!fa_test_sanitized())
		assert_true(after.rss_bytes <= before.rss_bytes + (4u << 20));
	fa_check_eq(after.fds, before.fds);
}

static void test_flood_by_ring(void **state)
{
	flood(0);
}

static void test_flood_by_socket(void **state)
{
	flood(FA_CONNECT_NO_RING);
}

/* Returns the requests in flight of the session @name; -1: no such session. */
static long requests_of(const char *name)
{
	const struct fa_options options = { .size = sizeof(options),
		                            .socket = daemon_process.socket };
	struct fa_client *client;
	json_t *root, *session;
	long requests = -1;
	size_t i;
	char *text;

	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_status(client, &text), 0);
	fa_disconnect(client);
	root = json_loads(text, 0, NULL);
	free(text);
	json_array_foreach(json_object_get(root, "sessions"), i, session)
	{
		const char *its = json_string_value(json_object_get(session, "name"));

		if (its && strcmp(its, name) == 0)
			requests = (long)json_integer_value(json_object_get(session, "requests"));
	}
	json_decref(root);
	return requests;
}

static int compare(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t p99_ns(const struct fa_crowd *crowd, int phase)
{
	uint64_t *ns, p99;
	size_t n;

	n = fa_crowd_samples(crowd, phase, &ns);
	fa_check(n > 0);
	qsort(ns, n, sizeof(*ns), compare);
	p99 = ns[n * 99 / 100];
	free(ns);
	return p99;
}

static void let_work(struct fa_crowd *crowd, int clients, uint64_t more)
{
	uint64_t before[FA_CROWD_CLIENTS_MAX];

	for (int i = 0; i < clients; ++i)
		before[i] = fa_crowd_done(crowd, i);
	for (int i = 0; i < clients; ++i)
		fa_check_eventually(fa_crowd_done(crowd, i) >= before[i] + more);
}

static void beside(uint32_t flags)
{
	const int clients = clients_of(62), rounds = fa_test_long() ? 10 : 2;
	const uint64_t more = fa_test_long() ? 10 * BESIDE : BESIDE;
	struct fa_crowd *crowd = make_crowd(clients, flags, 1, REST_NS);
	uint64_t idle_ns, burdened_ns;

	fa_crowd_go(crowd);
	for (int round = 0; round < rounds; ++round) {
		struct fa_crowd_burden burden;

		fa_crowd_phase(crowd, 0);
		let_work(crowd, clients, more);
		fa_crowd_phase(crowd, -1);
		fa_check_eq(fa_crowd_burden_start(daemon_process.socket, flags, &burden), 0);
		fa_crowd_phase(crowd, 1);
		let_work(crowd, clients, more);
		fa_crowd_phase(crowd, -1);
		fa_check(requests_of("gated") >= GATED_MIN);
		fa_check(requests_of("stopped") >= 0);
		fa_crowd_burden_end(&burden);
		fa_check_eventually(requests_of("gated") < 0 && requests_of("stopped") < 0);
	}
	end_crowd(crowd);
	idle_ns = p99_ns(crowd, 0);
	burdened_ns = p99_ns(crowd, 1);
	print_message("p99 %.1f us alone, %.1f us beside the two\n", (double)idle_ns / 1e3,
	              (double)burdened_ns / 1e3);
	if (fa_test_long() && is_roomy())
		assert_true(burdened_ns <= 2 * idle_ns);
	fa_crowd_free(crowd);
}

static void test_misbehaving_by_ring(void **state)
{
	beside(0);
}

static void test_misbehaving_by_socket(void **state)
{
	beside(FA_CONNECT_NO_RING);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_flood_by_ring, setup, teardown),
		cmocka_unit_test_setup_teardown(test_flood_by_socket, setup, teardown),
		cmocka_unit_test_setup_teardown(test_misbehaving_by_ring, setup, teardown),
		cmocka_unit_test_setup_teardown(test_misbehaving_by_socket, setup, teardown),
	};

	return cmocka_run_group_tests_name("crowd", tests, NULL, NULL);
}
