/* While a step is in flight on a GPU, its layers find the daemon awake: no doorbell is rung. */
#include "client/faclient.h"
#include "tests/client/kv.h"
#include "tests/cuda-driver/control.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/pause.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 12

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_client *client;
static struct kv kv;

static void begin(const char *config)
{
	struct fa_options options = { .size = sizeof(options) };

	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&daemon_, &(struct fa_test_daemon_options){ .config = config });
	options.socket = daemon_.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	kv_init(&kv, client, NULL, 0);
}

static void end(void)
{
	kv_deinit(&kv);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon_);
	fa_test_cuda_end(&cuda);
}

static uint64_t status(const char *name)
{
	char *json, *at;
	uint64_t value;

	fa_check_eq(fa_status(client, &json), 0);
	at = strstr(json, name);
	fa_check(at);
	value = strtoull(at + strlen(name), NULL, 10);
	free(json);
	return value;
}

static bool is_polled(void)
{
	return status("\"rings_polled\":") != 0;
}

/* Runs a step. Returns how many doorbells its layers rang; @await_sleep: each once the daemon
 * sleeps. */
static uint64_t run(bool await_sleep)
{
	uint32_t tags[1] = { 1 };
	struct kv_item item = { .tags = tags, .length = 1, .n_new = 1 };
	struct fa_step *step;
	uint64_t before, after;

	fa_check_eq(fa_sequence_create(client, kv.cache, &item.sequence), 0);
	fa_check_eq(kv_begin(&kv, &item, 1, &step), 0);
	fa_check_eq(kv_attend(&kv, step, &item, 1, 0, true), 0);
	before = status("\"ring_doorbells\":");
	for (int i = 0; i < LAYERS; ++i) {
		if (await_sleep)
			fa_check_eventually(!is_polled());
		else
			fa_test_quiet_ms(2);
		fa_check_eq(kv_attend(&kv, step, &item, 1, 0, true), 0);
	}
	after = status("\"ring_doorbells\":");
	fa_check(await_sleep || is_polled());
	fa_check_eq(fa_step_commit(step, NULL, NULL), 0);
	kv_check_out(&kv, &item, 1);
	fa_step_free(step);
	fa_check_eventually(!is_polled());
	fa_check_eq(fa_sequence_remove(client, item.sequence), 0);
	return after - before;
}

static void test_awake(void **state)
{
	begin("[daemon]\nspin_step_us = 1000000\n");
	fa_check_eq(run(false), 0);
	end();
}

static void test_asleep(void **state)
{
	begin("[daemon]\nspin_step_us = 0\n");
	fa_check(run(true) >= LAYERS);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_awake),
		cmocka_unit_test(test_asleep),
	};

	return cmocka_run_group_tests_name("cuda-kv-spin", tests, NULL, NULL);
}
