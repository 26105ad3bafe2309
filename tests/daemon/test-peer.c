/* /proc/PID/cgroup in all forms, and text from clients. */
#include "common/cleanup.h"
#include "common/text.h"
#include "daemon/account/peer.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void expect_cgroup(const char *text, const char *expected)
{
	char path[64];

	memset(path, 'x', sizeof(path));
	fa_cgroup_parse(text, path, sizeof(path));
	assert_string_equal(path, expected);
}

static void test_cgroup(void **state)
{
	/* unified */
	expect_cgroup("0::/user.slice/user-1000.slice\n", "/user.slice/user-1000.slice");
	expect_cgroup("0::/\n", "/");
	expect_cgroup("0::/a", "/a");
	expect_cgroup("0::/a:b\n", "/a:b");
	expect_cgroup("0::/gone (deleted)\n", "/gone");
	/* hybrid: systemd uses the unified hierarchy */
	expect_cgroup("2:memory:/m\n1:name=systemd:/s\n0::/u\n", "/u");
	/* legacy, with an unused unified hierarchy */
	expect_cgroup("9:name=systemd:/docker/1\n4:memory:/docker/1\n0::/\n", "/docker/1");
	expect_cgroup("9:name=systemd:/\n4:cpu,memory:/m\n0::/\n", "/m");
	expect_cgroup("9:name=systemd:/\n4:memory:/\n", "/");
	expect_cgroup("3:cpu:/c\n", "/c");
	expect_cgroup("4:memoryx:/x\n3:xmemory,memory:/m\n", "/m");
	expect_cgroup("", "");
	expect_cgroup("nonsense", "");
	expect_cgroup("0:\n:\n::\n0::relative\n", "");
	expect_cgroup("0::/0123456789012345678901234567890123456789012345678901234567890123456789",
	              "/01234567890123456789012345678901234567890123456789012345678901");
}

static void test_self(void **state)
{
	struct fa_peer peer;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	assert_int_equal(fa_peer_read(fds[0], &peer), 0);
	assert_int_equal(peer.pid, getpid());
	assert_int_equal(peer.uid, geteuid());
	assert_int_equal(peer.gid, getegid());
	assert_true(!*peer.cgroup || *peer.cgroup == '/');
	close(fds[0]);
	close(fds[1]);
	assert_true(fa_peer_read(fds[0], &peer) < 0);
}

static int listener;
static struct sockaddr_un address;
static socklen_t address_length;

/* A listening socket with an abstract name. */
static void start_listener(void)
{
	address_length = sizeof(address);
	address.sun_family = AF_UNIX;
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &address_length), 0);
	assert_int_equal(listen(listener, 5), 0);
}

static void connect_here(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	if (connect(fd, (struct sockaddr *)&address, address_length) < 0)
		_exit(1);
}

static bool is_readable(int fd)
{
	struct pollfd pollfd = { .fd = fd, .events = POLLIN };

	return poll(&pollfd, 1, 0) == 1;
}

static void test_process(void **state)
{
	int socket, pidfd, status;
	struct fa_peer peer;
	pid_t pid;

	start_listener();
	pid = fork();
	if (!pid) {
		connect_here();
		for (;;)
			pause();
	}
	socket = accept(listener, NULL, NULL);
	assert_int_equal(fa_peer_read(socket, &peer), 0);
	assert_int_equal(peer.pid, pid);
	assert_int_equal(fa_peer_open(socket, &peer, &pidfd), 0);
	assert_false(is_readable(pidfd));
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(is_readable(pidfd));
	close(pidfd);

	/* A process that has ended is not watched, or ends the watch at once. */
	switch (fa_peer_open(socket, &peer, &pidfd)) {
	case 0:
		assert_true(is_readable(pidfd));
		close(pidfd);
		break;
	case -ESRCH:
		break;
	default:
		fail();
	}
	close(socket);
	close(listener);
}

/* In another PID namespace the process has no pid. */
static int run_elsewhere(void)
{
	int socket, pidfd, r;
	struct fa_peer peer;

	socket = accept(listener, NULL, NULL);
	if (fa_peer_read(socket, &peer) != 0 || peer.pid != 0)
		return 1;
	r = fa_peer_open(socket, &peer, &pidfd);
	if (r != 0)
		return r == -ENOTSUP ? 0 : 2;
	return is_readable(pidfd) ? 3 : 0;
}

static void test_namespace(void **state)
{
	int status;
	pid_t pid;

	start_listener();
	pid = fork();
	if (!pid) {
		if (unshare(CLONE_NEWPID) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) < 0)
			_exit(77);
		pid = fork();
		if (!pid)
			_exit(run_elsewhere());
		if (waitpid(pid, &status, 0) != pid)
			_exit(4);
		_exit(WEXITSTATUS(status));
	}
	connect_here();
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(listener);
	if (WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
}

static void expect(void (*make)(const char *, size_t, char *, size_t), const char *text,
                   size_t length, size_t size, const char *expected)
{
	char made[64];

	memset(made, 'x', sizeof(made));
	make(text, length, made, size);
	assert_string_equal(made, expected);
}

#define CLEAN(text, expected) expect(fa_text_clean, text, sizeof(text) - 1, 64, expected)

static void test_text(void **state)
{
	CLEAN("", "");
	CLEAN("plain ~", "plain ~");
	CLEAN("a\nb\tc\x7f\x1b[31m\0d", "a?b?c??[31m?d");
	CLEAN("gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f");
	CLEAN("\xe2\x82\xac\xf0\x9f\x98\x80", "\xe2\x82\xac\xf0\x9f\x98\x80");
	CLEAN("\xc3", "?");                /* cut off */
	CLEAN("\xc0\x80", "??");           /* overlong */
	CLEAN("\xe0\x80\xaf", "???");      /* overlong */
	CLEAN("\xed\xa0\x80", "???");      /* surrogate */
	CLEAN("\xf4\x90\x80\x80", "????"); /* beyond Unicode */
	CLEAN("\xff\xfe", "??");
	CLEAN("\xc2\x85", "??");            /* C1 control */
	CLEAN("\xe2\x80\xaetxt", "???txt"); /* right-to-left override */
	expect(fa_text_clean, "ab\xc3\xbc", 4, 4, "ab");
	expect(fa_text_clean, "ab\xc3\xbc", 4, 5, "ab\xc3\xbc");
	expect(fa_text_clean, "abc", 3, 1, "");
}

#define ESCAPED(text, expected) expect(fa_text_escape, text, sizeof(text) - 1, 64, expected)

static void test_escaped(void **state)
{
	ESCAPED("", "");
	ESCAPED("/user.slice/a\\x2db", "/user.slice/a\\x2db");
	ESCAPED("gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f");
	ESCAPED("a\x01", "a?01");
	ESCAPED("a\x02", "a?02");
	ESCAPED("a?01", "a?3f01");
	ESCAPED("\xc3", "?c3");
	ESCAPED("\xe2\x80\xaetxt", "?e2?80?aetxt");
	expect(fa_text_escape, "ab\x01", 3, 5, "ab");
	expect(fa_text_escape, "ab\x01", 3, 6, "ab?01");
	expect(fa_text_escape, "ab\xc3\xbc", 4, 4, "ab");
	expect(fa_text_escape, "abc", 3, 1, "");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cgroup),  cmocka_unit_test(test_self),
		cmocka_unit_test(test_process), cmocka_unit_test(test_namespace),
		cmocka_unit_test(test_text),    cmocka_unit_test(test_escaped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
