/*
 * The supervisor kills a daemon that hangs, and the next one has the KV cache. A daemon that
 * sleeps, computes for long, waits for a client, or was suspended with its supervisor is left
 * alone.
 */
#include "common/clock.h"
#include "common/timeline.h"
#include "kv-client.h"
#include "tests/lib/at_once.h"
#include "tests/lib/attention.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

enum {
	TOKENS = 100,
	LONG = 16,
};

static struct fa_test_daemon supervisor;
static struct kv_client client;
static pid_t child;
static unsigned int interval_ms;

static int start(void **state)
{
	static const char *const args[] = { "--supervise", "--threads", "1", NULL };
	char usec[24];

	interval_ms = fa_test_sanitized() ? 4000 : 2000;
	snprintf(usec, sizeof(usec), "%u000", interval_ms);
	setenv("WATCHDOG_USEC", usec, 1);
	fa_test_daemon_start(&supervisor, &(struct fa_test_daemon_options){
						  .args = args, .config = "[pool]\nbytes = 4M\n" });
	child = fa_test_daemon_next_child(&supervisor, 0);
	kv_open(&client, supervisor.socket);
	return 0;
}

static int stop(void **state)
{
	kv_close(&client);
	fa_test_daemon_stop(&supervisor);
	unsetenv("WATCHDOG_USEC");
	return 0;
}

static void come_back(void)
{
	const struct fa_wire_secret secret = client.raw.secret;
	const uint64_t generation = client.raw.generation;

	kv_close(&client);
	kv_open_resumed(&client, supervisor.socket, &secret, generation);
	fa_check(client.raw.message.hello_reply.resumed);
	kv_open_buffer(&client);
}

static void check_left_alone(unsigned int intervals)
{
	for (unsigned int i = 0; i < 10 * intervals; i++) {
		fa_test_quiet_ms(interval_ms / 10);
		fa_check_eq(fa_test_daemon_child(&supervisor), child);
	}
}

static void test_hangs(void **state)
{
	const uint64_t sequence = kv_sequence(&client, kv_cache(&client, NULL, 0));
	uint32_t numbers[2 * TOKENS];
	uint64_t stopped_ns;

	kv_count(numbers, 1, 2 * TOKENS);
	kv_append(&client, sequence, numbers, 0, TOKENS);
	for (int i = 0; i < 2; i++) {
		kill(child, SIGSTOP);
		stopped_ns = fa_now_ns();
		child = fa_test_daemon_next_child(&supervisor, child);
		/*
		 * Heartbeat, check, SIGABRT and SIGKILL take half an interval at least, four at
		 * most.
		 */
		fa_check(fa_now_ns() - stopped_ns > interval_ms * FA_NS_PER_MS / 2);
		fa_check(fa_now_ns() - stopped_ns < 4 * interval_ms * FA_NS_PER_MS);
		fa_test_daemon_log_wait(&supervisor, "hangs: nothing was heard of it");
		fa_test_daemon_log_wait(&supervisor, "was killed by signal 9; starting it again");
		come_back();
		kv_check(&client, sequence, numbers, 0, TOKENS);
	}
	kv_append(&client, sequence, numbers, TOKENS, TOKENS);
	kv_check(&client, sequence, numbers, 0, 2 * TOKENS);
	check_left_alone(1);
}

static void test_idle(void **state)
{
	check_left_alone(3);
}

/* More work than fits the interval, and a request behind a closed gate. */
static void test_busy(void **state)
{
	struct fa_wire_message setup = fa_raw_message(FA_WIRE_TIMELINE_SETUP), message;
	const struct fa_wire_gate never = { .slot = 1, .value = 1 };
	struct fa_case attention = { .heads = 16, .head_dim = 128, .seqlen_q = 4096 };
	struct fa_raw_buffer buffer;
	struct fa_raw raw;

	fa_raw_open(&raw, supervisor.socket);
	fa_case_plan(&attention);
	fa_raw_buffer_register(&raw, &buffer, 1, attention.bytes, 0);
	fa_raw_call(&raw, &setup, NULL, 0);
	fa_check_eq(raw.message.type, FA_WIRE_TIMELINE_REPLY);
	fa_raw_stream_create(&raw, 1, 0);
	for (uint64_t i = 1; i <= LONG; i++) {
		message = fa_case_message(&attention, 1, 0, 0, i);
		message.id = ++raw.next_id;
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	message = fa_case_message(&attention, 1, 0, 1, 1);
	message.id = ++raw.next_id;
	message.waits = &never;
	message.n_waits = 1;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	check_left_alone(3);
	fa_raw_close(&raw);
	fa_raw_buffer_free(NULL, &buffer);
}

/* Both processes stop, as in a suspended machine: that time does not count. */
static void test_suspended(void **state)
{
	for (int i = 0; i < 2; i++) {
		fa_test_daemon_signal(&supervisor, SIGSTOP);
		kill(child, SIGSTOP);
		fa_test_elapse_ms(interval_ms * 3 / 2);
		fa_test_daemon_signal(&supervisor, SIGCONT);
		fa_test_elapse_ms(interval_ms / 4);
		kill(child, SIGCONT);
		check_left_alone(1);
	}
}

/* A daemon that does not read the supervisor's messages delays nothing, and is sent one at most. */
static void test_unread(void **state)
{
	kv_cache(&client, NULL, 0);
	fa_test_daemon_signal(&supervisor, SIGSTOP);
	/* Four messages per interval; the queue holds about ten. */
	for (int i = 0; i < 32; i++) {
		fa_test_elapse_ms(interval_ms / 10);
		fa_raw_ping(&client.raw);
	}
	fa_test_daemon_signal(&supervisor, SIGCONT);
	check_left_alone(1);
}

static void test_off(void **state)
{
	kv_close(&client);
	fa_test_daemon_stop(&supervisor);
	setenv("WATCHDOG_USEC", "0", 1);
	fa_test_daemon_start(&supervisor,
	                     &(struct fa_test_daemon_options){
				     .args = (const char *const[]){ "--supervise", NULL } });
	child = fa_test_daemon_next_child(&supervisor, 0);
	kill(child, SIGSTOP);
	check_left_alone(2);
	kill(child, SIGCONT);
	kv_open(&client, supervisor.socket);
}

/* The supervisor reports to its own watchdog, whatever its child does. */
static void test_supervisor_is_watched(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char name[64], text[256];
	uint64_t until_ns;
	int fd, length, n = 0;

	kv_close(&client);
	fa_test_daemon_stop(&supervisor);
	length = snprintf(name, sizeof(name), "@fad-test-watchdog-%ld", (long)getpid());
	memcpy(address.sun_path + 1, name + 1, (size_t)length - 1);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	fa_check(!bind(fd, (struct sockaddr *)&address,
	               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length)));
	setenv("NOTIFY_SOCKET", name, 1);
	start(NULL);
	unsetenv("NOTIFY_SOCKET");
	kill(child, SIGSTOP);
	until_ns = fa_now_ns() + 4 * interval_ms * FA_NS_PER_MS;
	for (uint64_t now_ns; (now_ns = fa_now_ns()) < until_ns;) {
		struct pollfd pollfd = { .fd = fd, .events = POLLIN };
		ssize_t bytes;

		if (poll(&pollfd, 1, (int)((until_ns - now_ns) / FA_NS_PER_MS) + 1) == 0)
			break;
		bytes = recv(fd, text, sizeof(text) - 1, 0);
		fa_check(bytes >= 0);
		text[bytes] = '\0';
		n += !strcmp(text, "WATCHDOG=1");
	}
	/* Four times an interval, on a busy machine three times. */
	fa_check(n >= 8 && n <= 17);
	fa_check(fa_test_daemon_next_child(&supervisor, child) > 0);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_hangs, start, stop),
		cmocka_unit_test_setup_teardown(test_idle, start, stop),
		cmocka_unit_test_setup_teardown(test_busy, start, stop),
		cmocka_unit_test_setup_teardown(test_suspended, start, stop),
		cmocka_unit_test_setup_teardown(test_unread, start, stop),
		cmocka_unit_test_setup_teardown(test_off, start, stop),
		cmocka_unit_test_setup_teardown(test_supervisor_is_watched, start, stop),
	};

	return fa_test_run_at_once("watchdog", tests, NULL, NULL);
}
