/*
 * A reload lets the pool grow, or shrink as chunks become free. A share of the memory stays the
 * same when the pool outlives its daemon.
 */
#include "kv-client.h"
#include "tests/lib/at_once.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct fa_test_daemon process;
static struct kv_client client;
static uint32_t numbers[4096];

static json_t *get_status(void)
{
	char *text = fa_raw_status(&client.raw);
	json_t *json = json_loads(text, 0, NULL);

	fa_check(json);
	free(text);
	return json;
}

static long long pool_number(const char *key)
{
	json_t *json = get_status();
	long long value = json_integer_value(json_object_get(json_object_get(json, "pool"), key));

	json_decref(json);
	return value;
}

static void reload(const char *config, const char *part)
{
	FILE *file = fopen(process.config, "we");

	fa_check(file && fputs(config, file) >= 0 && !fclose(file));
	fa_test_daemon_signal(&process, SIGHUP);
	fa_test_daemon_log_wait(&process, part);
	fa_test_daemon_log_wait(&process, "was read again");
}

/* Two sequences in a cache of large pages; returns the cache. */
static uint64_t start(const struct fa_test_daemon_options *options, uint64_t (*ret_sequences)[2])
{
	uint64_t cache;

	fa_test_daemon_start(&process, options);
	kv_open(&client, process.socket);
	kv_spare_layers = 7 * KV_LAYERS;
	cache = kv_cache(&client, NULL, 0);
	for (int i = 0; i < 2; i++)
		(*ret_sequences)[i] = kv_sequence(&client, cache);
	return cache;
}

static void test_reload(void **state)
{
	const struct fa_test_daemon_options options = {
		.config = "[pool]\nbytes = 4M\nchunk_bytes = 2M\n"
	};
	struct fa_wire_step_item item = { .n_new = 400 };
	uint64_t cache, sequences[2];

	cache = start(&options, &sequences);
	kv_append(&client, sequences[0], numbers, 0, 600);
	kv_append(&client, sequences[1], numbers, 0, 700);
	item.sequence = sequences[1];
	kv_begin_expect(&client, 1, &item, 1, -ENOMEM, "exhausted");

	reload("[pool]\nbytes = 6M\nchunk_bytes = 2M\n", "may have 3 chunks of 2048 KiB\n");
	fa_check_eq(pool_number("chunks_max"), 3);
	kv_append(&client, sequences[1], numbers, 700, 400);
	fa_check_eq(pool_number("chunks"), 3);
	/* Created for two chunks, the pool has addresses for eight. */
	reload("[pool]\nbytes = 64M\nchunk_bytes = 4M\n",
	       "may have 8 chunks of 2048 KiB, not the 32 that are wanted");
	fa_check_eq(pool_number("chunks_max"), 8);

	reload("[pool]\nbytes = 2M\n", "may have 1 chunks of 2048 KiB; it has 3");
	kv_check(&client, sequences[0], numbers, 0, 600);
	kv_check(&client, sequences[1], numbers, 0, 1100);
	kv_begin_expect(&client, 1, &item, 1, -ENOMEM, "exhausted");
	fa_check_eq(pool_number("chunks"), 3);
	kv_free(&client, sequences[1]);
	fa_check_eventually(pool_number("chunks") < 3);
	kv_check(&client, sequences[0], numbers, 0, 600);
	kv_free(&client, sequences[0]);
	fa_check_eventually(pool_number("chunks") <= 1);
	sequences[0] = kv_sequence(&client, cache);
	kv_append(&client, sequences[0], numbers, 0, 100);
	kv_close(&client);
	fa_test_daemon_stop(&process);
}

/* While others are used. */
static void test_empty_chunk_is_freed(void **state)
{
	const struct fa_test_daemon_options options = {
		.config = "[pool]\nbytes = 16M\nchunk_bytes = 2M\n"
	};
	uint64_t cache, sequences[2];
	long long chunks;

	cache = start(&options, &sequences);
	kv_append(&client, sequences[0], numbers, 0, 10);
	for (uint32_t i = 0; i < 4; i++)
		kv_append(&client, sequences[1], numbers, 700 * i, 700);
	chunks = pool_number("chunks");
	fa_check(chunks >= 5);
	kv_free(&client, sequences[1]);
	fa_test_quiet_ms(3000);
	fa_check_eq(pool_number("chunks"), chunks);
	fa_check_eventually(pool_number("chunks") == 1);
	kv_check(&client, sequences[0], numbers, 0, 10);
	sequences[1] = kv_sequence(&client, cache);
	kv_append(&client, sequences[1], numbers, 0, 1400);
	kv_check(&client, sequences[1], numbers, 0, 1400);
	kv_check(&client, sequences[0], numbers, 0, 10);
	kv_spare_layers = 0;
	kv_close(&client);
	fa_test_daemon_stop(&process);
}

static void test_share(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = {
		.config = "[pool]\nbytes = 50%\nchunk_bytes = 32M\n", .args = args
	};
	long long chunks_max, chunks;
	uint64_t sequence;
	json_t *json;
	bool gpu;

	fa_test_daemon_start(&process, &options);
	kv_open(&client, process.socket);
	json = get_status();
	gpu = !strcmp(json_string_value(json_object_get(json, "backend")), "cuda");
	json_decref(json);
	if (gpu) {
		kv_spare_layers = 1000;
		sequence = kv_sequence(&client, kv_cache(&client, NULL, 0));
		kv_append(&client, sequence, numbers, 0, 1000);
		chunks_max = pool_number("chunks_max");
		chunks = pool_number("chunks");
		fa_check(chunks > 4);
		json = get_status();
		kill((pid_t)json_integer_value(json_object_get(json, "pid")), SIGKILL);
		json_decref(json);
		fa_test_daemon_log_wait(&process, "KV pool recovered");
		kv_close(&client);
		kv_open(&client, process.socket);
		fa_check_eq(pool_number("chunks"), chunks);
		fa_check(pool_number("chunks_max") >= chunks_max - 2);
	}
	kv_close(&client);
	fa_test_daemon_stop(&process);
	if (!gpu)
		skip();
}

static int setup(void **state)
{
	kv_count(numbers, 1, 4096);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reload),
		cmocka_unit_test(test_empty_chunk_is_freed),
		cmocka_unit_test(test_share),
	};

	return fa_test_run_at_once("kv-size", tests, setup, NULL);
}
