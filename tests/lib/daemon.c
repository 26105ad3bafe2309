#include "tests/lib/daemon.h"

#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGS_MAX 40

/* What a crashed daemon or a sanitizer writes to stderr. */
static const char *const complaints[] = {
	"ERROR: AddressSanitizer",
	"ERROR: LeakSanitizer",
	"WARNING: ThreadSanitizer",
	"runtime error:",
	"SUMMARY: ",
	"Assertion",
	"Validation Error", /* Vulkan's layers */
};

static void file_write(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	fa_check(file);
	fa_check(fputs(text, file) >= 0);
	fa_check(!fclose(file));
}

static char *file_read(const char *path)
{
	size_t length = 0, size = 0;
	char *text = NULL;
	FILE *file;

	file = fopen(path, "re");
	if (!file)
		return strdup("");
	for (;;) {
		size_t n;

		if (length + 4096 > size) {
			size = length + 65536;
			text = realloc(text, size + 1);
			fa_check(text);
		}
		n = fread(text + length, 1, size - length, file);
		if (!n)
			break;
		length += n;
	}
	fclose(file);
	text[length] = 0;
	return text;
}

static void run(struct fa_test_daemon *daemon, const struct fa_test_daemon_options *options,
                int ready_fd)
{
	const char *args[ARGS_MAX], *path = getenv("FAD_DAEMON");
	const char *backend = getenv("FAD_TEST_BACKEND");
	int n = 0, log;
	char number[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (options->nofile) {
		struct rlimit limit = { options->nofile, options->nofile };

		setrlimit(RLIMIT_NOFILE, &limit);
	}
	log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	/* Vulkan's layers write to stdout. */
	if (log < 0 || dup2(log, STDERR_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0)
		_exit(FA_TEST_EXIT);
	close(log);
	fcntl(ready_fd, F_SETFD, 0);

	snprintf(number, sizeof(number), "%d", ready_fd);
	args[n++] = path;
	args[n++] = "--socket";
	args[n++] = daemon->socket;
	args[n++] = "--ready-fd";
	args[n++] = number;
	args[n++] = "--log";
	args[n++] = "stderr";
	args[n++] = "--config";
	args[n++] = daemon->config;
	if (backend) {
		args[n++] = "--backend";
		args[n++] = backend;
	}
	for (const char *const *arg = options->args; arg && *arg && n < ARGS_MAX - 1; ++arg)
		args[n++] = *arg;
	args[n] = NULL;
	execv(path, (char **)args);
	fprintf(stderr, "%s: %m\n", path);
	_exit(FA_TEST_EXIT);
}

/* Also at the end of @fd; false: time-out. */
static bool wait_readable(int fd, uint64_t deadline_ns)
{
	struct pollfd pollfd = { .fd = fd, .events = POLLIN };

	for (;;) {
		const uint64_t now_ns = fa_now_ns();

		if (now_ns >= deadline_ns)
			return false;
		if (poll(&pollfd, 1, (int)((deadline_ns - now_ns) / FA_NS_PER_MS) + 1) > 0)
			return true;
	}
}

/* False: the pipe was closed before "READY" came. */
static bool wait_ready(int fd)
{
	uint64_t deadline = fa_deadline_ns(fa_test_patience_ns());
	char text[16] = "";

	if (!wait_readable(fd, deadline))
		return false;
	return read(fd, text, sizeof(text) - 1) > 0 && !strcmp(text, "READY\n");
}

bool fa_test_daemon_try(struct fa_test_daemon *daemon, const struct fa_test_daemon_options *options)
{
	static const struct fa_test_daemon_options none;
	_fa_cleanup_(fa_close_fdp) int ready = -1;
	int fds[2];

	if (!options)
		options = &none;
	if (!getenv("FAD_DAEMON")) {
		fprintf(stderr, "FAD_DAEMON is not set: there is no daemon to test\n");
		exit(77);
	}

	memset(daemon, 0, sizeof(*daemon));
	if (options->dir) {
		snprintf(daemon->dir, sizeof(daemon->dir), "%s", options->dir);
	} else {
		fa_test_dir_make(daemon->dir, sizeof(daemon->dir));
		daemon->own_dir = true;
	}
	if (options->everyone)
		fa_check(!chmod(daemon->dir, 0755));
	snprintf(daemon->socket, sizeof(daemon->socket), "%s/fad.sock", daemon->dir);
	snprintf(daemon->config, sizeof(daemon->config), "%s/fad.conf", daemon->dir);
	snprintf(daemon->log, sizeof(daemon->log), "%s/log", daemon->dir);
	file_write(daemon->config, options->config     ? options->config
	                           : options->everyone ? "[daemon]\nmode = 0666\n"
	                                               : "");

	fa_check(!pipe2(fds, O_CLOEXEC));
	ready = fds[0];
	fflush(NULL);
	daemon->pid = fork();
	fa_check(daemon->pid >= 0);
	if (!daemon->pid)
		run(daemon, options, fds[1]);
	close(fds[1]);
	return wait_ready(ready);
}

static void remove_dir(const struct fa_test_daemon *daemon)
{
	if (daemon->own_dir)
		fa_test_dir_remove(daemon->dir);
}

void fa_test_daemon_tune(const char *name, const char *value)
{
	const char *tunable = getenv("FAD_TUNABLE_DAEMON");
	char variable[64];

	snprintf(variable, sizeof(variable), "FAD_TUNE_%s", name);
	setenv(variable, value, 1);
	if (tunable)
		setenv("FAD_DAEMON", tunable, 1);
}

void fa_test_daemon_start(struct fa_test_daemon *daemon,
                          const struct fa_test_daemon_options *options)
{
	if (!fa_test_daemon_try(daemon, options)) {
		_fa_cleanup_(fa_freep) char *log = fa_test_daemon_log(daemon);

		kill(daemon->pid, SIGKILL);
		fa_test_reap(daemon->pid);
		daemon->pid = 0;
		remove_dir(daemon);
		fa_test_fail(__FILE__, __LINE__, "the daemon did not come up; it wrote: %s", log);
	}
}

pid_t fa_test_daemon_child(const struct fa_test_daemon *supervisor)
{
	char path[64], line[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%ld/task/%ld/children", (long)supervisor->pid,
	         (long)supervisor->pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (!fgets(line, sizeof(line), file))
		line[0] = '\0';
	(void)fclose(file);
	return (pid_t)atol(line);
}

pid_t fa_test_daemon_next_child(const struct fa_test_daemon *supervisor, pid_t before)
{
	pid_t next = 0;

	fa_check_eventually((next = fa_test_daemon_child(supervisor)) > 0 && next != before);
	return next;
}

char *fa_test_daemon_log(const struct fa_test_daemon *daemon)
{
	return file_read(daemon->log);
}

void fa_test_daemon_log_wait(struct fa_test_daemon *daemon, const char *part)
{
	uint64_t deadline = fa_deadline_ns(fa_test_patience_ns()), pause_ns = 0;
	_fa_cleanup_(fa_close_fdp) int writes = inotify_init1(IN_CLOEXEC);
	/* inotify instances are limited per user; without one, poll the log. */
	const bool has_events = inotify_add_watch(writes, daemon->log, IN_MODIFY) >= 0;
	char events[4096];

	for (;;) {
		_fa_cleanup_(fa_freep) char *log = fa_test_daemon_log(daemon);
		size_t from = daemon->found_at;
		char *found = strstr(log + (from <= strlen(log) ? from : 0), part);

		if (found) {
			daemon->found_at = (uint64_t)(found - log) + strlen(part);
			return;
		}
		if (has_events ? !wait_readable(writes, deadline) : fa_now_ns() > deadline)
			fa_test_fail(__FILE__, __LINE__,
			             "the daemon's log never said \"%s\"; it says: %s", part, log);
		if (has_events)
			fa_check(read(writes, events, sizeof(events)) > 0);
		else
			fa_test_poll_pause(&pause_ns);
	}
}

void fa_test_daemon_signal(struct fa_test_daemon *daemon, int signal)
{
	fa_check(daemon->pid > 0);
	fa_check(!kill(daemon->pid, signal));
}

bool fa_test_daemon_is_dead(struct fa_test_daemon *daemon)
{
	siginfo_t info = { 0 };

	if (waitid(P_PID, (id_t)daemon->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
		return true;
	return info.si_pid == daemon->pid;
}

static bool wait_dead(struct fa_test_daemon *daemon)
{
	_fa_cleanup_(fa_close_fdp) int end = (int)syscall(SYS_pidfd_open, daemon->pid, 0);
	const uint64_t deadline_ns = fa_deadline_ns(fa_test_patience_ns());
	uint64_t pause_ns = 0;

	if (end >= 0)
		return wait_readable(end, deadline_ns);
	/* pidfd_open() fails before Linux 5.3, and for a reaped daemon. */
	while (!fa_test_daemon_is_dead(daemon)) {
		if (fa_now_ns() > deadline_ns)
			return false;
		fa_test_poll_pause(&pause_ns);
	}
	return true;
}

void fa_test_daemon_wait_dead(struct fa_test_daemon *daemon)
{
	fa_check(wait_dead(daemon));
}

int fa_test_daemon_reap(struct fa_test_daemon *daemon)
{
	_fa_cleanup_(fa_freep) char *log = NULL;
	bool late = false;
	int status;

	if (!wait_dead(daemon)) {
		late = true;
		kill(daemon->pid, SIGABRT); /* to get a core dump */
	}
	status = fa_test_reap(daemon->pid);
	daemon->pid = 0;
	log = fa_test_daemon_log(daemon);
	remove_dir(daemon);
	if (late)
		fa_test_fail(__FILE__, __LINE__, "the daemon did not end; it wrote: %s", log);
	for (size_t i = 0; i < sizeof(complaints) / sizeof(complaints[0]); ++i)
		if (strstr(log, complaints[i]))
			fa_test_fail(__FILE__, __LINE__, "the daemon wrote: %s", log);
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
		fa_test_fail(__FILE__, __LINE__, "the daemon died of signal %d; it wrote: %s",
		             WTERMSIG(status), log);
	return status;
}

void fa_test_daemon_stop(struct fa_test_daemon *daemon)
{
	_fa_cleanup_(fa_freep) char *log = NULL;
	int status;

	if (!daemon->pid)
		return;
	if (fa_test_daemon_is_dead(daemon)) {
		log = fa_test_daemon_log(daemon);
		fprintf(stderr, "the daemon had ended before it was stopped; it wrote: %s\n", log);
		status = fa_test_daemon_reap(daemon);
		fa_test_fail(__FILE__, __LINE__, "the daemon had ended with status %#x", status);
	}
	log = fa_test_daemon_log(daemon);
	fa_test_daemon_signal(daemon, SIGTERM);
	status = fa_test_daemon_reap(daemon);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fa_test_fail(__FILE__, __LINE__, "the daemon ended with status %#x; it wrote: %s",
		             status, log);
}

void fa_test_daemon_usage(const struct fa_test_daemon *daemon, struct fa_test_usage *ret_usage)
{
	char path[64], line[1024];
	struct timespec time;
	clockid_t clock;
	FILE *file;

	memset(ret_usage, 0, sizeof(*ret_usage));
	ret_usage->fds = fa_test_count_fds(daemon->pid);

	snprintf(path, sizeof(path), "/proc/%d/maps", daemon->pid);
	file = fopen(path, "re");
	fa_check(file);
	while (fgets(line, sizeof(line), file)) {
		uint64_t start, end;

		if (!strstr(line, "/memfd:") ||
		    sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) != 2)
			continue;
		ret_usage->memfd_maps++;
		ret_usage->memfd_bytes += end - start;
	}
	fclose(file);

	snprintf(path, sizeof(path), "/proc/%d/status", daemon->pid);
	file = fopen(path, "re");
	fa_check(file);
	while (fgets(line, sizeof(line), file)) {
		uint64_t number;

		if (sscanf(line, "VmRSS: %" SCNu64, &number) == 1)
			ret_usage->rss_bytes = number * 1024;
		else if (sscanf(line, "Threads: %" SCNu64, &number) == 1)
			ret_usage->threads = (int)number;
	}
	fclose(file);

	fa_check_eq(clock_getcpuclockid(daemon->pid, &clock), 0);
	fa_check_eq(clock_gettime(clock, &time), 0);
	ret_usage->cpu_ns = (uint64_t)time.tv_sec * FA_NS_PER_SEC + (uint64_t)time.tv_nsec;
}

void fa_test_daemon_leave_fds(const struct fa_test_daemon *daemon, unsigned int n)
{
	struct rlimit limit;
	struct stat st;
	char path[64];
	int fd = -1;

	fa_check(!prlimit(daemon->pid, RLIMIT_NOFILE, NULL, &limit));
	if (n == UINT_MAX) {
		limit.rlim_cur = limit.rlim_max;
	} else {
		/*
		 * RLIMIT_NOFILE bounds descriptors' numbers: free ones between used ones are
		 * available.
		 */
		do {
			snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)daemon->pid, ++fd);
			n -= lstat(path, &st) < 0;
		} while (n != UINT_MAX);
		limit.rlim_cur = (rlim_t)fd;
	}
	fa_check(!prlimit(daemon->pid, RLIMIT_NOFILE, &limit, NULL));
}
