/*
 * A supervised daemon is killed again and again under load (kv-load.h).
 */
#include "tests/client/kv-load.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static int kills;

static void test_kills(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	/* Space for chunks of daemons that died young, which are unusable for a while. */
	const struct fa_test_daemon_options options = {
		.args = args, .config = "[pool]\nbytes = 4G\nchunk_bytes = 2M\n"
	};
	struct fa_test_random random = { .state = 99 };
	struct fa_test_daemon supervisor;
	uint64_t longest_ns = 0;

	fa_test_daemon_start(&supervisor, &options);
	kv_load_begin(supervisor.socket, false);
	for (int i = 0; i < kills; ++i) {
		uint64_t before = kv_load_progress(), died_ns;
		pid_t pid = fa_test_daemon_child(&supervisor);

		if (i % 8)
			fa_check_eventually(kv_load_progress() > before + 20);
		fa_test_any_moment_us(fa_test_random_below(&random, 12000));
		fa_check(pid > 0);
		fa_check(!kill(pid, SIGKILL));
		died_ns = fa_now_ns();
		before = kv_load_progress();
		(void)fa_test_daemon_next_child(&supervisor, pid);
		if (i % 8 == 7)
			continue;
		fa_check_eventually(kv_load_progress() > before);
		if (fa_now_ns() - died_ns > longest_ns)
			longest_ns = fa_now_ns() - died_ns;
	}
	kv_load_end();
	print_message("%d kills, at most %" PRIu64 " ms without work\n", kills,
	              (uint64_t)(longest_ns / FA_NS_PER_MS));
	fa_test_daemon_stop(&supervisor);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kills),
	};

	kills = fa_test_long() ? 1000 : 100;
	if (fa_test_sanitized() || getenv("FAD_TEST_BACKEND"))
		kills = 20;
	return cmocka_run_group_tests_name("kv-crash", tests, NULL, NULL);
}
