/*
 * Spawns a daemon. Its socket listens before it runs, so a connection made at once waits. It is no
 * child of the caller, and inherits only that socket and two pipes.
 *
 * Between clone and exec no call takes a lock, which another thread may have held at the clone;
 * glibc 2.41 has one even in sigaction() and _Fork(). The intermediate process sends no signal when
 * it exits.
 *
 * One pipe is the daemon's stderr, closed after connecting: its write end does not block and
 * SIGPIPE is ignored, so only lines without a reader are lost.
 */
#include "client/spawn.h"

#include "client/adopted.h"
#include "client/poll_until.h"
#include "client/trusted.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIRECTORY_PREFIX "/fad-XXXXXX"
#define SOCKET_NAME "/fad.sock"
#define BACKLOG 128

#define NO_CONFIG "/dev/null"

/* A daemon that has closed its socket exits within STDERR_NS. */
#define STDERR_BYTES 4096
#define STDERR_NS (2 * FA_NS_PER_SEC)
/* Bounds the reading: a daemon may never stop writing. */
#define STDERR_READS 4096

#define LISTEN_FD 3
#define REPORT_FD 4
#define FIRST_FREE_FD 10 /* above all that are assigned */

#define KERNEL_SIGSET_BYTES 8

/* Closes up to here where descriptors cannot be listed: the kernel's default limit. */
#define FDS_MAX (1u << 20)

extern char **environ;

/* ---- program and configuration */

static int resolve_program(const char *path, char *ret_program, struct fa_error *error)
{
	if (!realpath(path, ret_program))
		return fa_fail(error, -errno, "cannot start a daemon: %.180s: %s", path,
		               strerror(errno));
	return 0;
}

static bool is_program(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* @daemon, else the installed one, else the first on PATH. @ret_program: PATH_MAX bytes. */
static int find_program(const char *daemon, char *ret_program, struct fa_error *error)
{
	const char *path;

	if (daemon)
		return resolve_program(daemon, ret_program, error);
	if (is_program(FAD_DAEMON_PATH))
		return resolve_program(FAD_DAEMON_PATH, ret_program, error);

	for (path = secure_getenv("PATH"); path && *path;) {
		size_t length = strcspn(path, ":");
		char candidate[PATH_MAX];

		if (length && length + sizeof("/fad") <= sizeof(candidate)) {
			(void)snprintf(candidate, sizeof(candidate), "%.*s/fad", (int)length, path);
			if (is_program(candidate))
				return resolve_program(candidate, ret_program, error);
		}
		path += length + (path[length] == ':');
	}
	return fa_fail(error, -ENOENT,
	               "cannot start a daemon: there is no fad at " FAD_DAEMON_PATH
	               " or on PATH; FAD_DAEMON or fa_options.daemon may name it");
}

/* Valid after chdir("/"); may be in @resolved (PATH_MAX bytes). */
static int resolve_config(const char *config, char *resolved, struct fa_error *error,
                          const char **ret_config)
{
	if (!config) {
		*ret_config = NO_CONFIG;
		return 0;
	}
	if (!realpath(config, resolved))
		return fa_fail(error, -errno, "cannot start a daemon: its configuration %.160s: %s",
		               config, strerror(errno));
	/* A link may lead elsewhere at a reload. */
	*ret_config = *config == '/' ? config : resolved;
	return 0;
}

/* ---- socket */

static bool make_directory(const char *parent, char *path)
{
	if (!parent || *parent != '/' ||
	    strlen(parent) + sizeof(DIRECTORY_PREFIX SOCKET_NAME) > FA_SOCKET_PATH_BYTES)
		return false;
	(void)snprintf(path, FA_SOCKET_PATH_BYTES, "%s" DIRECTORY_PREFIX, parent);
	if (!mkdtemp(path))
		return false;
	strcat(path, SOCKET_NAME);
	return true;
}

/* The directory of an earlier daemon must be private. */
static int reuse_directory(const char *path, struct fa_error *error)
{
	char directory[FA_SOCKET_PATH_BYTES];
	struct stat st;

	(void)snprintf(directory, sizeof(directory), "%s", path);
	*strrchr(directory, '/') = '\0';
	if (mkdir(directory, 0700) < 0 && errno != EEXIST)
		return fa_fail(error, -errno, "cannot start a daemon again: %s: %m", directory);
	if (lstat(directory, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
	    (st.st_mode & 077))
		return fa_fail(error, -EPERM,
		               "cannot start a daemon again: %s is not a private directory of this "
		               "user",
		               directory);
	(void)unlink(path);
	return 0;
}

static int listen_at(char *path, struct fa_error *error, int *ret_fd)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	const char *runtime = NULL;
	struct fa_error ignored;
	int r;

	/* Another user could exchange the socket in its directory. */
	(void)fa_trusted_runtime_dir(&ignored, &runtime);
	if (*path) {
		r = reuse_directory(path, error);
		if (r < 0)
			return r;
	} else if (!make_directory(runtime, path) && !make_directory("/tmp", path)) {
		r = -errno;
		*path = '\0';
		return fa_fail(error, r, "cannot start a daemon: no directory for its socket: %s",
		               strerror(-r));
	}
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);

	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(fd, BACKLOG) < 0)
		return fa_fail(error, -errno, "cannot start a daemon: no socket at %s: %m", path);
	*ret_fd = fa_steal_fd(&fd);
	return 0;
}

static void remove_socket(const char *path)
{
	char directory[FA_SOCKET_PATH_BYTES];

	(void)snprintf(directory, sizeof(directory), "%s", path);
	*strrchr(directory, '/') = '\0';
	(void)unlink(path);
	(void)rmdir(directory);
}

void fa_spawn_clean(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	_fa_cleanup_(fa_close_fdp) int fd = -1;

	/* A daemon that lives has other clients, and will clean up itself. */
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || !connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    errno != ECONNREFUSED)
		return;
	remove_socket(path);
}

/* ---- the process. Until exec: calls without locks only. */

/* @code: the daemon's pid, or a negative errno. */
static void report(int fd, int code)
{
	ssize_t n;

	do
		n = write(fd, &code, sizeof(code));
	while (n < 0 && errno == EINTR);
}

__attribute__((noreturn)) static void fail(int report_fd, int code)
{
	report(report_fd, -code);
	_exit(127);
}

static unsigned int parse_number(const char *text)
{
	unsigned int number = 0;

	for (; *text >= '0' && *text <= '9'; ++text)
		number = 10 * number + (unsigned int)(*text - '0');
	return *text ? 0 : number;
}

/* False: /proc lists none. */
static bool close_listed(unsigned int first)
{
	_Alignas(struct dirent64) char buffer[4096];
	int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
	long n;

	if (dir < 0)
		return false;
	/* The position is a descriptor's number: closing does not move it. */
	while ((n = syscall(SYS_getdents64, dir, buffer, sizeof(buffer))) > 0)
		for (long at = 0; at < n;) {
			const struct dirent64 *entry = (const void *)(buffer + at);
			unsigned int fd = parse_number(entry->d_name);

			at += entry->d_reclen;
			if (fd >= first && fd != (unsigned int)dir)
				(void)close((int)fd);
		}
	(void)close(dir);
	return n == 0;
}

static void close_from(unsigned int first, unsigned int limit)
{
	if (!syscall(SYS_close_range, first, UINT_MAX, 0) || close_listed(first))
		return;
	/* Up to a limit of 2^30 it would take minutes. */
	for (unsigned int fd = first; fd < limit && fd < FDS_MAX; ++fd)
		(void)close((int)fd);
}

static void set_signal(int number, void (*handler)(int))
{
	/* The kernel's struct: the handler comes first, the rest may be 0. */
	const struct {
		void (*handler)(int);
		uint64_t others[7];
	} action = { .handler = handler };

	(void)syscall(SYS_rt_sigaction, number, &action, NULL, KERNEL_SIGSET_BYTES);
}

/* SIGPIPE is ignored: stderr may have no reader. */
static void default_signals(void)
{
	sigset_t none;

	for (int i = 1; i < NSIG; ++i)
		set_signal(i, SIG_DFL);
	set_signal(SIGPIPE, SIG_IGN);
	sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

struct start {
	const char *program;
	char **argv, **environment;
	int listen_fd, report_fd, stderr_fd;
	unsigned int limit; /* of descriptors */
};

__attribute__((noreturn)) static void run_daemon(const struct start *start)
{
	int null, listen_fd, report_fd, stderr_fd;

	/* First move the descriptors above the numbers that they are to have. */
	report_fd = fcntl(start->report_fd, F_DUPFD, FIRST_FREE_FD);
	if (report_fd < 0)
		_exit(127);
	listen_fd = fcntl(start->listen_fd, F_DUPFD, FIRST_FREE_FD);
	stderr_fd = listen_fd < 0 ? -1 : fcntl(start->stderr_fd, F_DUPFD, FIRST_FREE_FD);
	null = stderr_fd < 0 ? -1 : open("/dev/null", O_RDWR);
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(stderr_fd, 2) < 0 ||
	    dup2(listen_fd, LISTEN_FD) < 0)
		fail(report_fd, errno);
	/* Closed by exec, which tells the caller of success. */
	if (dup3(report_fd, REPORT_FD, O_CLOEXEC) < 0)
		fail(report_fd, errno);
	close_from(REPORT_FD + 1, start->limit);
	if (chdir("/") < 0)
		fail(REPORT_FD, errno);
	default_signals();
	execve(start->program, start->argv, start->environment);
	fail(REPORT_FD, errno);
}

/* Forks the daemon, reports its pid and exits: init adopts the daemon. */
__attribute__((noreturn)) static void run_intermediate(const struct start *start)
{
	pid_t pid;

	if (setsid() < 0)
		fail(start->report_fd, errno);
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid < 0)
		fail(start->report_fd, errno);
	if (!pid)
		run_daemon(start);
	report(start->report_fd, pid);
	_exit(0);
}

/* Without what the service manager told the caller alone. Strings are shared; NULL: no memory. */
static char **make_environment(void)
{
	static const char *const excluded[] = { "NOTIFY_SOCKET=", "LISTEN_", "WATCHDOG_",
		                                "JOURNAL_STREAM=" };
	size_t n = 0, kept = 0;
	char **environment;

	while (environ && environ[n])
		++n;
	environment = calloc(n + 1, sizeof(*environment));
	for (size_t i = 0; environment && i < n; ++i) {
		bool kept_entry = true;

		for (size_t k = 0; k < sizeof(excluded) / sizeof(*excluded); ++k)
			kept_entry &= strncmp(environ[i], excluded[k], strlen(excluded[k])) != 0;
		if (kept_entry)
			environment[kept++] = environ[i];
	}
	return environment;
}

static int open_pipe(int flags, int *ret_read_end, int *ret_write_end)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | flags) < 0)
		return -errno;
	*ret_read_end = ends[0];
	*ret_write_end = ends[1];
	return 0;
}

/* Stores the daemon's pid; 0: none. Executing the program closes the other end of @fd. */
static int await_exec(int fd, uint64_t deadline_ns, const char *program, struct fa_error *error,
                      pid_t *ret_daemon)
{
	pid_t daemon = 0;

	for (;;) {
		int code = 0;
		ssize_t n = read(fd, &code, sizeof(code));

		if (n == (ssize_t)sizeof(code) && code > 0) {
			daemon = code;
		} else if (n == (ssize_t)sizeof(code)) {
			*ret_daemon = daemon;
			return fa_fail(error, code, "cannot start a daemon: %.180s: %s", program,
			               strerror(-code));
		} else if (n >= 0 || (errno != EAGAIN && errno != EINTR)) {
			*ret_daemon = daemon;
			return 0;
		} else if (fa_poll(fd, POLLIN, deadline_ns) < 0 && fa_now_ns() >= deadline_ns) {
			break;
		}
	}
	/* Who holds the other end open lives: the pid is still its own. */
	if (daemon)
		(void)kill(daemon, SIGKILL);
	*ret_daemon = daemon;
	return fa_fail(error, -ETIMEDOUT,
	               "cannot start a daemon: %.180s could not be executed in time", program);
}

static int start(const char *program, const char *config, const char *path, int listen_fd,
                 uint64_t deadline_ns, struct fa_error *error, int *ret_stderr)
{
	char listen_number[] = { '0' + LISTEN_FD, '\0' };
	char *argv[] = { "fad",      "--listen-fd",  listen_number,
		         "--config", (char *)config, "--exit-when-idle",
		         "--socket", (char *)path,   NULL };
	_fa_cleanup_(fa_freep) char **environment = NULL;
	_fa_cleanup_(fa_close_fdp) int read_end = -1;
	_fa_cleanup_(fa_close_fdp) int write_end = -1;
	_fa_cleanup_(fa_close_fdp) int stderr_read_end = -1;
	_fa_cleanup_(fa_close_fdp) int stderr_write_end = -1;
	struct start start;
	sigset_t all, before;
	struct rlimit limit;
	pid_t pid, daemon = 0;
	int r, code;

	r = open_pipe(O_NONBLOCK, &read_end, &write_end);
	if (r >= 0)
		r = open_pipe(O_NONBLOCK, &stderr_read_end, &stderr_write_end);
	if (r >= 0 && getrlimit(RLIMIT_NOFILE, &limit) < 0)
		r = -errno;
	if (r < 0)
		return fa_fail(error, r, "cannot start a daemon: %s", strerror(-r));
	environment = make_environment();
	if (!environment)
		return fa_fail(error, -ENOMEM, "cannot start a daemon: no memory");
	start = (struct start){ .program = program,
		                .argv = argv,
		                .environment = environment,
		                .listen_fd = listen_fd,
		                .report_fd = write_end,
		                .stderr_fd = stderr_write_end,
		                .limit = (unsigned int)limit.rlim_cur };

	/* No handler of the caller's may run in the child. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/* Like fork(), without SIGCHLD. */
	pid = (pid_t)syscall(SYS_clone, 0, NULL, NULL, NULL, NULL);
	if (!pid)
		run_intermediate(&start);
	code = pid < 0 ? errno : 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (pid < 0)
		return fa_fail(error, -code, "cannot start a daemon: %s", strerror(code));

	while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
		;
	fa_close_fdp(&write_end);
	r = await_exec(read_end, deadline_ns, program, error, &daemon);
	if (daemon)
		fa_adopted_add(daemon);
	if (r < 0)
		return r;
	*ret_stderr = fa_steal_fd(&stderr_read_end);
	return 0;
}

int fa_spawn(const char *daemon, const char *config, char *path, uint64_t deadline_ns,
             struct fa_error *error, int *ret_stderr)
{
	_fa_cleanup_(fa_close_fdp) int listen_fd = -1;
	char program[PATH_MAX], resolved[PATH_MAX];
	int r;

	fa_adopted_reap();
	r = find_program(daemon, program, error);
	if (r >= 0)
		r = resolve_config(config, resolved, error, &config);
	if (r < 0)
		return r;
	r = listen_at(path, error, &listen_fd);
	if (r >= 0)
		r = start(program, config, path, listen_fd, deadline_ns, error, ret_stderr);
	/* A process that did not become a daemon may still hold the socket open. */
	if (r < 0 && *path)
		remove_socket(path);
	return r;
}

/* ---- the reason why it did not start */

static size_t read_tail(int fd, uint64_t deadline_ns, char *ret_text, size_t size)
{
	size_t used = 0;

	for (unsigned int i = 0; i < STDERR_READS; ++i) {
		ssize_t n;

		if (used == size) {
			used = size / 2;
			memmove(ret_text, ret_text + size - used, used);
		}
		n = read(fd, ret_text + used, size - used);
		if (n > 0)
			used += (size_t)n;
		else if (!n || (errno != EAGAIN && errno != EINTR))
			return used;
		else if (fa_poll(fd, POLLIN, deadline_ns) < 0 && fa_now_ns() >= deadline_ns)
			return used;
	}
	return used;
}

static bool skip_prefix(const char **line, size_t *length, const char *prefix)
{
	size_t n = strlen(prefix);

	if (*length < n || memcmp(*line, prefix, n) != 0)
		return false;
	*line += n;
	*length -= n;
	return true;
}

static void skip_time(const char **line, size_t *length)
{
	static const char form[] = "0000-00-00T00:00:00.000Z ";
	const size_t n = sizeof(form) - 1;

	if (*length < n)
		return;
	for (size_t i = 0; i < n; ++i)
		if (form[i] == '0' ? (*line)[i] < '0' || (*line)[i] > '9' : (*line)[i] != form[i])
			return;
	*line += n;
	*length -= n;
}

/* The last line that reports an error (true), else the last that is not empty; *ret_length 0:
 * none. */
static bool find_reason(const char *text, size_t length, const char **ret_line, size_t *ret_length)
{
	*ret_line = text;
	*ret_length = 0;
	while (length) {
		const char *newline = memrchr(text, '\n', length);
		const char *line = newline ? newline + 1 : text;
		size_t n = length - (size_t)(line - text);

		length = newline ? (size_t)(newline - text) : 0;
		skip_time(&line, &n);
		(void)skip_prefix(&line, &n, "fad: ");
		if (skip_prefix(&line, &n, "error: ")) {
			*ret_line = line;
			*ret_length = n;
			return true;
		}
		if (n && !*ret_length) {
			*ret_line = line;
			*ret_length = n;
		}
	}
	return false;
}

int fa_spawn_explain(int stderr_fd, int code, uint64_t deadline_ns, struct fa_error *error)
{
	/* A dead daemon causes any of these errors. */
	const bool ended = code == -ENOENT || code == -ECONNREFUSED || code == -ECONNRESET;
	uint64_t until_ns = ended ? fa_deadline_ns(STDERR_NS) : 0;
	size_t length, used;
	char text[STDERR_BYTES];
	const char *line;
	bool is_error;

	if (!ended && code != -ETIMEDOUT)
		return code;
	length = read_tail(stderr_fd, until_ns < deadline_ns ? until_ns : deadline_ns, text,
	                   sizeof(text));
	is_error = find_reason(text, length, &line, &length);
	if (ended)
		code = fa_fail(error, -ECONNREFUSED, "the daemon that was started ended at once%s",
		               is_error ? ": "
		               : length ? ""
		                        : " and said nothing");
	if (!length)
		return code;
	used = strlen(error->text);
	if (!is_error || !ended)
		used += (size_t)snprintf(error->text + used, sizeof(error->text) - used,
		                         "; it said last: ");
	if (used < sizeof(error->text))
		fa_text_clean(line, length, error->text + used, sizeof(error->text) - used);
	return code;
}
