/*
 * How a daemon stops: SIGTERM, SIGINT, or a message, once or twice; with requests that finish or do
 * not, and clients that do not read.
 */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_test_daemon daemon_;
static struct fa_raw raw;
static struct fa_raw_buffer buffer;
static struct fa_case slow;

static void start(const char *timeout_ms)
{
	const char *args[] = { "--drain-timeout-ms", timeout_ms, NULL };

	fa_test_daemon_start(&daemon_, &(struct fa_test_daemon_options){ .args = args });
	slow = fa_case_slow();
	fa_raw_open(&raw, daemon_.socket);
	fa_raw_buffer_register(&raw, &buffer, 1, slow.bytes, 0);
}

static void finish(void)
{
	bool socket_left;
	int status;

	fa_test_daemon_wait_dead(&daemon_);
	socket_left = !access(daemon_.socket, F_OK);
	status = fa_test_daemon_reap(&daemon_);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 0);
	fa_check(!socket_left);
}

static int stop(void **state)
{
	fa_raw_close(&raw);
	fa_raw_buffer_free(NULL, &buffer);
	fa_test_daemon_stop(&daemon_);
	return 0;
}

static void submit(const struct fa_case *attention, uint64_t value)
{
	struct fa_wire_message message = fa_case_message(attention, 1, 0, 0, value);

	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
}

static void wait_draining(void)
{
	struct fa_test_accounts accounts;

	fa_check_eventually((fa_test_accounts(&raw, &accounts), accounts.draining));
}

static void test_finishes(void **state)
{
	struct fa_case medium;
	struct fa_raw late;

	start("60000");
	medium = slow;
	medium.seqlen_k = fa_test_sanitized() || fa_test_is_vulkan() ? 256 : 16384;
	submit(&slow, 1);
	submit(&medium, 2);
	fa_raw_ping(&raw);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	wait_draining();

	submit(&medium, 3);
	{
		struct fa_wire_message message = fa_raw_register_message(2, 4096);

		message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
		fa_raw_call_expect(&raw, &message, NULL, 0, -ESHUTDOWN, NULL);
	}
	{
		struct fa_wire_message message = fa_raw_message(FA_WIRE_STREAM_CREATE);

		message.stream_create.stream = 5;
		fa_raw_call_expect(&raw, &message, NULL, 0, -ESHUTDOWN, NULL);
	}
	if (fa_raw_connect_try(&late, daemon_.socket) == 0) {
		struct fa_wire_message hello = fa_raw_hello_message("late");

		hello.id = 1;
		(void)fa_raw_send(&late, &hello, NULL, 0);
		if (fa_raw_receive(&late, 60000) == 1) {
			fa_check_eq(late.message.type, FA_WIRE_REPLY);
			fa_check_eq(late.message.reply.status, -ESHUTDOWN);
		}
	}
	fa_raw_close(&late);

	{
		struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

		message.cancel.value = 1;
		fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
	}
	fa_raw_wait_expect(&raw, 0, 1, -ECANCELED, NULL);
	fa_raw_wait_expect(&raw, 0, 2, 0, NULL);
	fa_raw_wait_expect(&raw, 0, 3, -ESHUTDOWN, NULL);
	fa_raw_expect_end(&raw);
	finish();
}

static void test_deadline(void **state)
{
	struct fa_wire_message message;

	start("300");
	fa_raw_stream_create(&raw, 7, 0);
	submit(&slow, 1);
	submit(&slow, 2);
	for (uint64_t value = 1; value <= 3; ++value) {
		message = fa_case_message(&slow, 1, 0, 7, value);
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	fa_raw_ping(&raw);
	fa_test_daemon_signal(&daemon_, SIGINT);
	fa_raw_wait_expect(&raw, 0, 1, -ESHUTDOWN, NULL);
	fa_raw_wait_expect(&raw, 0, 2, -ESHUTDOWN, NULL);
	for (uint64_t value = 1; value <= 3; ++value)
		fa_raw_wait_expect(&raw, 7, value, -ESHUTDOWN, NULL);
	fa_raw_expect_end(&raw);
	fa_check_eq(raw.page[0].completed, 2);
	fa_check_eq(raw.page[0].failed, 2);
	finish();
}

/* Requests sent while draining are refused in order. */
static void test_order(void **state)
{
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX + 64];
	uint64_t sent = 20, answered = 0;
	bool gone = false;

	start("300");
	for (uint64_t value = 1; value <= sent; ++value)
		submit(&slow, value);
	fa_raw_ping(&raw);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	answered = raw.n_completions;
	while (!gone) {
		struct fa_wire_message message = fa_case_message(&slow, 1, 0, 0, sent + 1);
		size_t length = fa_raw_encode(&message, bytes);
		int r;

		if (fa_raw_send_bytes(&raw, bytes, length, NULL, 0, MSG_DONTWAIT) == 0)
			++sent;
		while ((r = fa_raw_receive(&raw, 0)) == 1) {
			fa_check_eq(raw.message.type, FA_WIRE_COMPLETION);
			fa_check_eq(raw.message.completion.value, answered + 1);
			if (answered >= 10)
				fa_check_eq(raw.message.completion.status, -ESHUTDOWN);
			++answered;
		}
		gone = r == 0;
	}
	fa_check(answered >= 20);
	finish();
}

/* Clients that never stop sending do not keep the daemon. */
static int asking_client(void *userdata)
{
	static struct fa_raw mine;
	struct fa_case small = { .head_dim = 8, .seqlen_q = 2 };
	struct fa_wire_message message;
	uint64_t value = 0;

	fa_case_plan(&small);
	fa_raw_open(&mine, daemon_.socket);
	do {
		while (fa_raw_receive(&mine, 0) == 1)
			;
		message = fa_case_message(&small, 99, 0, 0, ++value);
	} while (fa_raw_send(&mine, &message, NULL, 0) == 0);
	return 0;
}

static void test_endless(void **state)
{
	pid_t pids[4];

	start("100");
	submit(&slow, 1);
	for (int i = 0; i < 4; ++i)
		pids[i] = fa_test_fork(asking_client, NULL);
	fa_test_let_sleep_ms(100);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	finish();
	for (int i = 0; i < 4; ++i) {
		(void)kill(pids[i], SIGKILL);
		fa_test_reap(pids[i]);
	}
}

/* SIGTERM during a failing start is no crash. */
static void test_failing_start(void **state)
{
	const char *path = getenv("FAD_DAEMON");
	int status;

	for (unsigned int i = 0; i < 40; ++i) {
		pid_t pid = fork();

		fa_check(pid >= 0);
		if (pid == 0) {
			execl(path, path, "--socket", "/proc/none/fad.sock", "--log-level", "error",
			      NULL);
			_exit(127);
		}
		fa_test_any_moment_us(i % 8 * 1000);
		for (unsigned int n = 0; n <= i % 3; ++n)
			(void)kill(pid, SIGTERM);
		fa_check_eq(waitpid(pid, &status, 0), pid);
		if (WIFSIGNALED(status))
			fa_check_eq(WTERMSIG(status), SIGTERM);
		else
			fa_check_eq(WEXITSTATUS(status), EXIT_FAILURE);
	}
}

static void test_stopped_twice(void **state)
{
	uint64_t start_ns;

	start("600000");
	submit(&slow, 1);
	for (uint64_t value = 2; value <= 40; ++value)
		submit(&slow, value);
	fa_raw_ping(&raw);
	start_ns = fa_now_ns();
	fa_test_daemon_signal(&daemon_, SIGTERM);
	wait_draining();
	fa_test_daemon_signal(&daemon_, SIGTERM);
	fa_raw_expect_end(&raw);
	finish();
	/* Forty slow requests would take minutes. */
	fa_check(fa_now_ns() - start_ns < 60 * FA_NS_PER_SEC);
}

static void test_idle(void **state)
{
	start("600000");
	fa_raw_ping(&raw);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	fa_raw_expect_end(&raw);
	finish();
}

static bool has_logged(const char *text)
{
	_fa_cleanup_(fa_freep) char *log = fa_test_daemon_log(&daemon_);

	return strstr(log, text);
}

/* A signal that is repeated until the daemon is gone leaves its exit an exit. */
static void test_repeated(void **state)
{
	for (int i = 0; i < 20; ++i) {
		fa_test_daemon_start(&daemon_, NULL);
		fa_test_daemon_signal(&daemon_, SIGTERM);
		/* Without a pause, as the daemon is gone in a moment. */
		while (!has_logged("bye"))
			;
		while (!fa_test_daemon_is_dead(&daemon_))
			fa_test_daemon_signal(&daemon_, SIGTERM);
		finish();
	}
}

static void test_message(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_DRAIN);

	start("60000");
	submit(&slow, 1);
	fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
	wait_draining();
	fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
	message = fa_raw_message(FA_WIRE_CANCEL);
	message.cancel.value = 1;
	fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
	fa_raw_wait_expect(&raw, 0, 1, -ECANCELED, NULL);
	fa_raw_expect_end(&raw);
	finish();
}

/* A client that does not read, or never said Hello, delays the exit until the deadline. */
static void test_unread(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_PING);
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	size_t length = fa_raw_encode(&message, bytes);
	struct fa_raw silent;

	start("500");
	fa_raw_connect(&silent, daemon_.socket);
	for (int i = 0; i < 200000; ++i)
		if (fa_raw_send_bytes(&raw, bytes, length, NULL, 0, MSG_DONTWAIT) == -EAGAIN)
			break;
	fa_test_daemon_signal(&daemon_, SIGTERM);
	finish();
	fa_raw_close(&silent);
}

static int killed_client(void *userdata)
{
	static struct fa_raw mine;
	struct fa_raw_buffer memory;
	struct fa_case attention = fa_case_slow();

	fa_raw_open(&mine, daemon_.socket);
	fa_raw_buffer_register(&mine, &memory, 1, attention.bytes, 0);
	for (uint64_t value = 1; value <= 5; ++value) {
		struct fa_wire_message message = fa_case_message(&attention, 1, 0, 0, value);

		fa_check_eq(fa_raw_send(&mine, &message, NULL, 0), 0);
	}
	fa_raw_ping(&mine);
	raise(SIGSTOP);
	return 0;
}

static void test_killed_clients(void **state)
{
	pid_t pids[8];
	int status;

	start("120000");
	for (int i = 0; i < 8; ++i) {
		pids[i] = fa_test_fork(killed_client, NULL);
		fa_check_eq(waitpid(pids[i], &status, WUNTRACED), pids[i]);
		fa_check(WIFSTOPPED(status));
	}
	fa_test_daemon_signal(&daemon_, SIGTERM);
	wait_draining();
	for (int i = 0; i < 8; ++i) {
		fa_check(!kill(pids[i], SIGKILL));
		fa_test_reap(pids[i]);
	}
	fa_raw_expect_end(&raw);
	finish();
}

#define test(function) cmocka_unit_test_teardown(function, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_finishes),
		test(test_deadline),
		test(test_stopped_twice),
		test(test_idle),
		cmocka_unit_test(test_repeated),
		test(test_message),
		test(test_unread),
		test(test_killed_clients),
		test(test_order),
		test(test_endless),
		cmocka_unit_test(test_failing_start),
	};

	return cmocka_run_group_tests_name("drain", tests, NULL, NULL);
}
