/* Packets with descriptors: what is sent arrives, and refusals leak nothing. */
#include "common/cleanup.h"
#include "common/packet.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

static int ends[2] = { -1, -1 };
static unsigned n_open_before;

static unsigned count_fds(void)
{
	struct dirent *entry;
	unsigned n = 0;
	DIR *dir;

	dir = opendir("/proc/self/fd");
	assert_non_null(dir);
	while ((entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	(void)closedir(dir);
	return n;
}

static int set_up(void **state)
{
	n_open_before = count_fds();
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends);
}

static int tear_down(void **state)
{
	fa_close_fdp(&ends[0]);
	fa_close_fdp(&ends[1]);
	return count_fds() == n_open_before ? 0 : -1;
}

/* As other programs may call sendmsg(): any number of descriptors, in several control messages. */
static void send_raw(size_t n_bytes, const int *fds, size_t n_fds)
{
	static unsigned char bytes[65536];
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(253 * sizeof(int))];
	} control = {};
	struct iovec iov = { .iov_base = bytes, .iov_len = n_bytes };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n_fds) {
		struct cmsghdr *cmsg;

		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	assert_int_equal(sendmsg(ends[0], &msg, MSG_NOSIGNAL), n_bytes);
}

static ssize_t receive(char *buffer, size_t size, int *fds, size_t *ret_n_fds)
{
	for (size_t i = 0; i < FA_PACKET_FDS_MAX; ++i)
		fds[i] = -1;
	return fa_packet_receive(ends[1], buffer, size, fds, ret_n_fds, 0);
}

static bool is_same_file(int a, int b)
{
	struct stat stat_a, stat_b;

	assert_int_equal(fstat(a, &stat_a), 0);
	assert_int_equal(fstat(b, &stat_b), 0);
	return stat_a.st_dev == stat_b.st_dev && stat_a.st_ino == stat_b.st_ino;
}

static void test_bytes(void **state)
{
	int fds[FA_PACKET_FDS_MAX];
	size_t n_fds = 77;
	char buffer[16];

	assert_int_equal(fa_packet_send(ends[0], "one", 3, NULL, 0, 0), 0);
	assert_int_equal(fa_packet_send(ends[0], "three", 5, NULL, 0, 0), 0);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 3);
	assert_int_equal(n_fds, 0);
	assert_memory_equal(buffer, "one", 3);
	assert_int_equal(receive(buffer, 5, fds, &n_fds), 5);
	assert_memory_equal(buffer, "three", 5);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), -EAGAIN);
}

/* Closing with unread input resets the socket; what was sent before arrives. */
static void test_reset(void **state)
{
	int fds[FA_PACKET_FDS_MAX];
	size_t n_fds = 77;
	char buffer[16];

	assert_int_equal(fa_packet_send(ends[0], "one", 3, NULL, 0, 0), 0);
	assert_int_equal(fa_packet_send(ends[0], "three", 5, NULL, 0, 0), 0);
	assert_int_equal(fa_packet_send(ends[1], "unread", 6, NULL, 0, 0), 0);
	fa_close_fdp(&ends[0]);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 3);
	assert_memory_equal(buffer, "one", 3);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 5);
	assert_memory_equal(buffer, "three", 5);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 0);
	assert_int_equal(n_fds, 0);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 0);
}

/* A packet stays until it is dropped, even if the socket was reset meanwhile. */
static void test_peek_and_drop(void **state)
{
	const int fd = ends[1];
	char buffer[16];
	bool has_fds;

	assert_int_equal(fa_packet_peek(ends[1], buffer, sizeof(buffer), &has_fds), -EAGAIN);
	assert_int_equal(fa_packet_drop(ends[1]), -EAGAIN);
	assert_int_equal(fa_packet_send(ends[0], "one", 3, NULL, 0, 0), 0);
	assert_int_equal(fa_packet_send(ends[0], "four", 4, &fd, 1, 0), 0);
	assert_int_equal(fa_packet_send(ends[0], "seventeen letters", 17, NULL, 0, 0), 0);
	for (int i = 0; i < 2; ++i) {
		assert_int_equal(fa_packet_peek(ends[1], buffer, sizeof(buffer), &has_fds), 3);
		assert_memory_equal(buffer, "one", 3);
		assert_false(has_fds);
	}
	assert_int_equal(fa_packet_send(ends[1], "unread", 6, NULL, 0, 0), 0);
	fa_close_fdp(&ends[0]);
	assert_int_equal(fa_packet_drop(ends[1]), 0);
	assert_int_equal(fa_packet_peek(ends[1], buffer, sizeof(buffer), &has_fds), 4);
	assert_memory_equal(buffer, "four", 4);
	assert_true(has_fds);
	assert_int_equal(fa_packet_drop(ends[1]), 0);
	assert_int_equal(fa_packet_peek(ends[1], buffer, sizeof(buffer), &has_fds), -EMSGSIZE);
	assert_int_equal(fa_packet_drop(ends[1]), 0);
	assert_int_equal(fa_packet_peek(ends[1], buffer, sizeof(buffer), &has_fds), 0);
}

static void test_descriptors(void **state)
{
	for (size_t n = 1; n <= FA_PACKET_FDS_MAX; ++n) {
		int sent[FA_PACKET_FDS_MAX], fds[FA_PACKET_FDS_MAX];
		size_t n_fds = 0;
		char buffer[16];

		for (size_t i = 0; i < n; ++i) {
			int pipe_ends[2];

			assert_int_equal(pipe2(pipe_ends, O_CLOEXEC), 0);
			close(pipe_ends[1]);
			sent[i] = pipe_ends[0];
		}
		assert_int_equal(fa_packet_send(ends[0], "x", 1, sent, n, 0), 0);
		assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 1);
		assert_int_equal(n_fds, n);
		for (size_t i = 0; i < n; ++i) {
			assert_true(is_same_file(sent[i], fds[i])); /* order is kept */
			assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
		}
		fa_packet_close_fds(fds, n_fds);
		assert_int_equal(fds[0], -1);
		fa_packet_close_fds(sent, n);
	}
}

static void test_too_many_descriptors(void **state)
{
	static const size_t counts[] = { FA_PACKET_FDS_MAX + 1, 100, 253 };
	int sent[253], fds[FA_PACKET_FDS_MAX];
	size_t n_fds;
	char buffer[16];

	for (size_t i = 0; i < 253; ++i)
		sent[i] = ends[0];
	assert_int_equal(fa_packet_send(ends[0], "x", 1, sent, FA_PACKET_FDS_MAX + 1, 0), -E2BIG);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); ++i) {
		unsigned n_open = count_fds();

		send_raw(1, sent, counts[i]);
		n_fds = 77;
		assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), -E2BIG);
		assert_int_equal(n_fds, 0);
		assert_int_equal(count_fds(), n_open);
	}
	/* the socket still works */
	assert_int_equal(fa_packet_send(ends[0], "y", 1, NULL, 0, 0), 0);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 1);
	assert_int_equal(buffer[0], 'y');
}

static void test_no_room_for_descriptors(void **state)
{
	int sent[4] = { ends[0], ends[0], ends[0], ends[0] }, fds[FA_PACKET_FDS_MAX];
	struct rlimit limit, low;
	unsigned n_open = count_fds();
	size_t n_fds;
	char buffer[16];
	int next;

	/* Two numbers below the limit are free, but four descriptors arrive. */
	next = dup(ends[0]);
	assert_true(next >= 0);
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(fa_packet_send(ends[0], "x", 1, sent, 4, 0), 0);
	low = limit;
	low.rlim_cur = (rlim_t)next + 2;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	n_fds = 77;
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(n_fds, 0);
	assert_int_equal(count_fds(), n_open);
}

static void test_too_long(void **state)
{
	int sent[2] = { ends[0], ends[1] }, fds[FA_PACKET_FDS_MAX];
	unsigned n_open = count_fds();
	size_t n_fds = 77;
	char buffer[16];

	send_raw(17, sent, 2);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), -EMSGSIZE);
	assert_int_equal(n_fds, 0);
	assert_int_equal(count_fds(), n_open);
	send_raw(65536, sent, 2);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), -EMSGSIZE);
	assert_int_equal(count_fds(), n_open);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), -EAGAIN);
}

static void test_empty_packet(void **state)
{
	unsigned n_open = count_fds();
	int fds[FA_PACKET_FDS_MAX];
	size_t n_fds = 77;
	char buffer[16];

	send_raw(0, ends, 2);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 0);
	assert_int_equal(n_fds, 0);
	assert_int_equal(count_fds(), n_open);
}

static void test_full_and_gone(void **state)
{
	static const char bytes[4096];
	int fds[FA_PACKET_FDS_MAX], lone = ends[0];
	unsigned n_open = count_fds();
	unsigned n_sent = 0, n_received = 0;
	char buffer[4096];
	size_t n_fds;
	int r;

	while (!(r = fa_packet_send(ends[0], bytes, sizeof(bytes), &lone, 1, 0)) && n_sent < 100000)
		++n_sent;
	/* full of bytes, or (ETOOMANYREFS) of descriptors in flight */
	assert_true(r == -EAGAIN || r == -ETOOMANYREFS);
	assert_true(n_sent > 0);
	while (receive(buffer, sizeof(buffer), fds, &n_fds) > 0) {
		++n_received;
		assert_int_equal(n_fds, 1);
		fa_packet_close_fds(fds, n_fds);
	}
	assert_int_equal(n_received, n_sent);
	assert_int_equal(count_fds(), n_open);

	assert_int_equal(fa_packet_send(ends[0], "last", 4, NULL, 0, 0), 0);
	fa_close_fdp(&ends[0]);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 4);
	assert_int_equal(receive(buffer, sizeof(buffer), fds, &n_fds), 0);
	(void)signal(SIGPIPE, SIG_DFL);
	assert_int_equal(fa_packet_send(ends[1], "x", 1, NULL, 0, 0), -EPIPE);
}

static void test_close_skips_none(void **state)
{
	int fds[3] = { -1, dup(ends[0]), -1 };

	fa_packet_close_fds(fds, 3);
	assert_int_equal(fds[1], -1);
	fa_packet_close_fds(fds, 3);
	fa_packet_close_fds(NULL, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_bytes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_reset, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_peek_and_drop, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_descriptors, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_too_many_descriptors, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_room_for_descriptors, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_too_long, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_empty_packet, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_full_and_gone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_close_skips_none, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
