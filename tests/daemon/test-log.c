/* The log goes to the journal if stderr is connected to it, else where configured. */
#include "daemon/base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* JOURNAL_STREAM names the stream @fd, with its numbers changed by the arguments. */
static void set_stream(int fd, unsigned int device, unsigned int inode, const char *rest)
{
	struct stat status;
	char text[64];

	assert_int_equal(fstat(fd, &status), 0);
	snprintf(text, sizeof(text), "%llu:%llu%s", (unsigned long long)status.st_dev + device,
	         (unsigned long long)status.st_ino + inode, rest);
	setenv("JOURNAL_STREAM", text, 1);
}

static void check_auto(enum fa_log_target expected)
{
	assert_int_equal(fa_log_resolve(FA_LOG_AUTO), expected);
	assert_int_equal(fa_log_resolve(FA_LOG_STDERR), FA_LOG_STDERR);
	assert_int_equal(fa_log_resolve(FA_LOG_JOURNAL), FA_LOG_JOURNAL);
}

static void test_choice(void **state)
{
	unsetenv("JOURNAL_STREAM");
	check_auto(FA_LOG_STDERR);
	set_stream(STDERR_FILENO, 0, 0, "");
	check_auto(FA_LOG_JOURNAL);
	set_stream(STDERR_FILENO, 1, 0, "");
	check_auto(FA_LOG_STDERR);
	set_stream(STDERR_FILENO, 0, 1, "");
	check_auto(FA_LOG_STDERR);
	set_stream(STDERR_FILENO, 0, 0, "x");
	check_auto(FA_LOG_STDERR);
	setenv("JOURNAL_STREAM", "", 1);
	check_auto(FA_LOG_STDERR);
	setenv("JOURNAL_STREAM", "7", 1);
	check_auto(FA_LOG_STDERR);
}

/* As a program that a service started with another stderr. */
static void test_lines(void **state)
{
	int pipe_fds[2], before = dup(STDERR_FILENO);
	char text[256];
	ssize_t n;

	assert_int_equal(pipe(pipe_fds), 0);
	set_stream(before, 0, 0, "");
	assert_true(dup2(pipe_fds[1], STDERR_FILENO) >= 0);
	fa_log_set(FA_LOG_AUTO, FA_LOG_INFO);
	fa_log(FA_LOG_WARNING, "a line");
	set_stream(STDERR_FILENO, 0, 0, "");
	fa_log_set(FA_LOG_STDERR, FA_LOG_INFO);
	fa_log(FA_LOG_WARNING, "another");
	assert_true(dup2(before, STDERR_FILENO) >= 0);
	close(pipe_fds[1]);
	n = read(pipe_fds[0], text, sizeof(text) - 1);
	assert_true(n > 0);
	text[n] = '\0';
	assert_string_equal(text, "fad: warning: a line\n<4>fad: warning: another\n");
	close(pipe_fds[0]);
	close(before);
	unsetenv("JOURNAL_STREAM");
	fa_log_set(FA_LOG_AUTO, FA_LOG_INFO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_choice),
		cmocka_unit_test(test_lines),
	};

	return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
