/* The loop spins while messages follow each other quickly, and else uses no processor time. */
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"

#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct fa_test_daemon daemon_process;
static struct fa_raw raw;

static uint64_t used_ns(void)
{
	struct fa_test_usage usage;

	fa_test_daemon_usage(&daemon_process, &usage);
	return usage.cpu_ns;
}

static void check_less(uint64_t ns, unsigned int most_ms, const char *when)
{
	if (ns > most_ms * FA_NS_PER_MS)
		fa_test_fail(__FILE__, __LINE__, "%s the daemon took %llu ms of processor time",
		             when, (unsigned long long)(ns / FA_NS_PER_MS));
}

static void test_quick_messages(void **state)
{
	uint64_t before;

	for (int i = 0; i < 5000; i++)
		fa_raw_ping(&raw);
	fa_test_elapse_ms(10);
	before = used_ns();
	fa_test_elapse_ms(300);
	check_less(used_ns() - before, 30, "after the last of many messages, in 300 ms,");
}

static void test_slow_messages(void **state)
{
	const uint64_t begin_ns = fa_now_ns();
	uint64_t before, took_ns;
	int n = 0;

	fa_test_elapse_ms(10);
	before = used_ns();
	while (fa_now_ns() - begin_ns < 2 * FA_NS_PER_SEC || n <= 100) {
		fa_test_elapse_ms(1);
		fa_raw_ping(&raw);
		n++;
	}
	took_ns = fa_now_ns() - begin_ns;
	/*
	 * An answer takes about 20 us, more under sanitizers; spinning would take the whole
	 * millisecond.
	 */
	check_less(used_ns() - before,
	           (unsigned int)(took_ns / FA_NS_PER_MS / (fa_test_sanitized() ? 2 : 5)),
	           "with a message each millisecond, in 2000 ms or more,");
}

static int start(void **state)
{
	fa_test_daemon_start(&daemon_process, NULL);
	fa_raw_open(&raw, daemon_process.socket);
	return 0;
}

static int stop(void **state)
{
	fa_raw_close(&raw);
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_quick_messages),
		cmocka_unit_test(test_slow_messages),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
