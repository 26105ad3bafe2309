/* The log goes to the journal if stderr is connected to it, else where configured. */
#include "daemon/base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
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

/* Returns what follows "2026-01-31T23:59:59.999Z ", which must be the present time. */
static const char *skip_time(const char *text)
{
	unsigned int milliseconds;
	struct tm utc = {};
	const char *rest;
	time_t stamp;
	int n = 0;

	rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &utc);
	assert_non_null(rest);
	assert_int_equal(rest - text, strlen("2026-01-31T23:59:59"));
	assert_int_equal(sscanf(rest, ".%3uZ%n", &milliseconds, &n), 1);
	assert_int_equal(n, strlen(".999Z"));
	assert_int_equal(rest[n], ' ');
	stamp = timegm(&utc);
	assert_true(stamp <= time(NULL) && stamp >= time(NULL) - 60);
	return rest + n + 1;
}

/* Logs a line and returns all of it that stderr got; valid until the next call. */
static const char *log_line(const char *message)
{
	static char text[256];
	int pipe_fds[2], before = dup(STDERR_FILENO);
	ssize_t n;

	assert_int_equal(pipe(pipe_fds), 0);
	assert_true(dup2(pipe_fds[1], STDERR_FILENO) >= 0);
	fa_log(FA_LOG_WARNING, "%s", message);
	assert_true(dup2(before, STDERR_FILENO) >= 0);
	close(pipe_fds[1]);
	n = read(pipe_fds[0], text, sizeof(text) - 1);
	assert_true(n > 0);
	text[n] = '\0';
	close(pipe_fds[0]);
	close(before);
	return text;
}

/* Messages of a command have no time, lines of a log have. */
static void test_time(void **state)
{
	unsetenv("JOURNAL_STREAM");
	assert_string_equal(log_line("wrong option"), "fad: warning: wrong option\n");
	setenv("TZ", "Asia/Tokyo", 1);
	tzset();
	fa_log_set(FA_LOG_STDERR, FA_LOG_INFO);
	assert_string_equal(skip_time(log_line("a line")), "fad: warning: a line\n");
	unsetenv("TZ");
	tzset();
}

/* JOURNAL_STREAM names another file than stderr, as in a program that a service started with
 * another stderr. */
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
	assert_string_equal(skip_time(text), "fad: warning: a line\n<4>fad: warning: another\n");
	close(pipe_fds[0]);
	close(before);
	unsetenv("JOURNAL_STREAM");
	fa_log_set(FA_LOG_AUTO, FA_LOG_INFO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_choice),
		cmocka_unit_test(test_time),
		cmocka_unit_test(test_lines),
	};

	return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
