#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/service_manager.h"
#include "daemon/persist/fd_store.h"
#include "daemon/supervise/oom.h"
#include "daemon/supervise/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* The array is static, so that a start needs no memory. */
static char names[FA_SUPERVISOR_FDS_MAX * FA_SUPERVISOR_NAME_BYTES];
static int moved[FA_SUPERVISOR_FDS_MAX + 1];

/* Moves stored descriptors to 3, 4, ... and the notify socket's O_PATH descriptor behind them.
 * First those in the way, as RLIMIT_NOFILE may not allow copies of all. */
static int place_fds(struct fa_supervisor *s)
{
	const int n = (int)s->store.n_fds + 1;
	size_t used = 0;

	if (s->exe_fd < FA_MANAGER_FDS_START + n) {
		s->exe_fd = fcntl(s->exe_fd, F_DUPFD_CLOEXEC, FA_MANAGER_FDS_START + n);
		if (s->exe_fd < 0)
			return -errno;
	}
	for (int i = 0; i < n; ++i) {
		int fd = i < n - 1 ? s->store.fds[i].fd : s->notify_path_fd;

		moved[i] = fd;
		if (fd >= FA_MANAGER_FDS_START + n)
			continue;
		moved[i] = fcntl(fd, F_DUPFD, FA_MANAGER_FDS_START + n);
		if (moved[i] < 0)
			return -errno;
		close(fd);
	}
	for (int i = 0; i < n; ++i) {
		if (dup2(moved[i], FA_MANAGER_FDS_START + i) < 0)
			return -errno;
		close(moved[i]);
		if (i < n - 1)
			used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s",
			                         i ? ":" : "", s->store.fds[i].name);
	}
	return 0;
}

static void set_number(const char *variable, uint64_t number)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, number);
	setenv(variable, text, 1);
}

static void set_environment(const struct fa_supervisor *s)
{
	const uint64_t pid = (uint64_t)getpid();
	char path[32];

	if (s->store.n_fds) {
		set_number("LISTEN_FDS", s->store.n_fds);
		setenv("LISTEN_FDNAMES", names, 1);
		set_number("LISTEN_PID", pid);
	} else {
		unsetenv("LISTEN_FDS");
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d",
	         FA_MANAGER_FDS_START + (int)s->store.n_fds);
	setenv("NOTIFY_SOCKET", path, 1);
	set_number(FA_FD_STORE_MAX_VARIABLE, 2 * s->store.max_timelines);
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	if (s->watchdog_ns != FA_NS_NEVER) {
		set_number("WATCHDOG_USEC", s->watchdog_ns / FA_NS_PER_US);
		set_number("WATCHDOG_PID", pid);
	}
}

static void run_child(struct fa_supervisor *s, pid_t parent)
{
	/* If the supervisor has ended, nothing restarts this process or keeps its descriptors. */
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)
		_exit(EXIT_FAILURE);
	fa_oom_expose(s->oom_score);
	fa_close_fdp(&s->ready_fd);
	if (place_fds(s) < 0)
		_exit(EXIT_FAILURE);
	set_environment(s);
	sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
	fexecve(s->exe_fd, s->argv, environ);
	_exit(127);
}

int fa_supervisor_start_child(struct fa_supervisor *s)
{
	pid_t self = getpid();
	int r;

	s->ready = s->reload_pending = s->aborted = s->killed = false;
	s->started_ns = s->heard_ns = fa_now_ns();
	s->child = fork();
	if (s->child == 0)
		run_child(s, self);
	if (s->child > 0)
		return 0;
	r = -errno;
	s->child = 0;
	s->ended_ns = s->started_ns;
	fa_log(FA_LOG_ERROR, "fad cannot be started: %m");
	return r;
}
