/* Spawned daemons: their configuration, and how a program learns of their failures. */
#include "client/faclient.h"
#include "client/faclient_kv.h"
#include "tests/client/spawn.h"
#include "tests/lib/at_once.h"
#include "tests/lib/check.h"
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static long long pool_bytes(struct fa_client *client)
{
	return spawn_number(client, "pool", "chunk_bytes") *
	       spawn_number(client, "pool", "chunks_max");
}

static void write_file(char *path, size_t size, const char *text, mode_t mode)
{
	static unsigned int n;
	char dir[32];
	FILE *file;

	fa_test_dir_make(dir, sizeof(dir));
	snprintf(path, size, "%s/%u", dir, ++n);
	file = fopen(path, "we");
	fa_check(file && fputs(text, file) >= 0 && !fchmod(fileno(file), mode) && !fclose(file));
}

static void remove_file(char *path)
{
	*strrchr(path, '/') = '\0';
	fa_test_dir_remove(path);
}

static void test_says_why(void **state)
{
	/* The error line counts, not the last; control characters are removed. */
	static const char error[] = "#!/bin/sh\n"
				    "printf 'fad: error: a \\033[2J\\303\\244\\n' >&2\n"
				    "printf 'fad: bye\\n\\n' >&2\n";
	/* The times of log lines are left out. */
	static const char timed[] = "#!/bin/sh\n"
				    "echo '2026-01-31T23:59:59.999Z fad: error: in time' >&2\n"
				    "echo '2026-01-31T23:59:59.999Z fad: bye' >&2\n";
	static const char untimed[] = "#!/bin/sh\necho '2026-01-31T23:59 fad: error: x' >&2\n";
	static const char line[] = "#!/bin/sh\nprintf 'first\\nlast, without an end' >&2\n";
	static const char much[] = "#!/bin/sh\n"
				   "i=0; while [ $i -lt 3000 ]; do i=$((i + 1))\n"
				   "echo 'fifty bytes of something that nobody wants to read' >&2\n"
				   "done\n";
	/* A child keeps the pipe open; the caller does not wait for it. */
	static const char left[] = "#!/bin/sh\n"
				   "sleep 5 3<&- & echo 'fad: error: only this' >&2\n";
	char path[64];
	char longest[600] = "#!/bin/sh\necho 'fad: error: ";

	write_file(path, sizeof(path), error, 0700);
	spawn_expect_failure(path, NULL, -ECONNREFUSED, "ended at once: a ?[2J\xc3\xa4");
	fa_check(!strstr(fa_error(), "bye"));
	remove_file(path);

	write_file(path, sizeof(path), timed, 0700);
	spawn_expect_failure(path, NULL, -ECONNREFUSED, "ended at once: in time");
	remove_file(path);

	write_file(path, sizeof(path), untimed, 0700);
	spawn_expect_failure(path, NULL, -ECONNREFUSED, "it said last: 2026-01-31T23:59 fad: ");
	remove_file(path);

	write_file(path, sizeof(path), line, 0700);
	spawn_expect_failure(path, NULL, -ECONNREFUSED,
	                     "ended at once; it said last: last, without an end");
	remove_file(path);

	write_file(path, sizeof(path), much, 0700);
	spawn_expect_failure(path, NULL, -ECONNREFUSED, "ended at once; it said last: ");
	remove_file(path);

	write_file(path, sizeof(path), left, 0700);
	spawn_expect_failure(path, NULL, -ECONNREFUSED, "ended at once: only this");
	remove_file(path);

	memset(longest + strlen(longest), 'x', 400);
	strcat(longest, "' >&2\n");
	write_file(path, sizeof(path), longest, 0700);
	spawn_expect_failure(path, NULL, -ECONNREFUSED, "ended at once: xxxx");
	fa_check_eq(strlen(fa_error()), 255);
	remove_file(path);
}

/*
 * The library gives up on a daemon that starts too late, without killing it, and discards its
 * output.
 */
static void test_late(void **state)
{
	static const char script[] = "#!/bin/sh\n"
				     "echo 'fad: waiting' >&2; sleep 3; echo 'fad: waited' >&2\n"
				     "exec \"$FAD_REAL\" \"$@\"\n";
	struct fa_options options = { .size = sizeof(options),
		                      .flags = FA_CONNECT_PRIVATE,
		                      .connect_ns = FA_NS_PER_SEC };
	struct fa_client *client;
	char path[64];
	int before = fa_test_count_fds(0), status = -1;

	setenv("FAD_REAL", getenv("FAD_DAEMON"), 1);
	write_file(path, sizeof(path), script, 0700);
	options.daemon = path;
	spawn_adopt_orphans(true);
	fa_check_eq(fa_connect(&options, &client), -ETIMEDOUT);
	spawn_adopt_orphans(false);
	fa_check_contains(fa_error(), "does not answer; it said last: waiting");
	fa_check_eventually(waitpid(-1, &status, WNOHANG) > 0);
	fa_check_eq(status, 0);
	fa_disconnect(NULL); /* forgets the adopted daemon */
	fa_check_eq(fa_test_count_fds(0), before);
	fa_check_eq(own_count_entries(spawn_runtime), 0);
	unsetenv("FAD_REAL");
	remove_file(path);
}

static void test_config(void **state)
{
	char good[64], bad[64], dir[64], missing[80];
	struct fa_client *client;
	long long own;

	write_file(good, sizeof(good), "[pool]\nbytes = 48M\nchunk_bytes = 16M\n", 0600);
	write_file(bad, sizeof(bad), "[pool]\nbytes = 1G\nbites = 1\n", 0600);
	snprintf(dir, sizeof(dir), "%s", good);
	*strrchr(dir, '/') = '\0';
	snprintf(missing, sizeof(missing), "%s/missing", dir);

	client = spawn_client(NULL, NULL);
	own = pool_bytes(client);
	fa_check(own <= 256 << 20);
	fa_disconnect(client);
	client = spawn_client(NULL, good);
	fa_check_eq(pool_bytes(client), 48 << 20);
	fa_disconnect(client);

	/*
	 * Options override the environment; "": no file; a relative path starts at the caller's
	 * directory.
	 */
	fa_check(!setenv("FAD_CONFIG", bad, 1));
	client = spawn_client(NULL, good);
	fa_check_eq(pool_bytes(client), 48 << 20);
	fa_disconnect(client);
	fa_check(!setenv("FAD_CONFIG", "", 1));
	client = spawn_client(NULL, "");
	fa_check_eq(pool_bytes(client), own);
	fa_disconnect(client);
	fa_check(!chdir(dir));
	fa_check(!setenv("FAD_CONFIG", strrchr(good, '/') + 1, 1));
	client = spawn_client(NULL, NULL);
	fa_check(!chdir("/"));
	fa_check_eq(pool_bytes(client), 48 << 20);
	fa_disconnect(client);
	fa_check_eventually(own_count_entries(spawn_runtime) == 0);

	fa_check(!setenv("FAD_CONFIG", bad, 1));
	spawn_expect_failure(NULL, NULL, -ECONNREFUSED, bad);
	fa_check_contains(fa_error(), "ended at once: /");
	fa_check_contains(fa_error(), "line 3: [pool] has no \"bites\"");
	spawn_expect_failure(NULL, missing, -ENOENT, missing);
	spawn_expect_failure(NULL, dir, -ECONNREFUSED, "cannot be read");
	spawn_expect_failure(NULL, "", -ECONNREFUSED, "line 3");
	fa_check(!unsetenv("FAD_CONFIG"));
	remove_file(good);
	remove_file(bad);
}

static void test_backend(void **state)
{
	char path[64];

	write_file(path, sizeof(path), "[daemon]\nbackend = fpga\n", 0600);
	spawn_expect_failure(NULL, path, -ECONNREFUSED, "fpga");
	fa_check_contains(fa_error(), "ended at once: ");
	remove_file(path);
}

static void test_config_at_restart(void **state)
{
	struct fa_options options = { .size = sizeof(options), .flags = FA_CONNECT_PRIVATE };
	struct fa_client *client;
	char path[64];
	int before = fa_test_count_fds(0);
	FILE *file;
	pid_t pid;

	write_file(path, sizeof(path), "[pool]\nbytes = 48M\nchunk_bytes = 16M\n", 0600);
	options.config = path;
	options.connect_ns = fa_test_patience_ns();
	options.reconnect_ns = FA_NS_PER_SEC;
	spawn_adopt_orphans(true);
	fa_check_eq(fa_connect(&options, &client), 0);
	pid = spawn_pid(client);
	fa_check(!kill(pid, SIGKILL));
	fa_test_reap(pid);
	file = fopen(path, "we");
	fa_check(file && fputs("[pool]\nbytes = none\n", file) >= 0 && !fclose(file));
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	fa_check_eq(fa_ping(client), -ECONNREFUSED);
	fa_check_contains(fa_error(), "ended at once: /");
	fa_check_contains(fa_error(), "line 2: bytes is \"none\"");
	while (waitpid(-1, NULL, 0) > 0)
		;

	file = fopen(path, "we");
	fa_check(file && fputs("[pool]\nbytes = 32M\nchunk_bytes = 16M\n", file) >= 0 &&
	         !fclose(file));
	while (fa_ping(client) < 0)
		;
	fa_check_eq(pool_bytes(client), 32 << 20);
	pid = spawn_pid(client);
	fa_disconnect(client);
	spawn_check_end(pid);
	spawn_adopt_orphans(false);
	fa_check_eq(fa_test_count_fds(0), before);
	remove_file(path);
}

/* Output that no process reads neither kills nor blocks the daemon. */
struct start {
	const char *daemon, *config;
	int fd;
};

static int start_and_die(void *userdata)
{
	const struct start *start = userdata;
	struct fa_client *client = spawn_client(start->daemon, start->config);
	char path[108] = "";

	strcpy(path, fa_socket_path(client));
	fa_check_eq(write(start->fd, path, sizeof(path)), sizeof(path));
	pause();
	return 0;
}

static void test_output_after_start(void **state)
{
	static const char script[] =
		"#!/bin/sh\n"
		"i=0; while [ $i -lt 3000 ]; do i=$((i + 1))\n"
		"echo 'fifty bytes of something that nobody wants to read' >&2\n"
		"done\n"
		"exec \"$FAD_REAL\" \"$@\"\n";
	struct fa_options options = { .size = sizeof(options) };
	char path[108], program[64], config[64];
	struct start start = { program, config, -1 };
	struct fa_client *client;
	pid_t starter, pid;
	int ends[2];

	setenv("FAD_REAL", getenv("FAD_DAEMON"), 1);
	write_file(program, sizeof(program), script, 0700);
	write_file(config, sizeof(config), "[daemon]\nlog_level = debug\n", 0600);
	for (int i = 0; i < 2; ++i) {
		fa_check(!pipe2(ends, O_CLOEXEC));
		start.fd = ends[1];
		start.daemon = i ? NULL : program;
		spawn_adopt_orphans(true);
		starter = fa_test_fork(start_and_die, &start);
		close(ends[1]);
		fa_check_eq(read(ends[0], path, sizeof(path)), sizeof(path));
		options.socket = path;
		fa_check_eq(fa_connect(&options, &client), 0);
		pid = spawn_pid(client);
		fa_check(strtoull(spawn_proc_status(pid, "SigIgn"), NULL, 16) &
		         1ull << (SIGPIPE - 1));
		fa_check(!kill(starter, SIGKILL));
		fa_check_eq(WTERMSIG(fa_test_reap(starter)), SIGKILL);

		for (int k = 0; k < 2000; ++k) {
			struct fa_client *other;

			fa_check_eq(fa_connect(&options, &other), 0);
			fa_disconnect(other);
		}
		fa_check(!kill(pid, SIGHUP));
		fa_check_eq(spawn_pid(client), pid);
		fa_disconnect(client);
		spawn_check_end(pid);
		spawn_adopt_orphans(false);
		close(ends[0]);
	}
	unsetenv("FAD_REAL");
	remove_file(program);
	remove_file(config);
}

/* When the pool is full, the error names the option only if the pool has the default size. */
static int fill_pool(struct fa_client *client)
{
	struct fa_cache_options cache = { .size = sizeof(cache),
		                          .dtype = FA_F32,
		                          .layers = 64,
		                          .kv_heads = 2,
		                          .head_dim = 64,
		                          .page_tokens = 64 };
	struct fa_step_item items[128] = {};
	struct fa_step_options options = { .size = sizeof(options),
		                           .n_items = 128,
		                           .items = items };
	uint64_t number;
	struct fa_step *step;

	fa_check_eq(fa_cache_create(client, &cache, &number), 0);
	for (int i = 0; i < 128; ++i) {
		fa_check_eq(fa_sequence_create(client, number, &items[i].sequence), 0);
		items[i].n_new = 1;
	}
	return fa_step_begin(client, &options, &step);
}

static void test_pool_exhausted(void **state)
{
	struct fa_client *client = spawn_client(NULL, NULL);
	char path[64];

	fa_check_eq(fill_pool(client), -ENOMEM);
	fa_check_contains(fa_error(), "the pool is exhausted: 128 pages");
	/* On small machines the default pool is smaller. */
	if (pool_bytes(client) == 256 << 20)
		fa_check_contains(fa_error(), "at most 256 MiB, unless [pool] bytes in its "
		                              "configuration (FAD_CONFIG) says more");
	fa_disconnect(client);

	write_file(path, sizeof(path), "[pool]\nbytes = 256M\n", 0600);
	client = spawn_client(NULL, path);
	fa_check_eq(fill_pool(client), -ENOMEM);
	fa_check_contains(fa_error(), "the pool is exhausted: 128 pages");
	fa_check(!strstr(fa_error(), "[pool]"));
	fa_disconnect(client);
	remove_file(path);
	fa_check_eventually(own_count_entries(spawn_runtime) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_says_why),
		cmocka_unit_test(test_late),
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_backend),
		cmocka_unit_test(test_config_at_restart),
		cmocka_unit_test(test_output_after_start),
		cmocka_unit_test(test_pool_exhausted),
	};

	return fa_test_run_at_once("spawn-config", tests, spawn_setup, spawn_teardown);
}
