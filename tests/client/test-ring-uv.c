/*
 * fa_fd() in a libuv loop, with requests by ring: the loop sleeps until a request ends, however
 * soon.
 */
#include "client/faclient.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <uv.h>

#include <cmocka.h>

#define ROUNDS 5000

static struct fa_test_daemon daemon_process;
static struct fa_client *client;
static struct fa_ticket ticket;
static unsigned int n_ended;
static uv_timer_t timer;

static void check(int r)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
}

static void stop(uv_poll_t *poll)
{
	uv_close((uv_handle_t *)poll, NULL);
	uv_close((uv_handle_t *)&timer, NULL);
}

/* Goes on until a call would block. */
static void go_on(uv_poll_t *poll)
{
	int r;

	while ((r = fa_wait(client, &ticket, 0, NULL)) == 0) {
		if (++n_ended == ROUNDS) {
			stop(poll);
			return;
		}
		check(fa_marker(client, n_ended % 2, NULL, &ticket));
	}
	fa_check_eq(r, -EAGAIN);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	fa_check_eq(status, 0);
	check(fa_dispatch(client));
	go_on(poll);
}

static void on_timeout(uv_timer_t *unused)
{
	fa_test_fail(__FILE__, __LINE__, "nobody woke the loop: %u requests have ended", n_ended);
}

static void test_libuv(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	uint32_t stream;
	uv_loop_t loop;
	uv_poll_t poll;

	fa_test_daemon_start(&daemon_process, NULL);
	options.socket = daemon_process.socket;
	check(fa_connect(&options, &client));
	check(fa_stream_new(client, 0, &stream));
	fa_check_eq(stream, 1);
	fa_check_eq(uv_loop_init(&loop), 0);
	fa_check_eq(uv_poll_init(&loop, &poll, fa_fd(client)), 0);
	fa_check_eq(uv_timer_init(&loop, &timer), 0);
	fa_check_eq(uv_poll_start(&poll, UV_READABLE, on_readable), 0);
	fa_check_eq(uv_timer_start(&timer, on_timeout, 2 * fa_test_patience_ns() / FA_NS_PER_MS, 0),
	            0);
	check(fa_marker(client, 0, NULL, &ticket));
	go_on(&poll);
	fa_check_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
	fa_check_eq(uv_loop_close(&loop), 0);
	fa_check_eq(n_ended, ROUNDS);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon_process);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_libuv) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
