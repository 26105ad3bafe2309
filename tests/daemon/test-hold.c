/*
 * Messages and connections that a limit refuses are held while objects of the same user are ending,
 * and judged when these have ended. Others do not wait.
 */
#include "common/clock.h"
#include "common/memfd.h"
#include "tests/lib/at_once.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#define ROUNDS 200
/* Far less than the 5 s for which the daemon holds, but enough for a slow machine. */
#define PROMPT_NS (3 * FA_NS_PER_SEC)

static struct fa_test_daemon daemon_;
static struct fa_raw raw, other;

static void start(const char *limits)
{
	char config[128];

	snprintf(config, sizeof(config), "[limits]\n%s\n", limits);
	fa_test_daemon_start(&daemon_, &(struct fa_test_daemon_options){ .config = config });
	fa_raw_open(&raw, daemon_.socket);
}

static void stop(void)
{
	fa_raw_close(&raw);
	fa_test_daemon_stop(&daemon_);
}

static void send_register(uint32_t id)
{
	struct fa_wire_message message = fa_raw_register_message(id, 4096);
	int fd;

	message.id = 1000 + id;
	message.fds = 1;
	fa_check_eq(fa_memfd_new("hold", 4096, true, &fd), 0);
	fa_check_eq(fa_raw_send(&raw, &message, &fd, 1), 0);
	close(fd);
}

static void free_buffer(uint32_t id)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

	message.buffer_free.buffer = id;
	fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
}

static void expect_registered(void)
{
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
}

static void test_buffers(void **state)
{
	start("buffers = 4");
	for (uint32_t id = 1; id <= 4; ++id) {
		send_register(id);
		expect_registered();
	}
	for (int i = 0; i < ROUNDS; ++i) {
		free_buffer(1 + (uint32_t)i % 4);
		send_register(1 + (uint32_t)i % 4);
		expect_registered();
	}
	/* Nothing is ending: refused at once. */
	uint64_t begin = fa_now_ns();

	send_register(5);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.type, FA_WIRE_REPLY);
	fa_check_eq(raw.message.reply.status, -EDQUOT);
	fa_check_contains(raw.message.reply.text.text, "buffers");
	fa_check(fa_now_ns() - begin < PROMPT_NS);
	stop();
}

static void test_sessions(void **state)
{
	start("sessions = 2");
	for (int i = 0; i < ROUNDS; ++i) {
		fa_raw_open(&other, daemon_.socket);
		fa_raw_close(&other);
	}
	fa_raw_open(&other, daemon_.socket);
	struct fa_raw third;

	fa_raw_connect(&third, daemon_.socket);
	fa_raw_expect_reply(&third, 0, -EDQUOT, "sessions", true);
	fa_raw_close(&third);
	fa_raw_close(&other);
	stop();
}

/* A daemon that stops answers what it holds. */
static void test_connections(void **state)
{
	start("connections = 2");
	for (int i = 0; i < ROUNDS; ++i) {
		fa_raw_open(&other, daemon_.socket);
		fa_raw_close(&other);
	}
	stop();
}

/* Registers over a limit of one buffer, which @n requests use that end after @timeout_ns. */
static void register_in_use(int n, uint64_t timeout_ns)
{
	struct fa_case slow = fa_case_slow();
	struct fa_raw_buffer buffer;

	fa_raw_buffer_register(&raw, &buffer, 1, slow.bytes, 0);
	for (int i = 0; i < n; ++i) {
		struct fa_wire_message message = fa_case_message(&slow, 1, 0, 0, (uint64_t)i + 1);

		message.timeout_ns = timeout_ns;
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	fa_raw_buffer_free(&raw, &buffer);
	send_register(2);
	/* Sent while the session is paused, and answered in order. */
	struct fa_wire_message ping = fa_raw_message(FA_WIRE_PING);

	ping.id = 77;
	fa_check_eq(fa_raw_send(&raw, &ping, NULL, 0), 0);
}

static void test_until_it_ends(void **state)
{
	uint64_t begin = fa_now_ns();

	start("buffers = 1");
	fa_raw_open(&other, daemon_.socket);
	register_in_use(1, 500 * FA_NS_PER_MS);
	fa_raw_ping(&other);
	fa_check(fa_now_ns() - begin < PROMPT_NS);
	expect_registered();
	fa_raw_expect_reply(&raw, 77, 0, NULL, false);
	fa_raw_close(&other);
	stop();
}

static void test_not_for_ever(void **state)
{
	uint64_t begin = fa_now_ns();

	start("buffers = 1");
	register_in_use(8, 20 * FA_NS_PER_SEC);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.type, FA_WIRE_REPLY);
	fa_check_eq(raw.message.id, 1002);
	fa_check_eq(raw.message.reply.status, -EDQUOT);
	fa_check(fa_now_ns() - begin >= 4 * FA_NS_PER_SEC);
	fa_raw_expect_reply(&raw, 77, 0, NULL, false);
	stop();
}

/* The session goes while its message is held. */
static void test_session_ends(void **state)
{
	struct fa_test_usage before, now;

	start("buffers = 1");
	fa_raw_open(&other, daemon_.socket);
	fa_raw_close(&raw);
	fa_raw_ping(&other);
	fa_test_daemon_usage(&daemon_, &before);
	fa_raw_open(&raw, daemon_.socket);
	register_in_use(1, 20 * FA_NS_PER_SEC);
	fa_raw_ping(&other);
	fa_raw_close(&raw);
	fa_check_eventually((fa_test_daemon_usage(&daemon_, &now), now.fds <= before.fds));
	fa_raw_ping(&other);
	fa_raw_close(&other);
	fa_test_daemon_stop(&daemon_);
}

/* A drain does not wait for held messages. */
static void test_drain(void **state)
{
	start("buffers = 1");
	register_in_use(1, 20 * FA_NS_PER_SEC);
	fa_raw_open(&other, daemon_.socket);
	fa_raw_ping(&other);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.id, 1002);
	fa_check_eq(raw.message.reply.status, -ESHUTDOWN);
	fa_raw_close(&raw);
	fa_raw_close(&other);
	fa_test_daemon_stop(&daemon_);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_buffers),      cmocka_unit_test(test_sessions),
		cmocka_unit_test(test_connections),  cmocka_unit_test(test_until_it_ends),
		cmocka_unit_test(test_not_for_ever), cmocka_unit_test(test_session_ends),
		cmocka_unit_test(test_drain),
	};

	return fa_test_run_at_once("hold", tests, NULL, NULL);
}
