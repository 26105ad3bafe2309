/*
 * Start-up: faults of command line, configuration or socket are reported and end the daemon;
 * SIGHUP; exit when idle.
 */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/dir.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[48];
static struct fa_test_daemon first, second;

static int make_dir(void **state)
{
	fa_test_dir_make(dir, sizeof(dir));
	return 0;
}

static int remove_dir(void **state)
{
	fa_test_daemon_stop(&first);
	fa_test_daemon_stop(&second);
	fa_test_dir_remove(dir);
	return 0;
}

/* Status 1 or above, and a text with @part. */
static void expect_failure(const struct fa_test_daemon_options *options, const char *part,
                           const char *second_part)
{
	_fa_cleanup_(fa_freep) char *log = NULL;
	int status;

	fa_check(!fa_test_daemon_try(&second, options));
	fa_test_daemon_wait_dead(&second);
	log = fa_test_daemon_log(&second);
	status = fa_test_daemon_reap(&second);
	fa_check(WIFEXITED(status));
	fa_check(WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != FA_TEST_EXIT);
	fa_check_contains(log, part);
	if (second_part)
		fa_check_contains(log, second_part);
}

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	fa_check(file && fputs(text, file) >= 0);
	fa_check(!fclose(file));
}

static void test_options(void **state)
{
	const char *const wrong[][3] = {
		{ "--super", NULL, NULL },          { "--exit", NULL, NULL },
		{ "--thread", "1", NULL },          { "--sock=/nowhere", NULL, NULL },
		{ "--nonsense", NULL, NULL },       { "--threads", "many", NULL },
		{ "--threads", "-1", NULL },        { "--drain-timeout-ms", "soon", NULL },
		{ "--log", "printer", NULL },       { "--log-level", "loud", NULL },
		{ "--backend", "abacus", NULL },    { "--listen-fd", "99", NULL },
		{ "--listen-fd", "nothing", NULL }, { "stray", NULL, NULL },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i)
		expect_failure(&(struct fa_test_daemon_options){ .args = wrong[i] },
		               wrong[i][1] && strcmp(wrong[i][1], "1") != 0 ? wrong[i][1]
		                                                            : wrong[i][0],
		               NULL);
}

static void test_config(void **state)
{
	expect_failure(&(struct fa_test_daemon_options){ .config = "[daemon]\n\nthreads = some\n" },
	               "line 3", "threads");
	expect_failure(&(struct fa_test_daemon_options){ .config = "[limits]\nbufers = 3\n" },
	               "line 2", "bufers");
	expect_failure(&(struct fa_test_daemon_options){ .config = "[limit]\nbuffers = 3\n" },
	               "line 2", "limit");
	expect_failure(&(struct fa_test_daemon_options){ .config = "[limits]\nbuffers = -3\n" },
	               "line 2", "buffers");
	expect_failure(
		&(struct fa_test_daemon_options){
			.config = "[limits]\nbuffers = 99999999999999999999\n" },
		"line 2", "buffers");
	expect_failure(&(struct fa_test_daemon_options){ .config = "[daemon]\nmode = 999\n" },
	               "line 2", "mode");
	expect_failure(
		&(struct fa_test_daemon_options){ .config = "[daemon]\nnot an assignment\n" },
		"line 2", NULL);
	expect_failure(&(struct fa_test_daemon_options){ .config = "buffers = 3\n" }, "line 1",
	               NULL);
	expect_failure(
		&(struct fa_test_daemon_options){
			.config = "[daemon]\ngroup = no-such-group-here\n" },
		"no-such-group-here", NULL);
	expect_failure(
		&(struct fa_test_daemon_options){
			.config = "[daemon]\nobserver = no-such-user-here\n" },
		"no user called \"no-such-user-here\"", NULL);
}

static void test_check_config(void **state)
{
	const char *const args[] = { "--check-config", NULL };
	int status;

	fa_check(!fa_test_daemon_try(
		&second, &(struct fa_test_daemon_options){ .args = args,
	                                                   .config = "[limits]\nbuffers = 3\n" }));
	status = fa_test_daemon_reap(&second);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 0);
	expect_failure(&(struct fa_test_daemon_options){ .args = args,
	                                                 .config = "[limits]\n# \nbuffers = ?\n" },
	               "line 3", "buffers");
}

/* Every fault is a line of its own, in the order of the file. */
static void test_check_config_all(void **state)
{
	static const char *const expected[] = {
		"line 2: mode is \"888\"",
		"line 3: expected [section] or name = value",
		"line 7: [limits] has no \"bufers\"",
		"line 8: buffers is \"?\"",
		"line 9: expected [section] or name = value",
		"line 10: [limits] has no \"lost\"",
		"line 12: there is no section [pol]",
		": there is no group called \"no-such-group-here\"",
		": there is no user called \"nor-such-a-user\"",
	};
	const char *const args[] = { "--check-config", NULL };
	_fa_cleanup_(fa_freep) char *log = NULL;
	const char *next;
	int status;

	fa_check(!fa_test_daemon_try(
		&second, &(struct fa_test_daemon_options){ .args = args,
	                                                   .config = "[daemon]\nmode = 888\nwords\n"
	                                                             "group = no-such-group-here\n"
	                                                             "observer = nor-such-a-user\n"
	                                                             "[limits]\nbufers = 1\n"
	                                                             "buffers = ?\n[pool\n"
	                                                             "lost = 1\n[pol]\n"
	                                                             "bytes = 1\n" }));
	fa_test_daemon_wait_dead(&second);
	log = fa_test_daemon_log(&second);
	status = fa_test_daemon_reap(&second);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 1);
	next = log;
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); ++i) {
		fa_check(!strncmp(next, "fad: error: /", 13));
		fa_check_contains(next, expected[i]);
		fa_check(strchr(next, '\n') > strstr(next, expected[i]));
		next = strchr(next, '\n') + 1;
	}
	fa_check_eq(strlen(next), 0);
}

static void test_usage(void **state)
{
	const char *const wrong[] = { "--no-such-option", NULL }, *const help[] = { "-h", NULL };
	int status;

	fa_check(!fa_test_daemon_try(&second, &(struct fa_test_daemon_options){ .args = wrong }));
	status = fa_test_daemon_reap(&second);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 2);
	fa_check(!fa_test_daemon_try(&second, &(struct fa_test_daemon_options){ .args = help }));
	status = fa_test_daemon_reap(&second);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 0);
}

static void test_in_use(void **state)
{
	struct fa_raw raw;

	fa_test_daemon_start(&first, &(struct fa_test_daemon_options){ .dir = dir });
	fa_raw_open(&raw, first.socket);
	expect_failure(&(struct fa_test_daemon_options){ .dir = dir }, "fad.sock",
	               "another daemon");
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
	fa_raw_open(&raw, first.socket);
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
}

static void test_stale_socket(void **state)
{
	struct fa_raw raw;
	struct stat st;
	int status;

	fa_test_daemon_start(&first, &(struct fa_test_daemon_options){ .dir = dir });
	fa_test_daemon_signal(&first, SIGKILL);
	status = fa_test_daemon_reap(&first);
	fa_check(WIFSIGNALED(status));
	fa_check(!stat(first.socket, &st) && S_ISSOCK(st.st_mode));
	fa_test_daemon_start(&first, &(struct fa_test_daemon_options){ .dir = dir });
	fa_raw_open(&raw, first.socket);
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
}

static void test_no_socket(void **state)
{
	char path[64], text[8] = "";
	FILE *file;

	snprintf(path, sizeof(path), "%s/fad.sock", dir);
	write_text(path, "mine");
	expect_failure(&(struct fa_test_daemon_options){ .dir = dir }, "fad.sock", NULL);
	file = fopen(path, "re");
	fa_check(file && fgets(text, sizeof(text), file));
	fclose(file);
	fa_check(!strcmp(text, "mine"));
}

static void test_mode(void **state)
{
	struct stat st;

	fa_test_daemon_start(&first, &(struct fa_test_daemon_options){
					     .dir = dir, .config = "[daemon]\nmode = 0600\n" });
	fa_check(!stat(first.socket, &st));
	fa_check_eq(st.st_mode & 0777, 0600);
	fa_test_daemon_stop(&first);
	fa_check(access(first.socket, F_OK) < 0);
	fa_test_daemon_start(&first, &(struct fa_test_daemon_options){ .dir = dir });
	fa_check(!stat(first.socket, &st));
	fa_check_eq(st.st_mode & 0777, 0660);
}

static bool refused(struct fa_raw *raw, uint32_t id)
{
	struct fa_wire_message message = fa_raw_register_message(id, 4096);

	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	fa_raw_call(raw, &message, NULL, 0);
	return raw->message.type == FA_WIRE_REPLY && raw->message.reply.status == -EDQUOT;
}

static void test_reload(void **state)
{
	struct fa_raw raw;

	fa_test_daemon_start(&first,
	                     &(struct fa_test_daemon_options){
				     .dir = dir, .config = "[limits]\nsession_buffers = 2\n" });
	fa_raw_open(&raw, first.socket);
	fa_check(!refused(&raw, 1));
	fa_check(!refused(&raw, 2));
	fa_check(refused(&raw, 3));

	write_text(first.config, "[limits]\nsession_buffers = 3\n");
	fa_test_daemon_signal(&first, SIGHUP);
	fa_check_eventually(!refused(&raw, 3));
	fa_check(refused(&raw, 4));

	/* A faulty file changes nothing. */
	write_text(first.config, "[limits]\nsession_buffers = 4\nbufers = 1\n");
	fa_test_daemon_signal(&first, SIGHUP);
	fa_test_daemon_log_wait(&first, "line 3");
	fa_check(refused(&raw, 4));

	/* A limit below what exists: buffers stay, none can be added. */
	write_text(first.config, "[limits]\nsession_buffers = 1\n");
	fa_test_daemon_signal(&first, SIGHUP);
	fa_test_daemon_log_wait(&first, "read again");
	fa_raw_ping(&raw);
	fa_check(refused(&raw, 5));
	{
		struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

		message.buffer_free.buffer = 3;
		fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
	}
	fa_check(refused(&raw, 5));

	write_text(first.config, "[daemon]\nthreads = 1\nsocket = /elsewhere\n");
	fa_test_daemon_signal(&first, SIGHUP);
	fa_test_daemon_log_wait(&first, "threads");
	fa_check_eventually(!refused(&raw, 5));
	fa_raw_close(&raw);
}

static void test_exit_when_idle(void **state)
{
	const char *const args[] = { "--exit-when-idle", NULL };
	struct fa_raw a, b;
	int status;

	fa_test_daemon_start(&first, &(struct fa_test_daemon_options){ .dir = dir, .args = args });
	fa_raw_open(&a, first.socket);
	fa_raw_open(&b, first.socket);
	fa_raw_close(&a);
	fa_test_quiet_ms(100);
	fa_raw_ping(&b);
	fa_check(!fa_test_daemon_is_dead(&first));
	fa_raw_close(&b);
	fa_test_daemon_wait_dead(&first);
	status = fa_test_daemon_reap(&first);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 0);
	fa_check(access(first.socket, F_OK) < 0);
}

/* A spawning library passes a socket: it is removed, too, with its directory. */
static void test_listen_fd(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char own[64], number[16];
	const char *args[] = { "--exit-when-idle", "--listen-fd", number, NULL };
	struct fa_raw raw;
	int fd, status;

	snprintf(own, sizeof(own), "%s/fad-own", dir);
	fa_check(!mkdir(own, 0700));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/private.sock", own);
	fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	fa_check(fd >= 0);
	fa_check(!bind(fd, (struct sockaddr *)&address, sizeof(address)));
	fa_check(!listen(fd, 16));
	snprintf(number, sizeof(number), "%d", fd);

	fa_test_daemon_start(&first, &(struct fa_test_daemon_options){ .args = args });
	close(fd);
	fa_raw_open(&raw, address.sun_path);
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
	fa_test_daemon_wait_dead(&first);
	status = fa_test_daemon_reap(&first);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 0);
	fa_check(access(address.sun_path, F_OK) < 0);
	fa_check(access(own, F_OK) < 0);
}

static void test_generation(void **state)
{
	uint64_t generation = 0;
	struct fa_raw raw;

	for (int i = 0; i < 3; ++i) {
		fa_test_daemon_start(&first, &(struct fa_test_daemon_options){ .dir = dir });
		fa_raw_open(&raw, first.socket);
		fa_check(raw.generation > generation);
		generation = raw.generation;
		fa_raw_close(&raw);
		fa_test_daemon_stop(&first);
	}
}

#define test(function) cmocka_unit_test_setup_teardown(function, make_dir, remove_dir)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_options),          test(test_config),         test(test_check_config),
		test(test_check_config_all), test(test_usage),          test(test_in_use),
		test(test_stale_socket),     test(test_no_socket),      test(test_mode),
		test(test_reload),           test(test_exit_when_idle), test(test_listen_fd),
		test(test_generation),
	};

	return cmocka_run_group_tests_name("start", tests, NULL, NULL);
}
