/*
 * Clients that send much and read nothing, stop in the middle, or come and go by the thousand. The
 * daemon's memory, descriptors and CPU time stay bounded, others are served, and no answer is lost.
 */
#include "common/cleanup.h"
#include "tests/lib/at_once.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MEASURED_MS 300

static struct fa_scene scene;

static int start(void **state)
{
	fa_scene_start(&scene, NULL);
	return 0;
}

static int stop(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

/* Up to @n messages, until the socket takes nothing for a while. */
static uint64_t send_all(struct fa_raw *raw, void (*make)(uint64_t n, struct fa_wire_message *ret),
                         uint64_t n)
{
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	uint64_t sent;

	for (sent = 0; sent < n; ++sent) {
		struct fa_wire_message message;
		size_t length;
		int r = -EAGAIN;

		make(sent + 1, &message);
		length = fa_raw_encode(&message, bytes);
		for (int i = 0; i < 100; ++i) {
			r = fa_raw_send_bytes(raw, bytes, length, NULL, 0, MSG_DONTWAIT);
			if (r != -EAGAIN)
				break;
			fa_test_quiet_ms(3);
		}
		if (r == -EAGAIN)
			break;
		fa_check_eq(r, 0);
	}
	return sent;
}

/* Beside a stuck client others are served and the daemon does not spin. */
static void check_others_served(const struct fa_test_usage *before, uint64_t more_bytes)
{
	struct fa_test_usage a, b;

	fa_scene_bystander(&scene);
	fa_test_daemon_usage(&scene.daemon, &a);
	fa_test_elapse_ms(MEASURED_MS);
	fa_test_daemon_usage(&scene.daemon, &b);
	if (b.cpu_ns - a.cpu_ns > 3 * MEASURED_MS * FA_NS_PER_MS / 10)
		fa_test_fail(__FILE__, __LINE__, "an idle daemon took %llu ms in %d ms",
		             (unsigned long long)((b.cpu_ns - a.cpu_ns) / FA_NS_PER_MS),
		             MEASURED_MS);
	if (!fa_test_sanitized() && b.rss_bytes > before->rss_bytes + more_bytes)
		fa_test_fail(__FILE__, __LINE__, "the daemon grew by %llu KiB",
		             (unsigned long long)((b.rss_bytes - before->rss_bytes) >> 10));
}

static void make_ping(uint64_t n, struct fa_wire_message *ret_message)
{
	*ret_message = fa_raw_message(FA_WIRE_PING);
	ret_message->id = n;
}

static void test_pings_unread(void **state)
{
	struct fa_test_usage before;
	struct fa_raw raw;
	uint64_t sent;

	fa_test_daemon_usage(&scene.daemon, &before);
	fa_raw_open(&raw, scene.daemon.socket);
	sent = send_all(&raw, make_ping, 1000000);
	fa_check(sent > 200 && sent < 1000000);
	check_others_served(&before, 24 << 20);
	for (uint64_t i = 1; i <= sent; ++i)
		fa_raw_expect_reply(&raw, i, 0, NULL, false);
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static struct fa_case small;

static void make_attention(uint64_t n, struct fa_wire_message *ret_message)
{
	*ret_message = fa_case_message(&small, 1, 0, 0, n);
}

static void test_attention_unread(void **state)
{
	struct fa_test_usage before;
	struct fa_raw_buffer buffer;
	struct fa_raw raw;
	uint64_t sent, n_refused = 0;

	fa_test_daemon_usage(&scene.daemon, &before);
	small = (struct fa_case){ .head_dim = 8, .seqlen_q = 2 };
	fa_case_plan(&small);
	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_buffer_register(&raw, &buffer, 1, small.bytes, 0);
	fa_case_fill(&small, buffer.data);
	sent = send_all(&raw, make_attention, 1000000);
	fa_check(sent > 200 && sent < 1000000);
	check_others_served(&before, 24 << 20);
	for (uint64_t i = 1; i <= sent; ++i) {
		fa_check_eq(fa_raw_receive(&raw, 60000), 1);
		fa_check_eq(raw.message.type, FA_WIRE_COMPLETION);
		fa_check_eq(raw.message.completion.value, i);
		fa_check_eq(raw.message.id, i);
		if (raw.message.completion.status)
			fa_check_eq(raw.message.completion.status, -EDQUOT);
		n_refused += raw.message.completion.status != 0;
	}
	fa_check(n_refused < sent);
	fa_check_eq(raw.page[0].completed, sent);
	fa_check(fa_case_error(&small, buffer.data) <= 1);
	fa_raw_close(&raw);
	fa_raw_buffer_free(NULL, &buffer);
	fa_scene_check(&scene);
}

static void make_status(uint64_t n, struct fa_wire_message *ret_message)
{
	*ret_message = fa_raw_message(FA_WIRE_STATUS);
	ret_message->id = n;
}

static void test_status_unread(void **state)
{
	struct fa_test_usage before;
	struct fa_raw raw;
	uint64_t sent;

	fa_test_daemon_usage(&scene.daemon, &before);
	fa_raw_open(&raw, scene.daemon.socket);
	sent = send_all(&raw, make_status, 20000);
	fa_check(sent > 10);
	fa_scene_bystander(&scene);
	for (uint64_t i = 1; i <= sent; ++i) {
		fa_raw_receive_reply(&raw);
		fa_check_eq(raw.message.id, i);
		if (raw.message.type != FA_WIRE_STATUS_REPLY)
			fa_check_eq(raw.message.reply.status, -EDQUOT);
	}
	fa_raw_close(&raw);
	fa_scene_check(&scene);

	fa_raw_open(&raw, scene.daemon.socket);
	send_all(&raw, make_status, 2000);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_many_unread(void **state)
{
	struct fa_raw *raws = test_calloc(16, sizeof(*raws));
	struct fa_test_usage before;

	fa_test_daemon_usage(&scene.daemon, &before);
	for (int i = 0; i < 16; ++i)
		fa_raw_open(&raws[i], scene.daemon.socket);
	for (int i = 0; i < 16; ++i)
		send_all(&raws[i], i % 2 ? make_ping : make_status, 3000);
	fa_scene_bystander(&scene);
	if (!fa_test_sanitized()) {
		struct fa_test_usage after;

		fa_test_daemon_usage(&scene.daemon, &after);
		fa_check(after.rss_bytes < before.rss_bytes + (64 << 20));
	}
	for (int i = 0; i < 16; ++i)
		fa_raw_close(&raws[i]);
	test_free(raws);
	fa_scene_check(&scene);
}

/* Without Hello a client is disconnected after a while. */
static void test_silent(void **state)
{
	uint64_t start = fa_now_ns();
	struct fa_raw raw;

	fa_raw_connect(&raw, scene.daemon.socket);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.type, FA_WIRE_REPLY);
	fa_check_eq(raw.message.reply.status, -ETIMEDOUT);
	fa_check_contains(raw.message.reply.text.text, "Hello");
	fa_raw_expect_end(&raw);
	fa_check(fa_now_ns() - start >= FA_NS_PER_SEC);
	fa_raw_close(&raw);
	fa_scene_check(&scene);

	fa_raw_ping(&scene.bystander);
}

static int stop_in_handshake(void *userdata)
{
	struct fa_wire_message hello = fa_raw_hello_message("stopped");
	static struct fa_raw raw;

	fa_raw_connect(&raw, scene.daemon.socket);
	fa_check_eq(fa_raw_send(&raw, &hello, NULL, 0), 0);
	raise(SIGSTOP);
	return 0;
}

static int stop_in_work(void *userdata)
{
	struct fa_case slow = fa_case_slow();
	static struct fa_raw raw;
	struct fa_raw_buffer buffer;

	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_buffer_register(&raw, &buffer, 1, slow.bytes, 0);
	for (uint64_t value = 1; value <= 10; ++value) {
		struct fa_wire_message message = fa_case_message(&slow, 1, 0, 0, value);

		message.timeout_ns = 300 * FA_NS_PER_MS;
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	for (uint64_t i = 0; i < 50; ++i) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_STATUS);

		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	raise(SIGSTOP);
	for (uint64_t value = 1; value <= 10; ++value) {
		if (fa_raw_receive(&raw, 60000) != 1)
			return 1;
		if (raw.message.type != FA_WIRE_COMPLETION)
			--value;
	}
	fa_raw_close(&raw);
	return 0;
}

static void check_stopped(int (*client)(void *), bool go_on)
{
	pid_t pid = fa_test_fork(client, NULL);
	int status;

	fa_check_eq(waitpid(pid, &status, WUNTRACED), pid);
	fa_check(WIFSTOPPED(status));
	for (int i = 0; i < 5; ++i) {
		fa_scene_bystander(&scene);
		fa_test_quiet_ms(50);
	}
	fa_check(!kill(pid, go_on ? SIGCONT : SIGKILL));
	status = fa_test_reap(pid);
	if (go_on)
		fa_check_eq(status, 0);
	fa_scene_check(&scene);
}

static void test_stopped(void **state)
{
	check_stopped(stop_in_handshake, true);
	check_stopped(stop_in_handshake, false);
	check_stopped(stop_in_work, true);
	check_stopped(stop_in_work, false);
}

static void test_connects(void **state)
{
	const int n = fa_test_sanitized() && !fa_test_long() ? 2000 : 10000;
	struct fa_test_usage usage;
	struct fa_raw raw;
	int most = 0;

	for (int i = 0; i < n; ++i) {
		fa_raw_connect(&raw, scene.daemon.socket);
		switch (i % 4) {
		case 0:
			break;
		case 1: {
			struct fa_wire_message hello = fa_raw_hello_message("passing by");

			(void)fa_raw_send(&raw, &hello, NULL, 0);
			break;
		}
		case 2:
			shutdown(raw.fd, SHUT_WR);
			break;
		default:
			fa_raw_hello(&raw);
			break;
		}
		fa_raw_close(&raw);
		if (i % 100 == 0) {
			fa_test_daemon_usage(&scene.daemon, &usage);
			if (usage.fds > most)
				most = usage.fds;
		}
		if (i % 1000 == 0)
			fa_scene_bystander(&scene);
	}
	fa_scene_check(&scene);
	fa_check(most < scene.usage.fds + 1000);
}

static void test_no_descriptors(void **state)
{
	enum {
		N = 150
	};
	struct fa_raw *raws = test_calloc(N, sizeof(*raws));
	int n_welcome = 0;

	fa_scene_start(&scene, &(struct fa_test_daemon_options){ .nofile = 96 });
	for (int i = 0; i < N; ++i)
		fa_raw_connect(&raws[i], scene.daemon.socket);
	for (int i = 0; i < N; ++i) {
		struct fa_wire_message hello = fa_raw_hello_message("crowd");

		hello.id = 1;
		(void)fa_raw_send(&raws[i], &hello, NULL, 0);
	}
	for (int i = 0; i < 10; ++i) {
		struct fa_wire_message ping = fa_raw_message(FA_WIRE_PING);

		/* The ping is answered, even if no status can be made now. */
		fa_raw_call_expect(&scene.bystander, &ping, NULL, 0, 0, NULL);
	}
	check_others_served(&scene.usage, 24 << 20);
	for (int i = 0; i < N; ++i)
		if (fa_raw_receive(&raws[i], 0) == 1 && raws[i].message.type == FA_WIRE_HELLO_REPLY)
			n_welcome++;
	fa_check(n_welcome >= 10 && n_welcome < N);
	for (int i = 0; i < N; ++i)
		fa_raw_close(&raws[i]);
	test_free(raws);
	fa_scene_check(&scene);

	{
		struct fa_raw raw;

		fa_raw_open(&raw, scene.daemon.socket);
		fa_raw_ping(&raw);
		fa_raw_close(&raw);
	}
	fa_scene_check(&scene);
}

#define test(function) cmocka_unit_test_setup_teardown(function, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_pings_unread),  test(test_attention_unread),
		test(test_status_unread), test(test_many_unread),
		test(test_silent),        test(test_stopped),
		test(test_connects),      cmocka_unit_test_teardown(test_no_descriptors, stop),
	};

	return fa_test_run_at_once("flood", tests, NULL, NULL);
}
