/*
 * Descriptors whose close() blocks: lingering connections, hidden where the daemon closes them
 * unseen. Only their sender may have to wait.
 */
#include "common/cleanup.h"
#include "common/packet.h"
#include "tests/daemon/lingering.h"
#include "tests/lib/at_once.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* More than may be pending at once. */
#define QUEUED 40
#define ATTACKER_UID 61234
/* Far less than LINGERING_S, but enough for a slow machine. */
#define PROMPT_NS (20 * FA_NS_PER_SEC)

static struct fa_test_daemon daemon_;
static struct fa_raw bystander;

static int setup(void **state)
{
	lingering_start();
	return 0;
}

static int teardown(void **state)
{
	lingering_stop();
	return 0;
}

static int start(void **state)
{
	fa_test_daemon_start(&daemon_, NULL);
	fa_raw_open(&bystander, daemon_.socket);
	return 0;
}

static int stop(void **state)
{
	uint64_t begin = fa_now_ns();

	fa_raw_close(&bystander);
	fa_test_daemon_stop(&daemon_);
	fa_check(fa_now_ns() - begin < PROMPT_NS);
	return 0;
}

/* @socket then holds the last reference to @fd's file. */
static void send_away(int socket, int fd, size_t n_bytes)
{
	fa_check_eq(fa_packet_send(socket, "x", n_bytes, &fd, 1, 0), 0);
	close(fd);
}

static void expect_prompt(void)
{
	uint64_t begin = fa_now_ns();
	struct fa_raw_buffer buffer;

	for (int i = 0; i < 3; ++i) {
		fa_raw_ping(&bystander);
		fa_raw_buffer_register(&bystander, &buffer, 7, 65536, 0);
		fa_raw_buffer_free(&bystander, &buffer);
		fa_test_elapse_ms(50);
	}
	fa_check(fa_now_ns() - begin < PROMPT_NS);
}

static void expect_end(struct fa_raw *raw)
{
	uint64_t begin = fa_now_ns();

	fa_raw_expect_end(raw);
	fa_check(fa_now_ns() - begin < PROMPT_NS);
	fa_raw_close(raw);
}

static void test_behind_empty(void **state)
{
	struct fa_raw raw;
	int fd;

	fa_raw_open(&raw, daemon_.socket);
	fd = lingering_new_wrapped();
	fa_test_daemon_signal(&daemon_, SIGSTOP);
	fa_check_eq(fa_raw_send_bytes(&raw, "", 0, NULL, 0, 0), 0);
	send_away(raw.fd, lingering_new(), 1);
	send_away(raw.fd, fd, 1);
	fa_test_daemon_signal(&daemon_, SIGCONT);
	expect_prompt();
	expect_end(&raw);
}

static void test_behind_refusal(void **state)
{
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	fa_test_daemon_signal(&daemon_, SIGSTOP);
	fa_check_eq(fa_raw_send_bytes(&raw, "nonsense", 8, NULL, 0, 0), 0);
	fa_check_eq(fa_raw_send_bytes(&raw, "", 0, NULL, 0, 0), 0);
	send_away(raw.fd, lingering_new_wrapped(), 1);
	fa_test_daemon_signal(&daemon_, SIGCONT);
	fa_raw_expect_reply(&raw, 0, -EPROTO, "message", true);
	fa_raw_close(&raw);
	expect_prompt();
}

/* The reaper also closes surplus descriptors of a message. */
static void test_beyond_allowed(void **state)
{
	struct fa_raw raw;
	int fds[9];

	fa_raw_open(&raw, daemon_.socket);
	for (int i = 0; i < 8; ++i)
		fds[i] = dup(bystander.page_fd);
	fds[8] = lingering_new();
	fa_check_eq(fa_raw_send_bytes(&raw, "x", 1, fds, 9, 0), 0);
	for (int i = 0; i < 9; ++i)
		close(fds[i]);
	expect_prompt();
	fa_raw_expect_reply(&raw, 0, -EPROTO, "descriptors", true);
	fa_raw_close(&raw);
}

/* A stopping daemon closes the blocking descriptor last. */
static void test_at_exit(void **state)
{
	struct fa_raw raw;

	fa_raw_connect(&raw, daemon_.socket);
	expect_prompt();
	fa_test_daemon_signal(&daemon_, SIGSTOP);
	send_away(raw.fd, lingering_new_wrapped(), 0);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	fa_test_daemon_signal(&daemon_, SIGCONT);
	expect_end(&raw);
	fa_check_eq(fa_test_daemon_reap(&daemon_), 0);
}

static void test_in_queue(void **state)
{
	static struct fa_raw raws[QUEUED];

	fa_test_daemon_signal(&daemon_, SIGSTOP);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	for (int i = 0; i < QUEUED; ++i) {
		fa_raw_connect(&raws[i], daemon_.socket);
		send_away(raws[i].fd, lingering_new_wrapped(), 1);
	}
	fa_test_daemon_signal(&daemon_, SIGCONT);
	for (int i = 0; i < QUEUED; ++i) {
		uint64_t begin = fa_now_ns();

		/*
		 * The daemon may accept the first few before it sees the signal, and refuses them
		 * with a reason.
		 */
		while (fa_raw_receive(&raws[i], PROMPT_NS / FA_NS_PER_MS) == 1)
			fa_check_eq(raws[i].message.type, FA_WIRE_REPLY);
		fa_check(fa_now_ns() - begin < PROMPT_NS);
		fa_raw_close(&raws[i]);
	}
	fa_check_eq(fa_test_daemon_reap(&daemon_), 0);
}

/* More descriptors arrive behind one blocked close(): only their sender is paused. */
static void test_pile(void **state)
{
	struct fa_wire_message ping = fa_raw_message(FA_WIRE_PING);
	unsigned char bytes[FA_WIRE_BYTES_MAX + 64];
	struct fa_test_usage before, after;
	struct fa_raw raw;
	size_t length;
	int fds[8], r = 0, fd;

	fa_test_daemon_usage(&daemon_, &before);
	fa_raw_open(&raw, daemon_.socket);
	ping.id = 1;
	fd = lingering_new_wrapped();
	ping.fds = 1;
	length = fa_raw_encode(&ping, bytes);
	fa_test_daemon_signal(&daemon_, SIGSTOP);
	fa_check_eq(fa_raw_send_bytes(&raw, bytes, length, &fd, 1, 0), 0);
	close(fd);
	fa_test_daemon_signal(&daemon_, SIGCONT);
	fa_raw_expect_reply(&raw, 1, -EINVAL, "descriptors", false);
	for (int i = 0; i < 8; ++i)
		fds[i] = bystander.page_fd;
	ping.fds = 8;
	length = fa_raw_encode(&ping, bytes);
	for (int i = 0; i < 200 && (r == 0 || r == -EAGAIN); ++i) {
		r = fa_raw_send_bytes(&raw, bytes, length, fds, 8, MSG_DONTWAIT);
		if (r == -EAGAIN)
			fa_raw_ping(&bystander);
	}
	expect_prompt();
	fa_check_eventually((fa_test_daemon_usage(&daemon_, &after), after.fds >= before.fds + 32));
	fa_check(after.fds <= before.fds + 64 + 8 + 8);
	fa_raw_close(&raw);
	expect_prompt();
}

/* Descriptors of the daemon and of its filter, which is its child. */
static int count_fds(void)
{
	struct fa_test_usage usage;

	fa_test_daemon_usage(&daemon_, &usage);
	return usage.fds + fa_test_count_fds(fa_test_daemon_child(&daemon_));
}

/*
 * Blocking descriptors on ever new connections are bounded; connections without descriptors are
 * served.
 */
static void test_pile_anew(void **state)
{
	enum {
		N = 8
	};
	static struct fa_raw raws[N + 1];
	bool sent[N + 1] = { false };
	int fds[FA_PACKET_FDS_KERNEL_MAX], before, after, r;

	/* Descriptors have passed the filter, so it has all of its own. */
	expect_prompt();
	before = count_fds();
	fa_raw_open(&raws[0], daemon_.socket);
	fa_test_daemon_signal(&daemon_, SIGSTOP);
	send_away(raws[0].fd, lingering_new_wrapped(), 1);
	fa_test_daemon_signal(&daemon_, SIGCONT);
	fa_raw_expect_reply(&raws[0], 0, -EPROTO, "message", true);
	for (int i = 0; i < FA_PACKET_FDS_KERNEL_MAX; ++i)
		fds[i] = bystander.fd;
	for (int i = 1; i <= N; ++i) {
		fa_raw_open(&raws[i], daemon_.socket);
		r = fa_raw_send_bytes(&raws[i], "x", 1, fds, FA_PACKET_FDS_KERNEL_MAX, 0);
		fa_check(r == 0 || r == -ETOOMANYREFS);
		sent[i] = r == 0;
		fa_raw_ping(&bystander);
	}
	after = count_fds();
	fa_check(after >= before + FA_PACKET_FDS_KERNEL_MAX);
	fa_check(after <= before + 128 + FA_PACKET_FDS_KERNEL_MAX + 4 * N + 8);

	teardown(NULL);
	setup(NULL);
	for (int i = 0; i <= N; ++i) {
		if (sent[i])
			fa_raw_expect_reply(&raws[i], 0, -EPROTO, "descriptors", true);
		fa_raw_close(&raws[i]);
	}
	fa_check_eventually(count_fds() <= before);
}

static bool is_answered(void)
{
	struct fa_raw raw;
	bool answered;

	fa_raw_connect(&raw, daemon_.socket);
	answered = fa_raw_receive(&raw, PROMPT_NS / FA_NS_PER_MS) == 1;
	if (answered)
		fa_check_eq(raw.message.reply.status, -EDQUOT);
	fa_raw_close(&raw);
	return answered;
}

static void connect_as_attacker(struct fa_raw *raw)
{
	fa_check_eq(seteuid(ATTACKER_UID), 0);
	fa_raw_connect(raw, daemon_.socket);
	fa_check_eq(seteuid(0), 0);
}

/*
 * Refused connections whose close() would block for long are closed soon, even if a session of the
 * user has a blocked descriptor: others are answered all the time.
 */
static void test_turned_away(void **state)
{
	static struct fa_raw session, raws[200];
	struct fa_wire_message ping = fa_raw_message(FA_WIRE_PING);
	unsigned char bytes[FA_WIRE_BYTES_MAX + 64];
	struct fa_test_usage before, after;
	size_t length;
	int fd;

	if (geteuid())
		skip();
	fa_raw_close(&bystander);
	fa_test_daemon_stop(&daemon_);
	fa_test_daemon_start(
		&daemon_, &(struct fa_test_daemon_options){ .config = "[daemon]\nmode = 0666\n"
	                                                              "[limits]\nconnections = 2\n",
	                                                    .everyone = true });
	fa_raw_open(&bystander, daemon_.socket);
	connect_as_attacker(&session);
	fa_raw_hello(&session);
	fd = lingering_new_wrapped();
	ping.id = 1;
	ping.fds = 1;
	length = fa_raw_encode(&ping, bytes);
	/* Stopped, so that the daemon has the last reference. */
	fa_test_daemon_signal(&daemon_, SIGSTOP);
	fa_check_eq(fa_raw_send_bytes(&session, bytes, length, &fd, 1, 0), 0);
	close(fd);
	fa_test_daemon_signal(&daemon_, SIGCONT);
	fa_raw_expect_reply(&session, 1, -EINVAL, "descriptors", false);
	fa_test_daemon_usage(&daemon_, &before);
	fa_check(is_answered());

	/* Stopped, so that the descriptors come before the refusal. */
	fa_test_daemon_signal(&daemon_, SIGSTOP);
	for (int i = 0; i < 200; ++i) {
		connect_as_attacker(&raws[i]);
		for (int j = 0; j < (i ? 1 : 40); ++j)
			send_away(raws[i].fd, lingering_new_wrapped(), 1);
	}
	fa_test_daemon_signal(&daemon_, SIGCONT);
	/* The backlog is a queue, so this connection is behind the attacker's. */
	for (int i = 0; i < 20; ++i)
		fa_check(is_answered());
	expect_prompt();
	fa_check_eventually((fa_test_daemon_usage(&daemon_, &after), after.fds <= before.fds));

	teardown(NULL);
	setup(NULL);
	fa_raw_close(&session);
	for (int i = 0; i < 200; ++i)
		fa_raw_close(&raws[i]);
	fa_check_eventually((fa_test_daemon_usage(&daemon_, &after), after.fds <= before.fds));
}

/* Lingering without blocking pauses nobody. */
static void test_lingering(void **state)
{
	struct fa_wire_message ping = fa_raw_message(FA_WIRE_PING);
	struct fa_test_usage before, now;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	fa_test_daemon_usage(&daemon_, &before);
	for (int i = 0; i < 10; ++i) {
		int fds[8], fd = lingering_new();

		for (int j = 0; j < 8; ++j)
			fds[j] = fd;
		fa_raw_call_expect(&raw, &ping, fds, 8, -EINVAL, "descriptors");
		close(fd);
	}
	fa_raw_ping(&raw);
	fa_check_eventually((fa_test_daemon_usage(&daemon_, &now), now.fds <= before.fds));
	fa_raw_close(&raw);
}

#define test(function) cmocka_unit_test_setup_teardown(function, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_behind_empty), test(test_behind_refusal), test(test_beyond_allowed),
		test(test_at_exit),      test(test_in_queue),       test(test_pile),
		test(test_pile_anew),    test(test_lingering),      test(test_turned_away),
	};

	return fa_test_run_at_once("close", tests, setup, teardown);
}
