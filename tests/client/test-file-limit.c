/*
 * RLIMIT_FSIZE, which counts for memfds: what exceeds it fails with -EFBIG and a sentence. SIGXFSZ
 * ends neither the caller nor a daemon, and the caller's handling of the signal is left alone.
 */
#include "client/faclient.h"
#include "tests/client/spawn.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define LIMIT (1u << 20)

static void limit_files(rlim_t soft, rlim_t hard)
{
	const struct rlimit limit = { .rlim_cur = soft, .rlim_max = hard };

	fa_check_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void check_buffers(struct fa_client *client)
{
	struct fa_buffer *buffer;

	fa_check_eq(fa_buffer_new(client, LIMIT + 1, 0, &buffer), -EFBIG);
	fa_check_contains(fa_error(), "1048576 bytes at most (RLIMIT_FSIZE");
	fa_check_eq(fa_buffer_new(client, LIMIT, 0, &buffer), 0);
	memset(fa_buffer_data(buffer), 1, LIMIT);
	fa_check_eq(fa_buffer_free(buffer), 0);
}

static void check_signal_untouched(void)
{
	struct sigaction action;
	sigset_t set;

	fa_check_eq(sigaction(SIGXFSZ, NULL, &action), 0);
	fa_check(action.sa_handler == SIG_DFL);
	fa_check_eq(sigprocmask(SIG_BLOCK, NULL, &set), 0);
	fa_check(!sigismember(&set, SIGXFSZ));
	fa_check_eq(sigpending(&set), 0);
	fa_check(!sigismember(&set, SIGXFSZ));
}

/* The limits of a process cannot be raised again, so each case has a child of its own. */
static void run(int (*function)(void *userdata), void *userdata)
{
	fa_check_eq(fa_test_reap(fa_test_fork(function, userdata)), 0);
}

static int run_client(void *userdata)
{
	struct fa_options options = { .size = sizeof(options), .socket = userdata };
	struct fa_client *client;
	sigset_t xfsz, pending;

	limit_files(LIMIT, LIMIT);
	fa_check_eq(fa_connect(&options, &client), 0);
	check_buffers(client);
	check_signal_untouched();

	/* A signal that the caller itself holds pending remains pending. */
	sigemptyset(&xfsz);
	sigaddset(&xfsz, SIGXFSZ);
	fa_check_eq(sigprocmask(SIG_BLOCK, &xfsz, NULL), 0);
	fa_check_eq(raise(SIGXFSZ), 0);
	check_buffers(client);
	fa_check_eq(sigpending(&pending), 0);
	fa_check(sigismember(&pending, SIGXFSZ));
	fa_disconnect(client);
	return 0;
}

static void test_client(void **state)
{
	struct fa_test_daemon daemon;

	fa_test_daemon_start(&daemon, NULL);
	run(run_client, daemon.socket);
	fa_test_daemon_stop(&daemon);
}

static int run_spawn(void *userdata)
{
	const rlim_t *hard = userdata;
	struct fa_cache_options cache_options = { .size = sizeof(cache_options),
		                                  .layers = 1,
		                                  .kv_heads = 1,
		                                  .head_dim = 64,
		                                  .dtype = FA_F32 };
	struct fa_client *client;
	uint64_t cache;
	pid_t pid;

	limit_files(LIMIT, *hard);
	spawn_adopt_orphans(true);
	client = spawn_client(NULL, NULL);
	pid = spawn_pid(client);
	check_buffers(client);
	check_signal_untouched();
	/* The pool's memory is larger than the soft limit, which the daemon raises for itself. */
	if (*hard == RLIM_INFINITY)
		fa_check_eq(fa_cache_create(client, &cache_options, &cache), 0);
	else
		fa_check(fa_cache_create(client, &cache_options, &cache) < 0);
	fa_disconnect(client);
	spawn_check_end(pid);
	return 0;
}

static void test_spawn(void **state)
{
	static rlim_t limits[] = { LIMIT, RLIM_INFINITY };

	for (size_t i = 0; i < 2; ++i)
		run(run_spawn, &limits[i]);
}

/* The limit concerns memory that a daemon makes for its clients, and its log, here a file that has
 * reached the limit. */
static int run_daemon(void *userdata)
{
	static const char *const supervise[] = { "--supervise", NULL };
	struct fa_test_daemon_options daemon_options = { .args = userdata ? supervise : NULL };
	struct fa_options options = { .size = sizeof(options) };
	struct fa_test_daemon daemon;
	struct fa_client *client;
	struct fa_buffer *buffer;
	char dir[48], log[64];
	int fd;

	fa_test_dir_make(dir, sizeof(dir));
	daemon_options.dir = dir;
	snprintf(log, sizeof(log), "%s/log", dir);
	fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	fa_check(fd >= 0 && !ftruncate(fd, LIMIT));
	close(fd);
	limit_files(LIMIT, LIMIT);

	fa_test_daemon_start(&daemon, &daemon_options);
	options.socket = daemon.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_buffer_new(client, 2 * LIMIT, FA_BUFFER_DEVICE, &buffer), -EFBIG);
	fa_check_contains(fa_error(), "1048576 bytes at most (RLIMIT_FSIZE");
	fa_check_eq(fa_ping(client), 0);
	if (userdata) {
		pid_t child = fa_test_daemon_child(&daemon);

		fa_check_eq(kill(child, SIGKILL), 0);
		(void)fa_test_daemon_next_child(&daemon, child);
		fa_check_eq(fa_ping(client), 0);
	}
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
	fa_test_dir_remove(dir);
	return 0;
}

static void test_daemon(void **state)
{
	run(run_daemon, NULL);
	run(run_daemon, (void *)1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_client),
		cmocka_unit_test(test_spawn),
		cmocka_unit_test(test_daemon),
	};

	return cmocka_run_group_tests(tests, spawn_setup, spawn_teardown);
}
