/*
 * Daemons that the library spawns: start, life and end.
 */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "tests/client/fake-daemon.h"
#include "tests/client/spawn.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_life(void **state)
{
	int inherited = memfd_create("never-inherit-this", 0), before = fa_test_count_fds(0);
	struct sigaction ignore = { .sa_handler = SIG_IGN }, old;
	char dir[128], path[64], pipe[64];
	sigset_t usr1, mask;
	struct fa_client *client, *other;
	struct fa_options options = { .size = sizeof(options) };
	struct stat st;
	ssize_t n;
	pid_t pid;

	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	fa_check(!sigprocmask(SIG_BLOCK, &usr1, NULL));
	fa_check(!sigaction(SIGUSR2, &ignore, &old));
	spawn_adopt_orphans(true);
	client = spawn_client(NULL, NULL);
	spawn_adopt_orphans(false);

	fa_check(!strncmp(fa_socket_path(client), spawn_runtime, strlen(spawn_runtime)));
	snprintf(dir, sizeof(dir), "%s", fa_socket_path(client));
	*strrchr(dir, '/') = '\0';
	fa_check(!stat(dir, &st));
	fa_check_eq(st.st_mode & 0777, 0700);

	pid = spawn_pid(client);
	fa_check(inherited >= 0 && spawn_count_open(getpid(), "never-inherit-this"));
	fa_check(!spawn_count_open(pid, "never-inherit-this"));
	fa_check(spawn_count_open(pid, "/dev/null"));
	/* The daemon's stderr is a pipe whose other end is closed. */
	snprintf(path, sizeof(path), "/proc/%d/fd/2", pid);
	n = readlink(path, pipe, sizeof(pipe) - 1);
	fa_check(n > 0);
	pipe[n] = '\0';
	fa_check_contains(pipe, "pipe:");
	fa_check_eq(spawn_count_open(pid, pipe), 1);
	fa_check_eq(spawn_count_open(getpid(), pipe), 0);
	fa_check_eq(getsid(pid) == getsid(0), 0);
	fa_check_eq(strtoull(spawn_proc_status(pid, "SigBlk"), NULL, 16) & 1ull << (SIGUSR1 - 1),
	            0);
	fa_check_eq(strtoull(spawn_proc_status(pid, "SigIgn"), NULL, 16) & 1ull << (SIGUSR2 - 1),
	            0);
	fa_check(!sigprocmask(SIG_BLOCK, NULL, &mask));
	fa_check_eq(sigismember(&mask, SIGUSR1), 1);
	fa_check_eq(sigismember(&mask, SIGTERM), 0);

	/* Others may connect to a spawned daemon; it exits after its last client. */
	options.socket = fa_socket_path(client);
	fa_check_eq(fa_connect(&options, &other), 0);
	fa_disconnect(client);
	fa_test_quiet_ms(100);
	fa_check_eq(fa_ping(other), 0);
	fa_check_eq(spawn_pid(other), pid);
	fa_disconnect(other);
	spawn_check_end(pid);

	fa_check(!sigaction(SIGUSR2, &old, NULL));
	fa_check(!sigprocmask(SIG_UNBLOCK, &usr1, NULL));
	fa_check_eq(fa_test_count_fds(0), before);
	close(inherited);
}

/* The spawned daemon is no child that the caller must reap. */
static void test_no_child(void **state)
{
	struct fa_client *client = spawn_client(NULL, NULL);
	pid_t pid = spawn_pid(client);

	fa_check_eq(waitpid(-1, NULL, WNOHANG), -1);
	fa_check_eq(errno, ECHILD);
	fa_check(atoi(spawn_proc_status(pid, "PPid")) != getpid());
	fa_disconnect(client);
	fa_check_eventually(own_count_entries(spawn_runtime) == 0);
}

static int start_and_leave(void *userdata)
{
	struct fa_client *client = spawn_client(NULL, NULL);
	char path[108] = "";

	strcpy(path, fa_socket_path(client));
	fa_check_eq(write(*(int *)userdata, path, sizeof(path)), sizeof(path));
	pause();
	return 0;
}

static void test_outlives(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	struct fa_client *client;
	pid_t starter, pid;
	char path[108];
	int ends[2];

	fa_check(!pipe2(ends, O_CLOEXEC));
	spawn_adopt_orphans(true);
	starter = fa_test_fork(start_and_leave, &ends[1]);
	fa_check_eq(read(ends[0], path, sizeof(path)), sizeof(path));
	options.socket = path;
	fa_check_eq(fa_connect(&options, &client), 0);
	pid = spawn_pid(client);
	fa_check(!kill(starter, SIGKILL));
	fa_check_eq(WTERMSIG(fa_test_reap(starter)), SIGKILL);
	fa_test_quiet_ms(100);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(spawn_pid(client), pid);
	fa_disconnect(client);
	spawn_check_end(pid);
	spawn_adopt_orphans(false);
	close(ends[0]);
	close(ends[1]);
}

static void test_killed(void **state)
{
	struct fa_info info = { .size = sizeof(info) };
	struct fa_client *client;
	struct fa_buffer *buffer;
	uint64_t generation;
	char path[108];
	pid_t pid, next;

	spawn_adopt_orphans(true);
	client = spawn_client(NULL, NULL);
	strcpy(path, fa_socket_path(client));
	pid = spawn_pid(client);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	strcpy(fa_buffer_data(buffer), "kept");
	fa_check_eq(fa_info(client, &info), 0);
	generation = info.generation;

	fa_check(!kill(pid, SIGKILL));
	fa_check_eq(WTERMSIG(fa_test_reap(pid)), SIGKILL);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	fa_check_eq(fa_ping(client), 0);
	next = spawn_pid(client);
	fa_check(next != pid);
	assert_string_equal(fa_socket_path(client), path);
	fa_check_contains((char *)fa_buffer_data(buffer), "kept");
	fa_check_eq(fa_info(client, &info), 0);
	fa_check(info.generation > generation);
	fa_check_eq(info.reconnects, 1);

	/* Killed with no client left, the daemon leaves nothing in the directory. */
	fa_check(!kill(next, SIGKILL));
	fa_test_reap(next);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	fa_disconnect(client);
	fa_check_eq(own_count_entries(spawn_runtime), 0);

	client = spawn_client(NULL, NULL);
	pid = spawn_pid(client);
	fa_check(!kill(pid, SIGKILL));
	fa_test_reap(pid);
	fa_disconnect(client);
	fa_check_eq(own_count_entries(spawn_runtime), 0);
	spawn_adopt_orphans(false);
}

/* After chdir() the program finds its daemon again. */
static void test_relative(void **state)
{
	_fa_cleanup_(fa_freep) char *kept = strdup(getenv("FAD_DAEMON"));
	_fa_cleanup_(fa_freep) char *program = strdup(kept);
	char *name = strrchr(program, '/');

	*name++ = '\0';
	spawn_adopt_orphans(true);
	for (int i = 0; i < 2; ++i) {
		struct fa_options options = { .size = sizeof(options),
			                      .flags = FA_CONNECT_PRIVATE,
			                      .daemon = i ? NULL : name };
		struct fa_options known = { .size = sizeof(known) };
		struct fa_client *client, *other;
		pid_t pid;

		options.connect_ns = options.reconnect_ns = fa_test_patience_ns();
		known.connect_ns = known.reconnect_ns = fa_test_patience_ns();
		fa_check(!chdir(program));
		fa_check(!setenv("FAD_DAEMON", i ? name : "/nonexistent/fad", 1));
		fa_check_eq(fa_connect(&options, &client), 0);
		fa_check(!chdir(spawn_runtime));
		known.socket = fa_socket_path(client) + strlen(spawn_runtime) + 1;
		fa_check_eq(fa_connect(&known, &other), 0);
		assert_string_equal(fa_socket_path(other), fa_socket_path(client));

		fa_check(!chdir("/"));
		pid = spawn_pid(client);
		fa_check(!kill(pid, SIGKILL));
		fa_test_reap(pid);
		fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
		fa_check_eq(fa_ping(client), 0);
		pid = spawn_pid(client);
		fa_check_eq(fa_client_state(other), FA_CLIENT_LOST);
		fa_check_eq(fa_ping(other), 0);
		fa_disconnect(client);
		fa_disconnect(other);
		spawn_check_end(pid);
	}
	fa_check(!setenv("FAD_DAEMON", kept, 1));
	spawn_adopt_orphans(false);
}

static void test_failures(void **state)
{
	const char *daemon = getenv("FAD_DAEMON");
	_fa_cleanup_(fa_freep) char *kept = strdup(daemon);
	char path[] = "/tmp/fad-test-XXXXXX";
	int fd = mkstemp(path);

	fa_check(fd >= 0);
	fa_check_eq(write(fd, "nonsense\n", 9), 9);
	close(fd);

	spawn_expect_failure("/nonexistent/fad", NULL, -ENOENT, "/nonexistent/fad");
	spawn_expect_failure("/tmp", NULL, -EACCES, "/tmp");
	fa_check(!chmod(path, 0644));
	spawn_expect_failure(path, NULL, -EACCES, path);
	fa_check(!chmod(path, 0755));
	spawn_expect_failure(path, NULL, -ENOEXEC, path);
	spawn_expect_failure("/bin/true", NULL, -ECONNREFUSED, "ended at once and said nothing");
	setenv("FAD_DAEMON", "/nonexistent/too", 1);
	spawn_expect_failure(NULL, NULL, -ENOENT, "/nonexistent/too");

	setenv("FAD_DAEMON", kept, 1);
	unlink(path);
}

static void test_not_needed(void **state)
{
	struct fa_options options = { .size = sizeof(options),
		                      .flags = FA_CONNECT_SPAWN,
		                      .daemon = "/nonexistent/fad" };
	struct fa_info info = { .size = sizeof(info) };
	struct fa_client *client;
	struct fake_daemon fake;

	fake_daemon_start(&fake, fake_daemon_serve, NULL);
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	assert_string_equal(fa_socket_path(client), fake.socket);
	fa_disconnect(client);
	fake_daemon_stop(&fake);

	/* A socket that was named is not replaced by a private daemon's. */
	options.daemon = NULL;
	options.connect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), -ENOENT);
	fa_check_contains(fa_error(), fake.socket);
	fa_check_contains(fa_error(), "in place of a named one");
	options.socket = NULL;
	setenv("FAD_SOCKET", fake.socket, 1);
	fa_check_eq(fa_connect(&options, &client), -ENOENT);
	unsetenv("FAD_SOCKET");
	fa_check_eq(own_count_entries(spawn_runtime), 0);

	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(fa_info(client, &info), 0);
	fa_check_eq(info.origin, FA_DAEMON_SPAWNED);
	fa_check_eq(info.pid, spawn_pid(client));
	fa_check_contains(info.spawn_reason, "/run/fad/fad.sock");
	fa_disconnect(client);
	fa_check_eventually(own_count_entries(spawn_runtime) == 0);
}

/* As after su or sudo -E: the owner of the directory could exchange the socket in it. */
static void test_foreign_directory(void **state)
{
	struct fa_client *client;

	if (geteuid())
		skip();
	fa_check(!chown(spawn_runtime, 65534, 65534));
	client = spawn_client(NULL, NULL);
	fa_check_eq(fa_ping(client), 0);
	fa_check(!strncmp(fa_socket_path(client), "/tmp/fad-", 9));
	fa_check(strncmp(fa_socket_path(client), spawn_runtime, strlen(spawn_runtime)) != 0);
	fa_check_eq(own_count_entries(spawn_runtime), 0);
	fa_disconnect(client);
	fa_check(!chown(spawn_runtime, 0, 0));
}

static void *spawn_one(void *userdata)
{
	struct fa_client *client = spawn_client(NULL, NULL);

	fa_check_eq(fa_ping(client), 0);
	fa_disconnect(client);
	return NULL;
}

static void test_threads(void **state)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; ++i)
		fa_check(!pthread_create(&threads[i], NULL, spawn_one, NULL));
	for (int i = 0; i < 4; ++i)
		pthread_join(threads[i], NULL);
	fa_check_eventually(own_count_entries(spawn_runtime) == 0);
}

static void *run_programs(void *stop)
{
	while (!atomic_load((atomic_bool *)stop)) {
		FILE *program = popen("exec true", "re");

		fa_check(program);
		fa_check_eq(pclose(program), 0);
	}
	return NULL;
}

/* Other threads start programs all the time, for which libc takes locks: glibc from 2.41 on holds
 * that of abort() until the program runs, and sigaction() takes it. */
static void test_beside_other_programs(void **state)
{
	pthread_t threads[3];
	atomic_bool stop = false;

	for (size_t i = 0; i < sizeof(threads) / sizeof(*threads); ++i)
		fa_check_eq(pthread_create(&threads[i], NULL, run_programs, &stop), 0);
	for (int i = 0; i < 20; ++i)
		fa_disconnect(spawn_client(NULL, NULL));
	atomic_store(&stop, true);
	for (size_t i = 0; i < sizeof(threads) / sizeof(*threads); ++i)
		fa_check_eq(pthread_join(threads[i], NULL), 0);
	fa_check_eventually(own_count_entries(spawn_runtime) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_life),       cmocka_unit_test(test_no_child),
		cmocka_unit_test(test_outlives),   cmocka_unit_test(test_killed),
		cmocka_unit_test(test_relative),   cmocka_unit_test(test_failures),
		cmocka_unit_test(test_not_needed), cmocka_unit_test(test_foreign_directory),
		cmocka_unit_test(test_threads),    cmocka_unit_test(test_beside_other_programs),
	};

	return cmocka_run_group_tests_name("spawn", tests, spawn_setup, spawn_teardown);
}
