/* /proc/PID/cgroup in all forms, and text from clients. */
#include "common/cleanup.h"
#include "common/text.h"
#include "daemon/account/peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
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
		cmocka_unit_test(test_cgroup),
		cmocka_unit_test(test_self),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_escaped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
