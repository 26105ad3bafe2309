/*
 * Clients send files whose close() never returns, and the daemon is killed: its successor answers at once.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "tests/daemon/fuse-file.h"
#include "tests/daemon/lingering.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define ROUNDS 12
#define ROUNDS_LONG 200
/* Slow machines need time to start a daemon, but the file never closes. */
#define PROMPT_NS (10 * FA_NS_PER_SEC)

static struct fuse_file file;
static struct fa_test_daemon daemon_;

static int setup(void **state)
{
	lingering_start();
	if (fuse_file_start(&file))
		return 0;
	fprintf(stderr, "skipped: no file system can be mounted here (FUSE)\n");
	exit(77);
}

static int teardown(void **state)
{
	fuse_file_stop(&file);
	lingering_stop();
	return 0;
}

/* Each lingering connection takes megabytes. */
#define LINGERING_ROUNDS 8

struct sender {
	bool lingering; /* sends lingering connections, too */
	int done[2];    /* pipe */
};

/* Sends the file in several messages, is answered, and waits to be killed. */
static int run_sender(void *userdata)
{
	const struct sender *sender = userdata;
	struct fa_wire_message message = fa_raw_register_message(1, 4096);
	struct fa_wire_message ping = fa_raw_message(FA_WIRE_PING);
	struct fa_raw raw;
	int fds[8];

	fds[0] = open(file.path, O_RDWR | O_CLOEXEC);
	fa_check(fds[0] >= 0);
	for (int i = 1; i < 8; ++i)
		fds[i] = fds[0];
	fa_raw_open(&raw, daemon_.socket);
	fa_raw_call_expect(&raw, &message, fds, 1, -EINVAL, "not a memfd");
	fa_raw_call_expect(&raw, &ping, fds, 8, -EINVAL, "descriptors");
	for (int i = 0; sender->lingering && i < 4; ++i)
		fds[2 * i + 1] = i % 2 ? lingering_new() : lingering_new_wrapped();
	fa_raw_call_expect(&raw, &ping, fds, 8, -EINVAL, "descriptors");
	/* The daemon closes a connection with unread files, too. */
	fa_check_eq(fa_raw_send_bytes(&raw, "no message", 10, fds, 8, 0), 0);
	(void)fa_raw_send_bytes(&raw, "nor this", 8, fds, 8, MSG_DONTWAIT);
	fa_raw_receive_reply(&raw);
	fa_check_eq(write(sender->done[1], "x", 1), 1);
	for (;;)
		pause();
	return 0;
}

static pid_t send_file(bool with_lingering)
{
	struct sender sender = { .lingering = with_lingering };
	char byte;
	pid_t pid;

	fa_check(!pipe(sender.done));
	pid = fa_test_fork(run_sender, &sender);
	close(sender.done[1]);
	fa_check_eq(read(sender.done[0], &byte, 1), 1);
	close(sender.done[0]);
	return pid;
}

static void check_serves(void)
{
	struct fa_raw raw;
	struct fa_raw_buffer buffer;

	fa_raw_open(&raw, daemon_.socket);
	fa_raw_buffer_register(&raw, &buffer, 1, 65536, 0);
	fa_raw_buffer_free(&raw, &buffer);
	fa_raw_close(&raw);
}

static int compare(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void test_killed(void **state)
{
	static const char *const supervise[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = { .args = supervise };
	const int rounds = fa_test_long() ? ROUNDS_LONG : ROUNDS;
	uint64_t took_ns[ROUNDS_LONG];
	pid_t senders[ROUNDS_LONG], child;

	fa_test_daemon_start(&daemon_, &options);
	for (int i = 0; i < rounds; ++i) {
		uint64_t begin;

		senders[i] = send_file(i < LINGERING_ROUNDS);
		child = fa_test_daemon_child(&daemon_);
		fa_check(child > 0);
		begin = fa_now_ns();
		fa_check_eq(kill(child, SIGKILL), 0);
		(void)fa_test_daemon_next_child(&daemon_, child);
		check_serves();
		took_ns[i] = fa_now_ns() - begin;
	}
	qsort(took_ns, (size_t)rounds, sizeof(*took_ns), compare);
	printf("from SIGKILL to an answer: median %.1f ms, p99 %.1f ms, longest %.1f ms\n",
	       (double)took_ns[rounds / 2] / 1e6, (double)took_ns[rounds * 99 / 100] / 1e6,
	       (double)took_ns[rounds - 1] / 1e6);
	fa_check(took_ns[rounds - 1] < PROMPT_NS);
	fa_test_daemon_stop(&daemon_);
	for (int i = 0; i < rounds; ++i)
		fa_check_eq(kill(senders[i], SIGKILL), 0);
}

/* A daemon that is stopped by a signal, without a supervisor, ends in spite of such a file, too. */
static void test_stopped(void **state)
{
	uint64_t begin;
	pid_t sender;

	fa_test_daemon_start(&daemon_, NULL);
	sender = send_file(true);
	check_serves();
	begin = fa_now_ns();
	fa_test_daemon_stop(&daemon_);
	fa_check(fa_now_ns() - begin < PROMPT_NS);

	fa_test_daemon_start(&daemon_, NULL);
	fa_check_eq(kill(sender, SIGKILL), 0);
	sender = send_file(true);
	begin = fa_now_ns();
	fa_test_daemon_signal(&daemon_, SIGKILL);
	(void)fa_test_daemon_reap(&daemon_);
	fa_check(fa_now_ns() - begin < PROMPT_NS);
	fa_check_eq(kill(sender, SIGKILL), 0);
}

/* A zombie's files are closed. */
static bool is_zombie(pid_t pid)
{
	char path[32], state = 0;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	stat = fopen(path, "re");
	fa_check(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
	fclose(stat);
	return state == 'Z';
}

/* The process that receives descriptors is replaced when it dies, and nobody notices. */
static void test_filter_killed(void **state)
{
	struct fa_raw_buffer buffer;
	struct fa_raw raw;

	fa_test_daemon_start(&daemon_, NULL);
	fa_raw_open(&raw, daemon_.socket);
	for (int i = 0; i < 3; ++i) {
		pid_t filter = fa_test_daemon_child(&daemon_);

		fa_check(filter > 0 && !kill(filter, SIGKILL));
		fa_check_eventually(is_zombie(filter));
		fa_raw_buffer_register(&raw, &buffer, 1, 65536, 0);
		fa_raw_buffer_free(&raw, &buffer);
		(void)fa_test_daemon_next_child(&daemon_, filter);
	}
	fa_test_daemon_log_wait(&daemon_, "another is started");
	fa_raw_close(&raw);
	fa_test_daemon_stop(&daemon_);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_filter_killed),
	};

	return cmocka_run_group_tests_name("unreapable", tests, setup, teardown);
}
