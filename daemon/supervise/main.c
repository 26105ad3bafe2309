/*
 * fad-supervise, which `fad --supervise` starts after it has checked the daemon's options and
 * configuration.
 */
#include "common/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/base/service_manager.h"
#include "daemon/supervise/oom.h"
#include "daemon/supervise/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define USAGE_STATUS 2

static const char usage[] =
	"Usage: fad-supervise --exe-fd N [--ready-fd N] -- ARGUMENT...\n"
	"Runs the program that is descriptor N with these arguments, the first of which is its\n"
	"name, and starts it again when it dies or hangs. Use `fad --supervise`, which starts "
	"it.\n";

static int parse_fd(const char *text, int *ret_fd)
{
	char *end;
	long fd;

	errno = 0;
	fd = strtol(text, &end, 10);
	if (errno || end == text || *end || fd < 0 || fd > INT_MAX || fcntl((int)fd, F_GETFD) < 0) {
		fa_log(FA_LOG_ERROR, "\"%s\" is no open descriptor", text);
		return -EINVAL;
	}
	*ret_fd = (int)fd;
	return 0;
}

/* 1: go on; 0: done; or a negative errno that was explained. */
static int parse_options(int argc, char **argv, struct fa_supervisor *s)
{
	enum {
		EXE_FD = 256,
		READY_FD,
		VERSION
	};
	static const struct option known[] = {
		{ "exe-fd", required_argument, NULL, EXE_FD },
		{ "ready-fd", required_argument, NULL, READY_FD },
		{ "version", no_argument, NULL, VERSION },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "+h", known, NULL)) != -1) {
		switch (option) {
		case EXE_FD:
		case READY_FD:
			if (parse_fd(optarg, option == EXE_FD ? &s->exe_fd : &s->ready_fd) < 0)
				return -EINVAL;
			break;
		case VERSION:
			puts("fad-supervise " FAD_VERSION);
			return 0;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			return -EINVAL;
		}
	}
	if (s->exe_fd < 0 || optind == argc) {
		fputs(usage, stderr);
		return -EINVAL;
	}
	(void)fcntl(s->exe_fd, F_SETFD, FD_CLOEXEC);
	s->argv = argv + optind;
	return 1;
}

static int open_signals(struct fa_supervisor *s)
{
	sigset_t mask;

	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &mask, &s->old_mask) < 0)
		return -errno;
	s->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	return s->signal_fd < 0 ? -errno : 0;
}

/* Each daemon gets activation sockets as if it had stored them. */
static int take_activation(struct fa_supervisor *s)
{
	char **names = NULL;
	int n, fd;

	n = fa_manager_listen_fds(&names);
	for (int i = 0; i < n; ++i) {
		fd = FA_MANAGER_FDS_START + i;
		fa_supervisor_store_add(&s->store, names[i], &fd, 1);
		free(names[i]);
	}
	free(names);
	return n < 0 ? n : 0;
}

int main(int argc, char **argv)
{
	static struct fa_supervisor s; /* static: most of it stays untouched zeroes */
	int r, status = EXIT_FAILURE;

	/* Reaching RLIMIT_FSIZE must not end the supervisor. */
	signal(SIGXFSZ, SIG_IGN);
	s.exe_fd = s.ready_fd = s.signal_fd = s.notify_fd = s.notify_path_fd = -1;
	r = parse_options(argc, argv, &s);
	if (r <= 0)
		return r ? USAGE_STATUS : EXIT_SUCCESS;
	fa_log_set(FA_LOG_STDERR, FA_LOG_INFO);
	s.oom_score = fa_oom_protect();
	fa_supervisor_store_init(&s.store);
	fa_supervisor_init_watchdog(&s);
	r = open_signals(&s);
	if (r == 0)
		r = fa_supervisor_open_notify(&s);
	if (r == 0)
		r = take_activation(&s);
	if (r < 0)
		fa_log(FA_LOG_ERROR, "the supervisor cannot start: %s", strerror(-r));
	else
		status = fa_supervisor_run(&s);
	fa_supervisor_store_deinit(&s.store);
	return status;
}
