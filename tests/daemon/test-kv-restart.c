/*
 * The daemon is killed under its clients: what was committed is there afterwards, to the
 * bit; what was in flight never happened; sessions come back with what they had, or it goes.
 */
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct fa_test_daemon supervisor;
static struct kv_client client;

static int start(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	static const struct fa_test_daemon_options options = {
		.args = args,
		.config = "[pool]\nbytes = 16M\nchunk_bytes = 2M\n",
	};

	fa_test_daemon_start(&supervisor, &options);
	kv_open(&client, supervisor.socket);
	return 0;
}

static int stop(void **state)
{
	kv_close(&client);
	fa_test_daemon_stop(&supervisor);
	return 0;
}

static void kill_child(void)
{
	const pid_t before = fa_test_daemon_child(&supervisor);

	fa_check(before > 0);
	kill(before, SIGKILL);
	(void)fa_test_daemon_next_child(&supervisor, before);
}

/* Connects again, saying that it is the session that it was. */
static bool come_back(struct kv_client *c)
{
	struct fa_wire_secret secret = c->raw.secret;
	uint64_t generation = c->raw.generation, session = c->raw.session;
	bool resumed;

	kv_close(c);
	kv_open_resumed(c, supervisor.socket, &secret, generation);
	resumed = c->raw.message.hello_reply.resumed;
	kv_open_buffer(c);
	if (resumed)
		fa_check(c->raw.session == session);
	fa_check(c->raw.generation > generation);
	return resumed;
}

static void test_kill(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache), fork;
	uint64_t before, number;
	uint32_t numbers[300];

	kv_count(numbers, 1, 300);
	kv_append(&client, sequence, numbers, 0, 100);
	fork = kv_fork(&client, sequence, 75);
	number = kv_info(&client, sequence).step;
	/* One that is never committed. */
	kv_begin_one(&client, 5, sequence, 40);
	kv_wait(&client, 0, kv_attend(&client, 0, 5, 0, numbers + 200, 40, NULL));
	before = client.raw.session;

	kill_child();
	fa_check(come_back(&client));
	fa_check(client.raw.session == before);
	kv_check(&client, sequence, numbers, 0, 100);
	fa_check(kv_info(&client, sequence).step == number);
	fa_check(kv_info(&client, sequence).planned == 100);
	kv_check(&client, fork, numbers, 0, 75);
	kv_append(&client, sequence, numbers, 100, 60);
	kv_append(&client, fork, numbers, 75, 1);
	kv_check(&client, sequence, numbers, 0, 160);
	kv_check(&client, fork, numbers, 0, 76);

	for (uint32_t n = 160; n < 200; n += 10) {
		kill_child();
		fa_check(come_back(&client));
		kv_check(&client, sequence, numbers, 0, n);
		kv_append(&client, sequence, numbers, n, 10);
	}
	kv_check(&client, fork, numbers, 0, 76);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_kill, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
