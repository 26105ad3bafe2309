/*
 * Sessions of a killed daemon that come back late and repeatedly: each has its full grace time,
 * from when it was last seen.
 */
#include "common/clock.h"
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GRACE_NS (12 * FA_NS_PER_SEC)

static struct fa_test_daemon supervisor;

static int start(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	static const struct fa_test_daemon_options options = {
		.args = args,
		.config = "[pool]\nbytes = 16M\nchunk_bytes = 2M\ngrace_s = 12\n",
	};

	fa_test_daemon_start(&supervisor, &options);
	return 0;
}

static int stop(void **state)
{
	fa_test_daemon_stop(&supervisor);
	return 0;
}

static bool come_back(struct kv_client *client, const struct kv_client *before)
{
	bool resumed;

	kv_open_resumed(client, supervisor.socket, &before->raw.secret, before->raw.generation);
	resumed = client->raw.message.hello_reply.resumed;
	kv_open_buffer(client);
	return resumed;
}

static bool are_awaited(struct kv_client *viewer, unsigned int n)
{
	char expected[64], *status = fa_raw_status(&viewer->raw);
	bool found;

	snprintf(expected, sizeof(expected), "\"sessions_awaited\":%u", n);
	found = strstr(status, expected);
	free(status);
	return found;
}

static void sleep_until(uint64_t begin_ns, uint64_t ns)
{
	const uint64_t now_ns = fa_now_ns();

	if (now_ns < begin_ns + ns)
		fa_test_elapse_ms((unsigned int)((begin_ns + ns - now_ns) / FA_NS_PER_MS));
}

/*
 * Session 1 comes back at once, idles, and is lost shortly before the general grace time ends: it
 * must survive that. Session 2 expires meanwhile. Session 3 is lost as late as session 1 and does
 * not come back.
 */
static void test_late(void **state)
{
	static struct kv_client clients[3], back[3], viewer;
	uint64_t cache, sequences[3], killed_ns, begin_ns;
	uint32_t numbers[20];
	pid_t child;

	kv_count(numbers, 1, 20);
	for (int i = 0; i < 3; ++i) {
		kv_open(&clients[i], supervisor.socket);
		cache = kv_cache(&clients[i], NULL, 0);
		sequences[i] = kv_sequence(&clients[i], cache);
		kv_append(&clients[i], sequences[i], numbers, 0, 20);
	}
	child = fa_test_daemon_child(&supervisor);
	killed_ns = fa_now_ns();
	kill(child, SIGKILL);
	(void)fa_test_daemon_next_child(&supervisor, child);
	kv_open(&viewer, supervisor.socket);
	begin_ns = fa_now_ns();
	fa_check(come_back(&back[0], &clients[0]));
	fa_check(come_back(&back[2], &clients[2]));
	fa_check(are_awaited(&viewer, 1));

	sleep_until(killed_ns, GRACE_NS - 3 * FA_NS_PER_SEC);
	kv_close(&back[0]);
	kv_close(&back[2]);
	fa_check_eventually(are_awaited(&viewer, 3));
	sleep_until(begin_ns, GRACE_NS + 3 * FA_NS_PER_SEC);
	fa_check_eventually(are_awaited(&viewer, 2));
	fa_check(!come_back(&back[1], &clients[1]));
	fa_check(come_back(&back[0], &clients[0]));
	kv_check(&back[0], sequences[0], numbers, 0, 20);

	sleep_until(begin_ns, 2 * GRACE_NS + 2 * FA_NS_PER_SEC);
	fa_check_eventually(are_awaited(&viewer, 0));
	fa_check(!come_back(&back[2], &clients[2]));
	for (int i = 0; i < 3; ++i) {
		kv_close(&back[i]);
		kv_close(&clients[i]);
	}
	kv_close(&viewer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_late, start, stop),
	};

	return cmocka_run_group_tests_name("kv grace", tests, NULL, NULL);
}
