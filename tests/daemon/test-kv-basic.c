/*
 * What a well-behaved client of the KV cache sees: tokens that are appended, attended,
 * committed and read back; forks, truncation, dropped pages, names, prefixes.
 */
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct fa_test_daemon daemon_process;
static struct kv_client client;

static int start(void **state)
{
	static const struct fa_test_daemon_options options = {
		.config = "[pool]\nbytes = 8M\nchunk_bytes = 1M\n",
	};

	fa_test_daemon_start(&daemon_process, &options);
	return 0;
}

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static int open_client(void **state)
{
	kv_open(&client, daemon_process.socket);
	return 0;
}

static int close_client(void **state)
{
	kv_close(&client);
	return 0;
}

static void test_append(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	uint32_t numbers[200];
	struct fa_wire_sequence_reply info;

	kv_count(numbers, 7, 200);
	kv_append(&client, sequence, numbers, 0, 50);
	kv_check(&client, sequence, numbers, 0, 50);
	for (uint32_t n = 50; n < 70; n++)
		kv_append(&client, sequence, numbers, n, 1);
	kv_append(&client, sequence, numbers, 70, 130);
	kv_check(&client, sequence, numbers, 0, 200);
	kv_check(&client, sequence, numbers, 33, 200);
	info = kv_info(&client, sequence);
	fa_check_eq(info.length, 200);
	fa_check_eq(info.planned, 200);
	fa_check_eq(info.first, 0);
	fa_check(info.cache == cache);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_append, open_client, close_client),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
