/*
 * fad --supervise restarts a child that dies with the same socket, so that clients find it at any
 * time, and passes on signals; a daemon that cannot start ends it.
 */
#include "common/cleanup.h"
#include "common/timeline.h"
#include "tests/lib/at_once.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/dir.h"
#include "tests/lib/raw.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_test_daemon supervisor;

static const char *const supervise[] = { "--supervise", NULL };

static void start(const struct fa_test_daemon_options *more)
{
	struct fa_test_daemon_options options = more ? *more : (struct fa_test_daemon_options){ 0 };

	if (!options.args)
		options.args = supervise;
	fa_test_daemon_start(&supervisor, &options);
}

static int stop(void **state)
{
	fa_test_daemon_stop(&supervisor);
	return 0;
}

static void check_serves(void)
{
	struct fa_raw raw;

	fa_raw_open(&raw, supervisor.socket);
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
}

/* Whenever the child dies, no connection is refused, and each is served. */
/* Lines of supervisor and daemon begin with the time. */
static void check_times(void)
{
	_fa_cleanup_(fa_freep) char *log = fa_test_daemon_log(&supervisor);

	for (const char *line = log; *line; line = strchr(line, '\n') + 1) {
		int n = 0;

		(void)sscanf(line, "%*4u-%*2u-%*2uT%*2u:%*2u:%*2u.%*3uZ fad: %n", &n);
		if (n == 0 || !strchr(line, '\n'))
			fa_test_fail(__FILE__, __LINE__, "no time in the log: %s", line);
	}
}

static void test_kill(void **state)
{
	pid_t before;

	start(NULL);
	check_serves();
	for (int i = 0; i < 5; i++) {
		before = fa_test_daemon_child(&supervisor);
		fa_check(before > 0);
		kill(before, i % 2 ? SIGKILL : SIGABRT);
		check_serves();
		(void)fa_test_daemon_next_child(&supervisor, before);
	}
	fa_test_daemon_log_wait(&supervisor,
	                        "was killed by signal 9; starting it again with 3 stored");
	check_serves();
	check_times();
}

static long status_kb(pid_t pid, const char *name)
{
	char path[32], line[128];
	long kb = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%ld/status", (long)pid);
	file = fopen(path, "re");
	fa_check(file != NULL);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			(void)sscanf(line + strlen(name), ": %ld", &kb);
	(void)fclose(file);
	fa_check(kb > 0);
	return kb;
}

static void read_exe(pid_t pid, char *ret_path, size_t size)
{
	char link[32];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/%ld/exe", (long)pid);
	n = readlink(link, ret_path, size - 1);
	fa_check(n > 0);
	ret_path[n] = '\0';
}

/*
 * The supervisor is a program of its own, with less memory than the daemon, which an out-of-memory
 * kill thus prefers.
 */
static int oom_score(pid_t pid)
{
	int score = 0;
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
	file = fopen(path, "re");
	fa_check(file && fscanf(file, "%d", &score) == 1);
	fclose(file);
	return score;
}

static void test_programs(void **state)
{
	char daemon[PATH_MAX], exe[PATH_MAX], path[32], name[32] = "";
	pid_t child;
	FILE *file;

	start(NULL);
	fa_check(realpath(getenv("FAD_DAEMON"), daemon) != NULL);
	read_exe(supervisor.pid, exe, sizeof(exe));
	fa_check(!strcmp(strrchr(exe, '/'), "/fad-supervise"));
	child = fa_test_daemon_next_child(&supervisor, 0);
	for (int i = 0; i < 2; i++) {
		check_serves();
		/* Short memory ends the daemon first. */
		fa_check(oom_score(child) >= oom_score(supervisor.pid) + 100);
		read_exe(child, exe, sizeof(exe));
		fa_check(!strcmp(exe, daemon));
		snprintf(path, sizeof(path), "/proc/%ld/comm", (long)child);
		file = fopen(path, "re");
		fa_check(file && fgets(name, sizeof(name), file));
		(void)fclose(file);
		fa_check(!strcmp(name, "fad\n"));
		if (!fa_test_sanitized())
			fa_check(status_kb(supervisor.pid, "RssAnon") <
			         status_kb(child, "RssAnon"));
		kill(child, SIGKILL);
		child = fa_test_daemon_next_child(&supervisor, child);
	}
}

static int count_children(pid_t pid)
{
	char path[64], line[256] = "";
	FILE *file;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	file = fopen(path, "re");
	fa_check(file);
	(void)!fgets(line, sizeof(line), file);
	fclose(file);
	for (const char *at = line; (at = strchr(at, ' ')); ++at)
		++n;
	return n;
}

static int run_first_process(void *userdata)
{
	struct fa_test_daemon_options options = {};
	char dir[32];
	pid_t child;

	/* Before unshare(), as it starts a process, which would become PID 1 of the new
	 * namespace. */
	fa_test_dir_make(dir, sizeof(dir));
	options.dir = dir;
	if (unshare(CLONE_NEWPID) < 0)
		return 77;
	start(&options);
	for (int i = 0; i < 3; i++) {
		check_serves();
		child = fa_test_daemon_child(&supervisor);
		fa_check(child > 0 && !kill(child, SIGKILL));
		(void)fa_test_daemon_next_child(&supervisor, child);
	}
	check_serves();
	fa_check_eventually(count_children(supervisor.pid) == 1);
	fa_test_daemon_stop(&supervisor);
	fa_test_dir_remove(dir);
	return 0;
}

/* As the first process of a container the supervisor leaves no zombies of what dead daemons leave. */
static void test_first_process(void **state)
{
	int status = fa_test_reap(fa_test_fork(run_first_process, NULL));

	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	fa_check_eq(status, 0);
}

static void test_sigterm(void **state)
{
	pid_t child;

	start(NULL);
	child = fa_test_daemon_next_child(&supervisor, 0);
	fa_test_daemon_signal(&supervisor, SIGTERM);
	fa_check_eq(fa_test_daemon_reap(&supervisor), 0);
	fa_check(kill(child, 0) < 0);
	fa_check(access(supervisor.socket, F_OK) < 0);
}

static void test_sighup(void **state)
{
	start(NULL);
	fa_test_daemon_signal(&supervisor, SIGHUP);
	fa_test_daemon_log_wait(&supervisor, "the configuration was read again");
	check_serves();
}

/* SIGHUP neither kills a child nor delays its start. */
static void test_sighup_after_kills(void **state)
{
	_fa_cleanup_(fa_freep) char *log = NULL;
	pid_t child;

	start(NULL);
	for (int i = 0; i < 4; i++) {
		const uint64_t until_ns = fa_deadline_ns(fa_test_patience_ns());

		child = fa_test_daemon_next_child(&supervisor, 0);
		check_serves();
		kill(child, SIGKILL);
		for (int j = 0; j < 250 || fa_test_daemon_child(&supervisor) <= 0; j++) {
			fa_check(fa_now_ns() < until_ns);
			fa_test_daemon_signal(&supervisor, SIGHUP);
			fa_test_any_moment_us(2000);
		}
	}
	check_serves();
	log = fa_test_daemon_log(&supervisor);
	fa_check(!strstr(log, "killed by signal 1;"));
	supervisor.found_at = strlen(log);
	/* Between two children SIGHUP goes to the next one. */
	for (int i = 0; i < 5; i++) {
		child = fa_test_daemon_next_child(&supervisor, 0);
		kill(child, SIGKILL);
		(void)fa_test_daemon_next_child(&supervisor, child);
		fa_test_daemon_signal(&supervisor, SIGHUP);
		fa_test_daemon_log_wait(&supervisor, "the configuration was read again");
		check_serves();
	}
}

static void test_sigterm_after_kills(void **state)
{
	start(NULL);
	for (int i = 0; i < 3; i++) {
		pid_t child = fa_test_daemon_child(&supervisor);

		if (child > 0)
			kill(child, SIGKILL);
		fa_test_any_moment_us(5000);
	}
	fa_test_daemon_signal(&supervisor, SIGTERM);
	(void)fa_test_daemon_reap(&supervisor);
}

/* The next child makes another socket. */
static void test_path_gone(void **state)
{
	struct fa_raw raw;

	start(NULL);
	fa_check_eq(unlink(supervisor.socket), 0);
	kill(fa_test_daemon_next_child(&supervisor, 0), SIGKILL);
	fa_test_daemon_log_wait(&supervisor, "has gone; another is made");
	/* The path exists before the socket listens. */
	fa_check_eventually(fa_raw_connect_try(&raw, supervisor.socket) == 0);
	fa_raw_close(&raw);
	check_serves();
}

static void test_exit_when_idle(void **state)
{
	static const char *const args[] = { "--supervise", "--exit-when-idle", NULL };
	const struct fa_test_daemon_options options = { .args = args };

	start(&options);
	check_serves();
	fa_check_eq(fa_test_daemon_reap(&supervisor), 0);
}

/* The daemon waits for lost clients, though others have come and gone. */
static void test_exit_when_idle_after_kill(void **state)
{
	static const char *const args[] = { "--supervise", "--exit-when-idle", NULL };
	const struct fa_test_daemon_options options = { .args = args,
		                                        .config = "[pool]\nbytes = 4M\n" };
	struct fa_raw lost;

	start(&options);
	fa_raw_open(&lost, supervisor.socket);
	kill(fa_test_daemon_next_child(&supervisor, 0), SIGKILL);
	fa_raw_close(&lost);
	for (int i = 0; i < 3; i++) {
		check_serves();
		fa_test_quiet_ms(50);
	}
}

static void test_never_ready(void **state)
{
	static const char *const args[] = { "--supervise", "--backend", "abacus", NULL };
	const struct fa_test_daemon_options options = { .args = args };
	int status;

	fa_check(!fa_test_daemon_try(&supervisor, &options));
	status = fa_test_daemon_reap(&supervisor);
	fa_check(WIFEXITED(status) && WEXITSTATUS(status) != 0);
}

/* Returns true if the socket has a name in the file system, the daemon's excepted. */
static bool has_name(unsigned long socket)
{
	FILE *file = fopen("/proc/net/unix", "re");
	char line[256], path[128];
	unsigned long inode;
	bool found = false;

	fa_check(file != NULL);
	while (fgets(line, sizeof(line), file))
		found |= sscanf(line, "%*s %*s %*s %*s %*s %*s %lu %127s", &inode, path) == 2 &&
		         inode == socket && strcmp(path, supervisor.socket) != 0 &&
		         access(path, F_OK) == 0;
	(void)fclose(file);
	return found;
}

/* A killed supervisor leaves no file behind. */
static void check_nameless(void)
{
	unsigned long inode;
	char path[64], target[64];
	struct dirent *entry;
	int n_sockets = 0;
	DIR *directory;

	snprintf(path, sizeof(path), "/proc/%ld/fd", (long)supervisor.pid);
	directory = opendir(path);
	fa_check(directory != NULL);
	while ((entry = readdir(directory)) != NULL) {
		ssize_t n = readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		if (sscanf(target, "socket:[%lu]", &inode) != 1)
			continue;
		n_sockets++;
		fa_check(!has_name(inode));
	}
	closedir(directory);
	fa_check(n_sockets > 0);
}

/* The child exits in order, and nothing is left of both. */
static void test_supervisor_killed(void **state)
{
	char exe[32], target[8];
	pid_t child;
	int status;

	start(NULL);
	child = fa_test_daemon_next_child(&supervisor, 0);
	check_serves();
	check_nameless();
	snprintf(exe, sizeof(exe), "/proc/%ld/exe", (long)child);
	fa_test_daemon_signal(&supervisor, SIGKILL);
	fa_check_eventually(access(supervisor.socket, F_OK) < 0);
	fa_check_eventually(readlink(exe, target, sizeof(target)) < 0);
	status = fa_test_daemon_reap(&supervisor);
	fa_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/*
 * Every child crashes before it is ready, for lack of memory. The stored state is dropped, except
 * the socket, and the daemon serves again.
 */
static void test_crash_loop(void **state)
{
	const struct rlimit none = { .rlim_cur = 4096, .rlim_max = RLIM_INFINITY };
	struct rlimit before;

	if (fa_test_sanitized())
		skip();
	start(NULL);
	check_serves();
	fa_check_eq(prlimit(supervisor.pid, RLIMIT_AS, NULL, &before), 0);
	if (before.rlim_max != RLIM_INFINITY)
		skip();
	fa_check_eq(prlimit(supervisor.pid, RLIMIT_AS, &none, NULL), 0);
	kill(fa_test_daemon_next_child(&supervisor, 0), SIGKILL);
	fa_test_daemon_log_wait(&supervisor, "2 stored descriptors are dropped");
	fa_check_eq(prlimit(supervisor.pid, RLIMIT_AS, &before, NULL), 0);
	check_serves();
}

static int timeline_setup(struct fa_raw *raw)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);

	fa_raw_call(raw, &message, NULL, 0);
	if (raw->message.type == FA_WIRE_TIMELINE_REPLY)
		return 0;
	fa_check_eq(raw->message.type, FA_WIRE_REPLY);
	return raw->message.reply.status;
}

static const struct fa_timeline_out *map_out(const struct fa_raw *raw)
{
	const struct fa_timeline_out *out = mmap(NULL, FA_TIMELINE_BYTES, PROT_READ, MAP_SHARED,
	                                         raw->fds[1], 0);

	fa_check(out != MAP_FAILED);
	return out;
}

static bool is_released(const struct fa_timeline_out *out)
{
	for (int i = 0; i < FA_TIMELINE_SLOTS; ++i)
		if (out[i].value != FA_TIMELINE_RELEASE || out[i].failed != out[i].value ||
		    out[i].status != -ECONNRESET)
			return false;
	return true;
}

static void test_timelines(void **state)
{
	enum {
		N = 2300,
	};
	static const struct fa_timeline_out *outs[N];
	static struct fa_raw raw;
	static int fds[N];
	struct rlimit limit;
	pid_t child;

	fa_check(!getrlimit(RLIMIT_NOFILE, &limit));
	/*
	 * A timeline takes one descriptor here, two in the daemon; the supervisor stores half of
	 * its limit.
	 */
	if (limit.rlim_max < 3 * N)
		skip();
	limit.rlim_cur = limit.rlim_max;
	fa_check(!setrlimit(RLIMIT_NOFILE, &limit));
	start(&(struct fa_test_daemon_options){
		.config = "[limits]\nsessions = 4000\ntimelines = 4000\n" });
	child = fa_test_daemon_next_child(&supervisor, 0);
	for (int i = 0; i < N; ++i) {
		fa_raw_open(&raw, supervisor.socket);
		fa_check_eq(timeline_setup(&raw), 0);
		outs[i] = map_out(&raw);
		fds[i] = dup(raw.fd);
		fa_check(fds[i] >= 0);
		fa_raw_close(&raw);
	}
	for (int i = 0; i < N; ++i)
		fa_check(!is_released(outs[i]));
	kill(child, SIGKILL);
	for (int i = 0; i < N; ++i)
		fa_check_eventually(is_released(outs[i]));
	check_serves();
	kill(fa_test_daemon_next_child(&supervisor, 0), SIGKILL);
	fa_test_daemon_log_wait(&supervisor, "starting it again");
	fa_test_daemon_log_wait(&supervisor, "starting it again");
	check_serves();
	for (int i = 0; i < N; ++i) {
		fa_check(is_released(outs[i]));
		munmap((void *)outs[i], FA_TIMELINE_BYTES);
		close(fds[i]);
	}
}

enum {
	FILES = 200,
	/* timelines that the supervisor stores, and one user's share */
	MOST = (FILES - 64) / 2,
	SHARE = MOST / 2,
};

/* @n timelines can be made; one more is refused with @text until another is gone. */
static void check_timelines(int n, const char *text)
{
	static struct fa_raw raws[MOST], one_more;

	for (int i = 0; i < n; ++i) {
		fa_raw_open(&raws[i], supervisor.socket);
		fa_check_eq(timeline_setup(&raws[i]), 0);
	}
	fa_raw_open(&one_more, supervisor.socket);
	fa_check_eq(timeline_setup(&one_more), -EDQUOT);
	fa_check_contains(one_more.message.reply.text.text, text);
	fa_check_eq(timeline_setup(&one_more), -EDQUOT);
	fa_raw_close(&raws[7]);
	fa_check_eventually(timeline_setup(&one_more) == 0);
	fa_raw_close(&one_more);
	for (int i = 0; i < n; ++i)
		fa_raw_close(&raws[i]);
}

static void test_timelines_full(void **state)
{
	start(&(struct fa_test_daemon_options){
		.nofile = FILES, .config = "[limits]\ntimelines = 1000\nfds = 150\n" });
	check_timelines(MOST, "1 more timeline than 68");
}

static void test_timelines_share(void **state)
{
	start(&(struct fa_test_daemon_options){ .nofile = FILES });
	check_timelines(SHARE, "the limit timelines, which is 34 for a user");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_kill, stop),
		cmocka_unit_test_teardown(test_programs, stop),
		cmocka_unit_test(test_first_process),
		cmocka_unit_test_teardown(test_sigterm, stop),
		cmocka_unit_test_teardown(test_sighup, stop),
		cmocka_unit_test_teardown(test_sighup_after_kills, stop),
		cmocka_unit_test_teardown(test_sigterm_after_kills, stop),
		cmocka_unit_test_teardown(test_path_gone, stop),
		cmocka_unit_test_teardown(test_exit_when_idle, stop),
		cmocka_unit_test_teardown(test_exit_when_idle_after_kill, stop),
		cmocka_unit_test(test_never_ready),
		cmocka_unit_test_teardown(test_supervisor_killed, stop),
		cmocka_unit_test_teardown(test_crash_loop, stop),
		cmocka_unit_test_teardown(test_timelines, stop),
		cmocka_unit_test_teardown(test_timelines_full, stop),
		cmocka_unit_test_teardown(test_timelines_share, stop),
	};

	return fa_test_run_at_once("supervise", tests, NULL, NULL);
}
