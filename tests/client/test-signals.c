/*
 * A timer interrupts the program all the time: waits keep their deadlines.
 */
#include "client/faclient.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/time.h>

#include <cmocka.h>

/* Shorter than a receive blocks before it checks the clock. */
#define TICK_US 200000

/* The client's reply_ns; longer than a receive blocks. */
#define TIMEOUT_NS (3 * FA_NS_PER_SEC / 2)

static uint64_t late_ns(void)
{
	return TIMEOUT_NS + fa_test_patience_ns() / 10;
}

static volatile sig_atomic_t ticks_left;

static void tick(int signal)
{
	const struct itimerval none = {};

	if (--ticks_left == 0)
		(void)setitimer(ITIMER_REAL, &none, NULL);
}

static void ticking(long us)
{
	const struct timeval each = { .tv_usec = us };
	const struct itimerval timer = { each, each };
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };

	ticks_left = (sig_atomic_t)((late_ns() + FA_NS_PER_SEC) / (TICK_US * FA_NS_PER_US));
	fa_check(!sigaction(SIGALRM, &action, NULL));
	fa_check(!setitimer(ITIMER_REAL, &timer, NULL));
}

/* The fake answers neither requests nor pings. */
static void mute(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	while (page && fake_daemon_next(raw))
		;
}

static void test_deadlines(void **state)
{
	struct fa_options options = { .size = sizeof(options),
		                      .reconnect_ns = UINT64_MAX,
		                      .reply_ns = TIMEOUT_NS };
	struct fa_client *client;
	struct fa_ticket ticket;
	struct fake_daemon fake;
	uint64_t begin_ns;
	sigset_t alarm;

	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	fa_check(!pthread_sigmask(SIG_BLOCK, &alarm, NULL));
	fake_daemon_start(&fake, mute, NULL);
	fa_check(!pthread_sigmask(SIG_UNBLOCK, &alarm, NULL));
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_marker(client, 0, NULL, &ticket), 0);

	ticking(TICK_US);
	begin_ns = fa_now_ns();
	fa_check_eq(fa_wait(client, &ticket, TIMEOUT_NS, NULL), -EAGAIN);
	fa_check(fa_now_ns() - begin_ns >= TIMEOUT_NS);
	fa_check(fa_now_ns() - begin_ns < late_ns());

	ticking(TICK_US);
	begin_ns = fa_now_ns();
	fa_check_eq(fa_ping(client), -ETIMEDOUT);
	fa_check(fa_now_ns() - begin_ns >= TIMEOUT_NS);
	fa_check(fa_now_ns() - begin_ns < late_ns());
	ticking(0);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_deadlines) };

	return cmocka_run_group_tests_name("signals", tests, NULL, NULL);
}
