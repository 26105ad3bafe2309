#include "daemon/supervise/supervise.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/base/log.h"
#include "daemon/persist/fd_store.h"
#include "daemon/persist/timeline_release.h"
#include "daemon/supervise/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <systemd/sd-daemon.h>

#define KEPT_MAX 4096
/* A descriptor each; and so many are for other things. */
#define TIMELINES_MAX 65536
#define OTHERS 64
#define NAME_BYTES 64
#define FDS_AT_ONCE 16
#define MESSAGE_BYTES 4096
/* Of a child that has died. */
#define LAST_MESSAGES (4 * TIMELINES_MAX)
/* Between two looks for signals. */
#define MESSAGES_AT_ONCE 64

/* A child that lived shorter is started again only after a pause, each time twice as
 * long; but never long if it had served, as its clients are waiting. */
#define SHORT_LIFE_NS (5 * FA_NS_PER_SEC)
#define PAUSE_MIN_MS 50
#define PAUSE_MAX_MS 5000
#define PAUSE_SERVED_MAX_MS 100
/* In a row, before they were ready: then it may be what is kept that they crash of. */
#define CRASHES_MAX 5
/* How long what is kept waits for children that say that they cannot have it now. */
#define WAIT_NS (300 * FA_NS_PER_SEC)

/* A child that is ready and is not heard of for so long hangs, unless WATCHDOG_USEC says another
 * time. Nothing that it does takes a tenth of that. */
#define WATCHDOG_NS (180 * FA_NS_PER_SEC)
/* ... and one that gets ready and stores nothing meanwhile; as TimeoutStartSec= of fad.service. */
#define START_NS (300 * FA_NS_PER_SEC)
/* It may leave a core; one that is stopped, or that the kernel holds up, will not. */
#define ABORT_NS (10 * FA_NS_PER_SEC)
/* So often it is said that it does not end though it was killed. */
#define UNKILLED_NS (60 * FA_NS_PER_SEC)
/* Looks in the time of a watchdog, ours or our child's. */
#define WATCHDOG_LOOKS 4

struct kept {
	char name[NAME_BYTES];
	int fd;
};

struct supervisor {
	char **argv;
	int ready_fd, signal_fd, notify_fd;
	int notify_path_fd; /* O_PATH, of the notify socket: it has no name any more */
	sigset_t old_mask;

	pid_t child;
	uint64_t started_ns;
	bool ready;        /* this child said so */
	bool was_ready;    /* some child did */
	bool asked;        /* to end */
	bool reload;       /* this child is told once it is ready: before that it could die of it */
	int pause_ms;      /* before the next start */
	uint64_t ended_ns; /* ... which is that long after this */
	int n_crashes;     /* in a row, before they were ready */
	uint64_t wait_ns;  /* since when what is kept waits; 0: it does not */

	uint64_t watchdog_ns; /* how long a child may say nothing; FA_NS_NEVER: for ever */
	uint64_t heard_ns;    /* when it was heard of last, or was told to abort */
	bool hung, killed;    /* this child was told to abort; it did not, and was killed */
	uint64_t looked_ns;   /* when we looked after it last */
	uint64_t tell_ns; /* between two times that we tell who watches us; FA_NS_NEVER: nobody */
	uint64_t told_ns; /* when we did last */
	struct fa_feed feed;

	struct kept kept[KEPT_MAX];
	size_t n_kept;
	struct kept *timelines;
	size_t n_timelines, size_timelines, max_timelines;

	/* Of the child, which needs no memory to start. */
	char names[KEPT_MAX * NAME_BYTES];
	int moved[KEPT_MAX + 1];
};

/* ---- the child */

/* Everything that is kept lies at 3, 4, 5 … in the child, and behind it what names the
 * notify socket. */
static int place_fds(struct supervisor *s)
{
	const int n = (int)s->n_kept + 1;
	size_t used = 0;

	/* Out of the way first, so that none is overwritten before it was placed; and only those
	 * that are, as there may not be room for all of them twice. */
	for (int i = 0; i < n; ++i) {
		int fd = i < n - 1 ? s->kept[i].fd : s->notify_path_fd;

		s->moved[i] = fd;
		if (fd >= SD_LISTEN_FDS_START + n)
			continue;
		s->moved[i] = fcntl(fd, F_DUPFD, SD_LISTEN_FDS_START + n);
		if (s->moved[i] < 0)
			return -errno;
		close(fd);
	}
	for (int i = 0; i < n; ++i) {
		if (dup2(s->moved[i], SD_LISTEN_FDS_START + i) < 0)
			return -errno;
		close(s->moved[i]);
		if (i < n - 1)
			used += (size_t)snprintf(s->names + used, sizeof(s->names) - used, "%s%s",
			                         i ? ":" : "", s->kept[i].name);
	}
	return 0;
}

static void run_child(struct supervisor *s, pid_t parent)
{
	char number[16], path[32], usec[24];

	/* Nobody would start it again, nor keep what it has. */
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)
		_exit(EXIT_FAILURE);
	fa_close_fdp(&s->ready_fd);
	if (place_fds(s) < 0)
		_exit(EXIT_FAILURE);
	snprintf(number, sizeof(number), "%zu", s->n_kept);
	if (s->n_kept) {
		setenv("LISTEN_FDS", number, 1);
		setenv("LISTEN_FDNAMES", s->names, 1);
		snprintf(number, sizeof(number), "%ld", (long)getpid());
		setenv("LISTEN_PID", number, 1);
	} else {
		unsetenv("LISTEN_FDS");
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", SD_LISTEN_FDS_START + (int)s->n_kept);
	setenv("NOTIFY_SOCKET", path, 1);
	snprintf(number, sizeof(number), "%zu", 2 * s->max_timelines);
	setenv(FA_FD_STORE_MAX_VARIABLE, number, 1);
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	if (s->watchdog_ns != FA_NS_NEVER) {
		snprintf(usec, sizeof(usec), "%" PRIu64, (uint64_t)(s->watchdog_ns / FA_NS_PER_US));
		setenv("WATCHDOG_USEC", usec, 1);
		snprintf(number, sizeof(number), "%ld", (long)getpid());
		setenv("WATCHDOG_PID", number, 1);
	}
	sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
	execv("/proc/self/exe", s->argv);
	_exit(127);
}

static int start_child(struct supervisor *s)
{
	pid_t self = getpid();

	s->ready = s->reload = s->hung = s->killed = false;
	s->started_ns = s->heard_ns = fa_now_ns();
	s->child = fork();
	if (s->child == 0)
		run_child(s, self);
	if (s->child > 0)
		return 0;
	s->child = 0;
	s->ended_ns = s->started_ns;
	fa_log(FA_LOG_ERROR, "fad cannot be started: %m");
	return -1;
}

/* ---- what the child tells */

/* The value of @key in "KEY=VALUE" lines, copied; false if it is not there. */
static bool find(const char *message, const char *key, char *ret_value, size_t size)
{
	size_t length = strlen(key);

	for (const char *line = message;; ++line) {
		if (strncmp(line, key, length) == 0 && line[length] == '=') {
			line += length + 1;
			snprintf(ret_value, size, "%.*s", (int)strcspn(line, "\n"), line);
			return true;
		}
		line = strchr(line, '\n');
		if (!line)
			return false;
	}
}

static void forget_one(struct kept *kept, size_t *n_kept, const char *name)
{
	for (size_t i = 0; i < *n_kept;) {
		if (strcmp(kept[i].name, name) != 0) {
			++i;
			continue;
		}
		close(kept[i].fd);
		kept[i] = kept[--*n_kept];
	}
}

static bool is_timeline(const char *name)
{
	return !strncmp(name, FA_FD_STORE_TIMELINE_PREFIX, strlen(FA_FD_STORE_TIMELINE_PREFIX));
}

static void forget(struct supervisor *s, const char *name)
{
	if (is_timeline(name))
		forget_one(s->timelines, &s->n_timelines, name);
	else
		forget_one(s->kept, &s->n_kept, name);
}

/* The child that wrote their words is no more: nobody is to wait for them. */
static void release_timelines(struct supervisor *s)
{
	if (s->n_timelines)
		fa_log(FA_LOG_INFO, "who waited for one of %zu timelines is released",
		       s->n_timelines);
	while (s->n_timelines) {
		struct kept *timeline = &s->timelines[--s->n_timelines];

		(void)fa_timeline_fd_release(timeline->fd);
		close(timeline->fd);
	}
}

/* All that was stored but the socket. */
static void let_go(struct supervisor *s, const char *why)
{
	size_t n = 0;

	for (size_t i = 0; i < s->n_kept; ++i)
		if (strcmp(s->kept[i].name, FA_FD_STORE_LISTEN) != 0 &&
		    !strncmp(s->kept[i].name, FA_FD_STORE_PREFIX, strlen(FA_FD_STORE_PREFIX)))
			close(s->kept[i].fd);
		else
			s->kept[n++] = s->kept[i];
	fa_log(FA_LOG_ERROR, "%s: %zu descriptors that were kept are let go", why, s->n_kept - n);
	s->n_kept = n;
	s->n_crashes = 0;
	s->wait_ns = 0;
}

/* Whether it is time not to blame the child any more, but what it is given. */
static void judge_end(struct supervisor *s, int status)
{
	bool exited = WIFEXITED(status);

	/* Killed by somebody, or ended in order: that says nothing of what is kept. */
	if (s->ready || (exited && WEXITSTATUS(status) != EX_TEMPFAIL))
		s->n_crashes = 0;
	else if (!exited && !s->hung && WTERMSIG(status) != SIGKILL && WTERMSIG(status) != SIGTERM)
		++s->n_crashes;
	/* One whose device is not there for it or does not answer, or that has no memory, may have
	 * it the next time, but not for ever. */
	if (s->ready)
		s->wait_ns = 0;
	else if ((s->hung || (exited && WEXITSTATUS(status) == EX_TEMPFAIL)) && !s->wait_ns)
		s->wait_ns = s->ended_ns;
	if (s->n_crashes == CRASHES_MAX)
		let_go(s, "fad has crashed too often before it was ready");
	else if (s->wait_ns && s->ended_ns - s->wait_ns > WAIT_NS)
		let_go(s, "fad could not use what it had for minutes");
}

/* Room for one timeline more; false: there is none. */
static bool grow_timelines(struct supervisor *s)
{
	size_t size = s->size_timelines ? 2 * s->size_timelines : 64;
	struct kept *timelines;

	if (s->n_timelines >= s->max_timelines)
		return false;
	if (s->n_timelines < s->size_timelines)
		return true;
	timelines = reallocarray(s->timelines, size, sizeof(*timelines));
	if (!timelines)
		return false;
	s->timelines = timelines;
	s->size_timelines = size;
	return true;
}

static void keep(struct supervisor *s, const char *name, int *fds, size_t n_fds)
{
	const bool timeline = is_timeline(name);

	for (size_t i = 0; i < n_fds; ++i) {
		struct kept *kept;

		if (timeline ? !grow_timelines(s) : s->n_kept >= KEPT_MAX) {
			fa_log(FA_LOG_ERROR, "%s cannot be kept: there are %zu descriptors already",
			       name, s->n_kept + s->n_timelines);
			return;
		}
		kept = timeline ? &s->timelines[s->n_timelines++] : &s->kept[s->n_kept++];
		kept->fd = fa_steal_fd(&fds[i]);
		snprintf(kept->name, NAME_BYTES, "%s", name);
	}
}

static void say_ready(struct supervisor *s)
{
	static const char ready[] = "READY\n";
	int fd = fa_steal_fd(&s->ready_fd);

	s->ready = s->was_ready = true;
	if (fd >= 0) {
		(void)!write(fd, ready, sizeof(ready) - 1);
		close(fd);
	}
	if (s->reload)
		kill(s->child, SIGHUP);
	s->reload = false;
}

static void handle_message(struct supervisor *s, const char *message, int *fds, size_t n_fds)
{
	char value[NAME_BYTES], name[NAME_BYTES] = "stored";
	const bool feeds = find(message, "WATCHDOG", value, sizeof(value));

	/* What it stores says nothing of its engine, but is all that is heard of it before that
	 * works. */
	if (!s->hung && (feeds || !s->ready))
		s->heard_ns = fa_now_ns();
	(void)find(message, "FDNAME", name, sizeof(name));
	if (find(message, "FDSTOREREMOVE", value, sizeof(value)))
		forget(s, name);
	else if (find(message, "FDSTORE", value, sizeof(value)))
		keep(s, name, fds, n_fds);
	if (find(message, "READY", value, sizeof(value)))
		say_ready(s);
	/* Whoever supervises us hears the rest; the descriptors stay here, and the watch over the
	 * child. */
	if (!feeds && !find(message, "FDNAME", value, sizeof(value)))
		(void)sd_notify(0, message);
}

/* Takes one message; false if there is none. */
static bool receive(struct supervisor *s)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * FDS_AT_ONCE) +
		           CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	char message[MESSAGE_BYTES + 1];
	struct iovec iov = { .iov_base = message, .iov_len = MESSAGE_BYTES };
	struct msghdr header = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct ucred who = { .pid = 0 };
	int fds[FDS_AT_ONCE];
	size_t n_fds = 0;
	ssize_t n;

	n = recvmsg(s->notify_fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EINTR;
	message[n] = '\0';
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS) {
			memcpy(&who, CMSG_DATA(c), sizeof(who));
		} else if (c->cmsg_type == SCM_RIGHTS) {
			n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(c), n_fds * sizeof(int));
		}
	}
	if (header.msg_flags & MSG_CTRUNC)
		fa_log(FA_LOG_ERROR, "a descriptor cannot be kept: the supervisor has too many");
	/* Of this user's processes only the child is listened to. */
	if (who.pid == s->child && s->child && !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		handle_message(s, message, fds, n_fds);
	for (size_t i = 0; i < n_fds; ++i)
		fa_close_fdp(&fds[i]);
	return true;
}

/* ---- signals, ends and starts */

/* Returns the exit status if all is over, else -1. */
static int child_ended(struct supervisor *s, int status)
{
	bool exited = WIFEXITED(status);
	pid_t pid = s->child;

	/* What it stored with its last breath counts; it sends nothing any more. */
	for (int i = 0; i < LAST_MESSAGES && receive(s); ++i)
		;
	s->child = 0;
	s->ended_ns = fa_now_ns();
	release_timelines(s);
	if (exited && (s->asked || WEXITSTATUS(status) == 0))
		return WEXITSTATUS(status);
	/* One that was asked before it could listen. */
	if (s->asked)
		return WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGINT ? EXIT_SUCCESS
		                                                                 : EXIT_FAILURE;
	if (!s->was_ready) {
		fa_log(FA_LOG_ERROR, "fad (%ld) ended before it was ready", (long)pid);
		return exited ? WEXITSTATUS(status) : EXIT_FAILURE;
	}
	judge_end(s, status);
	if (s->ready && fa_now_ns() - s->started_ns > SHORT_LIFE_NS)
		s->pause_ms = 0;
	if (s->ready && s->pause_ms > PAUSE_SERVED_MAX_MS)
		s->pause_ms = PAUSE_SERVED_MAX_MS;
	fa_log(FA_LOG_ERROR, "fad (%ld) %s %d; starting it again with %zu kept descriptors%s",
	       (long)pid, exited ? "exited with status" : "was killed by signal",
	       exited ? WEXITSTATUS(status) : WTERMSIG(status), s->n_kept,
	       s->pause_ms ? ", after a pause" : "");
	return -1;
}

static int handle_signals(struct supervisor *s)
{
	struct signalfd_siginfo info;
	int status;

	while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			continue;
		if (info.ssi_signo == SIGHUP && !s->ready) {
			s->reload = true;
			continue;
		}
		if (info.ssi_signo != SIGHUP)
			s->asked = true;
		if (s->child)
			kill(s->child, (int)info.ssi_signo);
	}
	if (s->child && waitpid(s->child, &status, WNOHANG) == s->child)
		return child_ended(s, status);
	return s->asked && !s->child ? EXIT_SUCCESS : -1;
}

/* ---- watchdogs */

/* How long it may be silent; FA_NS_NEVER: for ever. */
static uint64_t patience_ns(const struct supervisor *s)
{
	if (s->watchdog_ns == FA_NS_NEVER || !s->child)
		return FA_NS_NEVER;
	if (s->killed)
		return UNKILLED_NS;
	if (s->hung)
		return s->watchdog_ns < ABORT_NS ? s->watchdog_ns : ABORT_NS;
	return s->ready ? s->watchdog_ns : START_NS;
}

/* Ends a child that is not heard of: the next one finds what it has stored. */
static void look_after_child(struct supervisor *s)
{
	const uint64_t now_ns = fa_now_ns(), patience = patience_ns(s);

	/* We have not run for a while (were stopped, or the machine was), and so may it: it is not
	 * to blame for that. */
	if (now_ns - s->looked_ns > s->watchdog_ns / 2)
		s->heard_ns = now_ns;
	s->looked_ns = now_ns;
	if (patience == FA_NS_NEVER || now_ns - s->heard_ns <= patience)
		return;
	s->heard_ns = now_ns;
	if (s->hung) {
		if (s->killed)
			fa_log(FA_LOG_ERROR,
			       "fad (%ld) was killed and does not end: the kernel does not let go "
			       "of it",
			       (long)s->child);
		s->killed = true;
		kill(s->child, SIGKILL);
		return;
	}
	s->hung = true;
	fa_log(FA_LOG_ERROR,
	       "fad (%ld) hangs: nothing was heard of it for %" PRIu64 " s; it is ended",
	       (long)s->child, (uint64_t)(patience / FA_NS_PER_SEC));
	kill(s->child, SIGABRT);
}

/* We get on, whatever the child does: it is ours to look after it. */
static void tell_of_us(struct supervisor *s)
{
	const uint64_t now_ns = fa_now_ns();

	if (s->tell_ns == FA_NS_NEVER || now_ns - s->told_ns < s->tell_ns)
		return;
	s->told_ns = now_ns;
	fa_feed(&s->feed);
}

/* Ours is also our child's. */
static void init_watchdog(struct supervisor *s)
{
	uint64_t usec;
	int r = sd_watchdog_enabled(0, &usec);

	s->watchdog_ns = r == 0 ? WATCHDOG_NS : FA_NS_NEVER;
	s->tell_ns = FA_NS_NEVER;
	if (r > 0 && usec < FA_NS_NEVER / FA_NS_PER_US) {
		s->watchdog_ns = usec * FA_NS_PER_US;
		s->tell_ns = s->watchdog_ns / WATCHDOG_LOOKS;
		fa_feed_open(&s->feed);
	}
	s->looked_ns = fa_now_ns();
}

/* Until the next look, if nothing comes; -1: for ever. */
static int look_ms(const struct supervisor *s)
{
	const uint64_t patience = patience_ns(s);
	uint64_t ns = s->watchdog_ns / WATCHDOG_LOOKS;

	if (s->watchdog_ns == FA_NS_NEVER)
		return -1;
	if (patience < ns)
		ns = patience;
	return ns / FA_NS_PER_MS < INT_MAX ? (int)(ns / FA_NS_PER_MS) + 1 : INT_MAX;
}

/* ---- all together */

/* Until the next start, whatever comes meanwhile. */
static int pause_left_ms(const struct supervisor *s)
{
	uint64_t pause_ns = (uint64_t)s->pause_ms * FA_NS_PER_MS;
	uint64_t past_ns = fa_now_ns() - s->ended_ns;

	if (past_ns >= pause_ns)
		return 0;
	return (int)((pause_ns - past_ns + FA_NS_PER_MS - 1) / FA_NS_PER_MS);
}

/* Until there is something to do, if nothing comes; -1: for ever. */
static int timeout_ms(const struct supervisor *s)
{
	const int look = look_ms(s), pause = pause_left_ms(s);

	if (s->child || (look >= 0 && look < pause))
		return look;
	return pause;
}

static int run(struct supervisor *s)
{
	struct pollfd polled[] = { { .fd = s->signal_fd, .events = POLLIN },
		                   { .fd = s->notify_fd, .events = POLLIN } };
	int status;

	for (;;) {
		(void)poll(polled, 2, timeout_ms(s));
		for (int i = 0; i < MESSAGES_AT_ONCE && receive(s); ++i)
			;
		tell_of_us(s);
		look_after_child(s);
		status = handle_signals(s);
		if (status >= 0)
			return status;
		if (s->child || pause_left_ms(s) > 0)
			continue;
		s->pause_ms = s->pause_ms ? s->pause_ms * 2 : PAUSE_MIN_MS;
		if (s->pause_ms > PAUSE_MAX_MS)
			s->pause_ms = PAUSE_MAX_MS;
		(void)start_child(s);
	}
}

/* ---- at the start */

/*
 * Nobody else may send: descriptors are received before it is known whose they are, and
 * to close them can take as long as their sender wants. So the socket lies in a directory of
 * ours, and only until it is open; from then on who has that descriptor has its name,
 * and nothing is left behind however we end.
 */
static int open_notify(struct supervisor *s)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char directory[] = "/tmp/fad-supervise-XXXXXX";
	const int on = 1;
	int r = 0;

	if (!mkdtemp(directory))
		return -errno;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", directory);
	s->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->notify_fd < 0 ||
	    bind(s->notify_fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    setsockopt(s->notify_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		r = -errno;
	if (r == 0) {
		s->notify_path_fd = open(address.sun_path, O_PATH | O_CLOEXEC);
		r = s->notify_path_fd < 0 ? -errno : 0;
	}
	(void)unlink(address.sun_path);
	(void)rmdir(directory);
	return r;
}

static int open_signals(struct supervisor *s)
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

/* Other limits are lower than that of timelines for few. */
static size_t max_timelines(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 2 * TIMELINES_MAX + OTHERS)
		return TIMELINES_MAX;
	return limit.rlim_cur > OTHERS ? (size_t)(limit.rlim_cur - OTHERS) / 2 : 1;
}

/* Sockets that somebody activates us with are the child's from the first start on. */
static int take_activation(struct supervisor *s)
{
	char **names = NULL;
	int n, fd;

	n = sd_listen_fds_with_names(1, &names);
	for (int i = 0; i < n; ++i) {
		fd = SD_LISTEN_FDS_START + i;
		keep(s, names[i], &fd, 1);
		free(names[i]);
	}
	free(names);
	return n < 0 ? n : 0;
}

/* argv without what is the supervisor's own. */
static char **child_argv(char **argv)
{
	size_t n = 0, used = 0;
	char **child;

	while (argv[n])
		++n;
	child = calloc(n + 1, sizeof(*child));
	if (!child)
		return NULL;
	for (size_t i = 0; i < n; ++i) {
		if (!strcmp(argv[i], "--supervise") || !strncmp(argv[i], "--ready-fd=", 11))
			continue;
		if (!strcmp(argv[i], "--ready-fd"))
			++i;
		else
			child[used++] = argv[i];
	}
	return child;
}

int fa_supervise(char **argv, int ready_fd)
{
	struct supervisor *s = calloc(1, sizeof(*s));
	int r = -ENOMEM, status = EXIT_FAILURE;

	if (!s)
		return EXIT_FAILURE;
	s->ready_fd = ready_fd;
	s->max_timelines = max_timelines();
	s->signal_fd = s->notify_fd = s->notify_path_fd = -1;
	init_watchdog(s);
	s->argv = child_argv(argv);
	if (s->argv)
		r = open_signals(s);
	if (r == 0)
		r = open_notify(s);
	if (r == 0)
		r = take_activation(s);
	if (r < 0)
		fa_log(FA_LOG_ERROR, "nothing can be supervised: %s", strerror(-r));
	else if (start_child(s) == 0)
		status = run(s);
	for (size_t i = 0; i < s->n_kept; ++i)
		close(s->kept[i].fd);
	release_timelines(s);
	free(s->timelines);
	fa_close_fdp(&s->signal_fd);
	fa_close_fdp(&s->notify_fd);
	fa_close_fdp(&s->notify_path_fd);
	fa_close_fdp(&s->ready_fd);
	free(s->argv);
	free(s);
	return status;
}
