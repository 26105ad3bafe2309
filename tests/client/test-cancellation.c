/*
 * Threads are cancelled (pthread_cancel) at random moments within calls: the call finishes first,
 * and the client keeps serving the other threads.
 */
#include "client/faclient.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define THREADS 4
/* If a call after a cancellation hangs, the test ends after this time. */
#define HANG_S 100

static uint64_t cache;

static void one_of_each(struct fa_client *client)
{
	struct fa_step_item item = { .n_new = 1 };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	struct fa_buffer *buffer;
	struct fa_ticket ticket;
	struct fa_step *step;
	char *json;

	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	fa_check_eq(fa_marker(client, 0, NULL, &ticket), 0);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_buffer_free(buffer);
	fa_check_eq(fa_status(client, &json), 0);
	fa_free(json);
	fa_check_eq(fa_sequence_create(client, cache, &item.sequence), 0);
	fa_check_eq(fa_step_begin(client, &options, &step), 0);
	fa_step_free(step);
	fa_check_eq(fa_sequence_remove(client, item.sequence), 0);
}

static void *call_for_ever(void *userdata)
{
	for (;;) {
		one_of_each(userdata);
		pthread_testcancel();
	}
	return NULL;
}

static void check_cancelled(pthread_t thread)
{
	void *result;

	fa_check(!pthread_join(thread, &result));
	fa_check(result == PTHREAD_CANCELED);
}

static void test_storm(void **state)
{
	const int rounds = fa_test_long() ? 2000 : 100;
	struct fa_test_random random = { 25 };
	int before;

	/* The first calls set up the ring, which has descriptors. */
	for (int i = 0; i < 4; ++i)
		one_of_each(single_client);
	before = fa_test_count_fds(0);
	for (int i = 0; i < rounds; ++i) {
		pthread_t threads[THREADS];

		alarm(HANG_S);
		for (int k = 0; k < THREADS; ++k)
			fa_check(!pthread_create(&threads[k], NULL, call_for_ever, single_client));
		fa_test_any_moment_us(fa_test_random_below(&random, 2000));
		for (int k = 0; k < THREADS; ++k)
			fa_check(!pthread_cancel(threads[k]));
		for (int k = 0; k < THREADS; ++k)
			check_cancelled(threads[k]);
		one_of_each(single_client);
	}
	alarm(0);
	fa_check_eq(fa_test_count_fds(0), before);
	fa_check_eq(single_status("buffers"), 0);
}

/* Each thread connects, calls and disconnects, so that connecting is cancelled as well. */
static void *connect_for_ever(void *userdata)
{
	const struct fa_options options = { .size = sizeof(options), .socket = userdata };

	for (;;) {
		struct fa_client *client;

		fa_check_eq(fa_connect(&options, &client), 0);
		fa_check_eq(fa_ping(client), 0);
		fa_disconnect(client);
		pthread_testcancel();
	}
	return NULL;
}

static void test_connecting(void **state)
{
	struct fa_test_random random = { 26 };
	int before = fa_test_count_fds(0);

	for (int i = 0; i < 40; ++i) {
		pthread_t thread;

		fa_check(!pthread_create(&thread, NULL, connect_for_ever, single_daemon.socket));
		fa_test_any_moment_us(fa_test_random_below(&random, 3000));
		fa_check(!pthread_cancel(thread));
		check_cancelled(thread);
	}
	fa_check_eq(fa_test_count_fds(0), before);
	fa_check_eq(fa_ping(single_client), 0);
}

static void *wait_for_ever(void *userdata)
{
	fa_check_eq(fa_wait(single_client, userdata, UINT64_MAX, NULL), 0);
	pthread_testcancel();
	return NULL;
}

/* A call that sleeps goes on sleeping; the cancellation takes effect behind it. */
static void test_sleeping(void **state)
{
	const struct fa_gate gate = { .slot = 0, .value = 1 };
	const struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &gate };
	struct fa_timeline *timeline;
	struct fa_ticket ticket;
	pthread_t thread;

	fa_check_eq(fa_timeline_open(single_client, &timeline), 0);
	fa_check_eq(fa_marker(single_client, 0, &gates, &ticket), 0);
	fa_check(!pthread_create(&thread, NULL, wait_for_ever, &ticket));
	fa_test_let_sleep_ms(50);
	fa_check(!pthread_cancel(thread));
	alarm(HANG_S);
	fa_check_eq(fa_ping(single_client), 0);
	fa_check_eq(fa_timeline_write(timeline, 0, 1), 0);
	check_cancelled(thread);
	fa_check_eq(fa_wait(single_client, &ticket, 0, NULL), 0);
	alarm(0);
}

static int setup(void **state)
{
	const struct fa_cache_options options = { .size = sizeof(options),
		                                  .dtype = FA_F32,
		                                  .layers = 1,
		                                  .kv_heads = 1,
		                                  .head_dim = 16,
		                                  .page_tokens = 16 };

	single_setup(state);
	must(fa_cache_create(single_client, &options, &cache), "cache");
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_storm),
		cmocka_unit_test(test_connecting),
		cmocka_unit_test(test_sleeping),
	};

	return cmocka_run_group_tests_name("cancellation", tests, setup, single_teardown);
}
