/* Daemons that the library starts itself: how they begin, live, and end. */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "tests/client/fake.h"
#include "tests/lib/check.h"
#include "tests/lib/dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char runtime[64]; /* XDG_RUNTIME_DIR of these tests */

static int setup(void **state)
{
	if (!getenv("FAD_DAEMON"))
		exit(77);
	fa_test_dir_make(runtime, sizeof(runtime));
	setenv("XDG_RUNTIME_DIR", runtime, 1);
	unsetenv("FAD_SOCKET");
	return 0;
}

static int teardown(void **state)
{
	return rmdir(runtime);
}

/* Orphans come to this process, so that their end can be seen. */
static void adopt_orphans(bool adopt)
{
	fa_check(!prctl(PR_SET_CHILD_SUBREAPER, adopt, 0, 0, 0));
}

static int count_entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	fa_check(dir);
	for (struct dirent *entry; (entry = readdir(dir));)
		n += entry->d_name[0] != '.';
	closedir(dir);
	return n;
}

static struct fa_client *spawn(void)
{
	struct fa_options options = { .size = sizeof(options), .flags = FA_CONNECT_PRIVATE };
	struct fa_client *client;
	int r;

	options.connect_ns = fa_test_patience_ns();
	options.reconnect_ns = fa_test_patience_ns();
	r = fa_connect(&options, &client);
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
	return client;
}

static pid_t daemon_pid(struct fa_client *client)
{
	json_t *status;
	pid_t pid;
	char *json;

	fa_check_eq(fa_status(client, &json), 0);
	status = json_loads(json, 0, NULL);
	fa_check(status);
	pid = (pid_t)json_integer_value(json_object_get(status, "pid"));
	fa_check(pid > 0);
	json_decref(status);
	free(json);
	return pid;
}

/* A line of /proc/PID/status, after its name and colon. */
static char *proc_status(pid_t pid, const char *name)
{
	static char line[256];
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "re");
	fa_check(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name))) {
			fclose(file);
			return line + strlen(name) + 1;
		}
	fclose(file);
	fa_test_fail(__FILE__, __LINE__, "no %s in %s", name, path);
	return NULL;
}

static bool has_open(pid_t pid, const char *part)
{
	char path[64], target[256];
	bool found = false;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	fa_check(dir);
	for (struct dirent *entry; (entry = readdir(dir));) {
		ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

		if (n < 0)
			continue;
		target[n] = '\0';
		found = found || strstr(target, part);
	}
	closedir(dir);
	return found;
}

/* The daemon has ended well and nothing is left of it. */
static void check_end(pid_t pid)
{
	int status = -1;

	fa_check_eventually(waitpid(pid, &status, WNOHANG) == pid);
	fa_check_eq(status, 0);
	fa_check_eq(count_entries(runtime), 0);
}

static void test_life(void **state)
{
	int inherited = memfd_create("never-inherit-this", 0), before = fa_test_count_fds(0);
	struct sigaction ignore = { .sa_handler = SIG_IGN }, old;
	char dir[128];
	sigset_t usr1, mask;
	struct fa_client *client, *other;
	struct fa_options options = { .size = sizeof(options) };
	struct stat st;
	pid_t pid;

	/* What a program may have done to its signals. */
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	fa_check(!sigprocmask(SIG_BLOCK, &usr1, NULL));
	fa_check(!sigaction(SIGUSR2, &ignore, &old));
	adopt_orphans(true);
	client = spawn();
	adopt_orphans(false);

	/* A private place. */
	fa_check(!strncmp(fa_socket(client), runtime, strlen(runtime)));
	snprintf(dir, sizeof(dir), "%s", fa_socket(client));
	*strrchr(dir, '/') = '\0';
	fa_check(!stat(dir, &st));
	fa_check_eq(st.st_mode & 0777, 0700);

	/* A process that has nothing of ours. */
	pid = daemon_pid(client);
	fa_check(inherited >= 0 && has_open(getpid(), "never-inherit-this"));
	fa_check(!has_open(pid, "never-inherit-this"));
	fa_check(has_open(pid, "/dev/null"));
	fa_check_eq(getsid(pid) == getsid(0), 0);
	fa_check_eq(strtoull(proc_status(pid, "SigBlk"), NULL, 16) & 1ull << (SIGUSR1 - 1), 0);
	fa_check_eq(strtoull(proc_status(pid, "SigIgn"), NULL, 16) & 1ull << (SIGUSR2 - 1), 0);
	/* And our signals are as they were. */
	fa_check(!sigprocmask(SIG_BLOCK, NULL, &mask));
	fa_check_eq(sigismember(&mask, SIGUSR1), 1);
	fa_check_eq(sigismember(&mask, SIGTERM), 0);

	/* Others may join; it ends with the last. */
	options.socket = fa_socket(client);
	fa_check_eq(fa_connect(&options, &other), 0);
	fa_disconnect(client);
	fa_test_sleep_ms(100);
	fa_check_eq(fa_ping(other), 0);
	fa_check_eq(daemon_pid(other), pid);
	fa_disconnect(other);
	check_end(pid);

	fa_check(!sigaction(SIGUSR2, &old, NULL));
	fa_check(!sigprocmask(SIG_UNBLOCK, &usr1, NULL));
	fa_check_eq(fa_test_count_fds(0), before);
	close(inherited);
}

/* No process of it is the caller's to reap. */
static void test_no_child(void **state)
{
	struct fa_client *client = spawn();
	pid_t pid = daemon_pid(client);

	fa_check_eq(waitpid(-1, NULL, WNOHANG), -1);
	fa_check_eq(errno, ECHILD);
	fa_check(atoi(proc_status(pid, "PPid")) != getpid());
	fa_disconnect(client);
	fa_check_eventually(count_entries(runtime) == 0);
}

/* It outlives the process that started it, as long as somebody else uses it. */
static int start_and_leave(void *userdata)
{
	struct fa_client *client = spawn();
	char path[108] = "";

	strcpy(path, fa_socket(client));
	fa_check_eq(write(*(int *)userdata, path, sizeof(path)), sizeof(path));
	/* Until the other has joined. */
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
	adopt_orphans(true);
	starter = fa_test_fork(start_and_leave, &ends[1]);
	fa_check_eq(read(ends[0], path, sizeof(path)), sizeof(path));
	options.socket = path;
	fa_check_eq(fa_connect(&options, &client), 0);
	pid = daemon_pid(client);
	fa_check(!kill(starter, SIGKILL));
	fa_check_eq(WTERMSIG(fa_test_reap(starter)), SIGKILL);
	fa_test_sleep_ms(100);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(daemon_pid(client), pid);
	fa_disconnect(client);
	check_end(pid);
	adopt_orphans(false);
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

	adopt_orphans(true);
	client = spawn();
	strcpy(path, fa_socket(client));
	pid = daemon_pid(client);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	strcpy(fa_buffer_data(buffer), "kept");
	fa_check_eq(fa_info(client, &info), 0);
	generation = info.generation;

	fa_check(!kill(pid, SIGKILL));
	fa_check_eq(WTERMSIG(fa_test_reap(pid)), SIGKILL);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	fa_check_eq(fa_ping(client), 0);
	next = daemon_pid(client);
	fa_check(next != pid);
	assert_string_equal(fa_socket(client), path);
	fa_check_contains((char *)fa_buffer_data(buffer), "kept");
	fa_check_eq(fa_info(client, &info), 0);
	fa_check(info.generation > generation);
	fa_check_eq(info.reconnects, 1);

	/* Killed again, and nobody comes back: what it left is removed. */
	fa_check(!kill(next, SIGKILL));
	fa_test_reap(next);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	fa_disconnect(client);
	fa_check_eq(count_entries(runtime), 0);

	/* The same, and nobody has noticed. */
	client = spawn();
	pid = daemon_pid(client);
	fa_check(!kill(pid, SIGKILL));
	fa_test_reap(pid);
	fa_disconnect(client);
	fa_check_eq(count_entries(runtime), 0);
	adopt_orphans(false);
}

/* A program that goes elsewhere finds its daemon again, whatever path it was told. */
static void test_relative(void **state)
{
	_fa_cleanup_(fa_freep) char *kept = strdup(getenv("FAD_DAEMON"));
	_fa_cleanup_(fa_freep) char *program = strdup(kept);
	char *name = strrchr(program, '/');

	*name++ = '\0';
	adopt_orphans(true);
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
		fa_check(!chdir(runtime));
		known.socket = fa_socket(client) + strlen(runtime) + 1;
		fa_check_eq(fa_connect(&known, &other), 0);
		assert_string_equal(fa_socket(other), fa_socket(client));

		fa_check(!chdir("/"));
		pid = daemon_pid(client);
		fa_check(!kill(pid, SIGKILL));
		fa_test_reap(pid);
		fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
		fa_check_eq(fa_ping(client), 0);
		pid = daemon_pid(client);
		fa_check_eq(fa_client_state(other), FA_CLIENT_LOST);
		fa_check_eq(fa_ping(other), 0);
		fa_disconnect(client);
		fa_disconnect(other);
		check_end(pid);
	}
	fa_check(!setenv("FAD_DAEMON", kept, 1));
	adopt_orphans(false);
}

static void expect_failure(const char *daemon, int code, const char *part)
{
	struct fa_options options = { .size = sizeof(options),
		                      .flags = FA_CONNECT_PRIVATE,
		                      .daemon = daemon };
	int before = fa_test_count_fds(0);
	struct fa_client *client;
	int r;

	r = fa_connect(&options, &client);
	if (r != code)
		fa_test_fail(__FILE__, __LINE__, "%s: %d instead of %d: %s", daemon, r, code,
		             fa_error());
	fa_check_contains(fa_error(), part);
	fa_check_eq(count_entries(runtime), 0);
	fa_check_eq(fa_test_count_fds(0), before);
	fa_check_eq(waitpid(-1, NULL, WNOHANG), -1);
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

	expect_failure("/nonexistent/fad", -ENOENT, "/nonexistent/fad");
	expect_failure("/tmp", -EACCES, "/tmp");
	fa_check(!chmod(path, 0644));
	expect_failure(path, -EACCES, path);
	fa_check(!chmod(path, 0755));
	expect_failure(path, -ENOEXEC, path);
	/* Programs that start and end. */
	expect_failure("/bin/true", -ECONNREFUSED, "ended at once");
	setenv("FAD_DAEMON", "/nonexistent/too", 1);
	expect_failure(NULL, -ENOENT, "/nonexistent/too");

	setenv("FAD_DAEMON", kept, 1);
	unlink(path);
}

/* Where a daemon answers, none is started. */
static void test_not_needed(void **state)
{
	struct fa_options options = { .size = sizeof(options),
		                      .flags = FA_CONNECT_SPAWN,
		                      .daemon = "/nonexistent/fad" };
	struct fa_client *client;
	struct fa_fake fake;

	fa_fake_start(&fake, fa_fake_serve, NULL);
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	assert_string_equal(fa_socket(client), fake.socket);
	fa_disconnect(client);
	fa_fake_stop(&fake);

	/* And where none does, the usual way. */
	options.daemon = NULL;
	options.connect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_ping(client), 0);
	fa_disconnect(client);
	fa_check_eventually(count_entries(runtime) == 0);
}

/* Several threads at once, each with a daemon of its own. */
static void *spawn_one(void *userdata)
{
	struct fa_client *client = spawn();

	fa_check_eq(fa_ping(client), 0);
	fa_disconnect(client);
	return NULL;
}

static void test_many(void **state)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; ++i)
		fa_check(!pthread_create(&threads[i], NULL, spawn_one, NULL));
	for (int i = 0; i < 4; ++i)
		pthread_join(threads[i], NULL);
	fa_check_eventually(count_entries(runtime) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_life),       cmocka_unit_test(test_no_child),
		cmocka_unit_test(test_outlives),   cmocka_unit_test(test_killed),
		cmocka_unit_test(test_relative),   cmocka_unit_test(test_failures),
		cmocka_unit_test(test_not_needed), cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests_name("spawn", tests, setup, teardown);
}
