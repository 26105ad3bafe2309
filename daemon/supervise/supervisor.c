#include "daemon/supervise/supervisor.h"

#include "common/clock.h"
#include "daemon/base/log.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

/* Limits the messages handled before signals. */
#define MESSAGES_PER_ROUND 64
/* Limits messages after the child's death: more than the socket's queue can hold. */
#define LAST_MESSAGES (4 * 65536)

/* The delay of restarts doubles unless the child was ready for SHORT_LIFE_NS. After a ready child
 * it stays small, as clients wait. */
#define SHORT_LIFE_NS (5 * FA_NS_PER_SEC)
#define DELAY_MIN_MS 50
#define DELAY_MAX_MS 5000
#define DELAY_SERVED_MAX_MS 100
/* After so many crashes in a row of children that were not ready, the stored state is dropped. */
#define CRASHES_MAX 5
/* So long may children report the stored state as unusable for now. */
#define UNAVAILABLE_MAX_NS (300 * FA_NS_PER_SEC)

static void drop_state(struct fa_supervisor *s, const char *why)
{
	fa_log(FA_LOG_ERROR, "%s: %zu stored descriptors are dropped", why,
	       fa_supervisor_store_drop_state(&s->store));
	s->n_crashes = 0;
	s->unavailable_ns = 0;
}

/* Drops the stored state if it keeps children from getting ready. */
static void count_failure(struct fa_supervisor *s, int status)
{
	const bool exited = WIFEXITED(status);
	const bool unavailable = s->aborted || (exited && WEXITSTATUS(status) == EX_TEMPFAIL);

	/* An exit, or a kill from outside, is not due to the state. */
	if (s->ready || (exited && WEXITSTATUS(status) != EX_TEMPFAIL))
		s->n_crashes = 0;
	else if (!exited && !s->aborted && WTERMSIG(status) != SIGKILL &&
	         WTERMSIG(status) != SIGTERM)
		++s->n_crashes;
	/* A lost device or short memory may pass; that wait is bounded. */
	if (s->ready)
		s->unavailable_ns = 0;
	else if (unavailable && !s->unavailable_ns)
		s->unavailable_ns = s->ended_ns;
	if (s->n_crashes == CRASHES_MAX)
		drop_state(s, "fad has crashed too often before it was ready");
	else if (s->unavailable_ns && s->ended_ns - s->unavailable_ns > UNAVAILABLE_MAX_NS)
		drop_state(s, "fad could not use what it had stored for minutes");
}

/* Returns the exit status, or -1 to go on. */
static int child_ended(struct fa_supervisor *s, int status)
{
	bool exited = WIFEXITED(status);
	pid_t pid = s->child;

	/* The socket may still have descriptors that the child stored. */
	for (int i = 0; i < LAST_MESSAGES && fa_supervisor_receive(s); ++i)
		;
	s->child = 0;
	s->ended_ns = fa_now_ns();
	fa_supervisor_store_release_timelines(&s->store);
	if (exited && (s->stopping || WEXITSTATUS(status) == 0))
		return WEXITSTATUS(status);
	/* SIGTERM may come before the child handles it. */
	if (s->stopping)
		return WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGINT ? EXIT_SUCCESS
		                                                                 : EXIT_FAILURE;
	if (!s->ever_ready) {
		fa_log(FA_LOG_ERROR, "fad (%ld) ended before it was ready", (long)pid);
		return exited ? WEXITSTATUS(status) : EXIT_FAILURE;
	}
	count_failure(s, status);
	if (s->ready && fa_now_ns() - s->started_ns > SHORT_LIFE_NS)
		s->delay_ms = 0;
	if (s->ready && s->delay_ms > DELAY_SERVED_MAX_MS)
		s->delay_ms = DELAY_SERVED_MAX_MS;
	fa_log(FA_LOG_ERROR, "fad (%ld) %s %d; starting it again with %zu stored descriptors%s",
	       (long)pid, exited ? "exited with status" : "was killed by signal",
	       exited ? WEXITSTATUS(status) : WTERMSIG(status), s->store.n_fds,
	       s->delay_ms ? ", after a pause" : "");
	return -1;
}

/* Returns the exit status, or -1 to go on. */
static int handle_signals(struct fa_supervisor *s)
{
	struct signalfd_siginfo info;
	int status, r = -1;
	pid_t pid;

	while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			continue;
		if (info.ssi_signo == SIGHUP && !s->ready) {
			s->reload_pending = true;
			continue;
		}
		if (info.ssi_signo != SIGHUP)
			s->stopping = true;
		if (s->child)
			kill(s->child, (int)info.ssi_signo);
	}
	/* As a container's PID 1 it also has orphans: filters of dead daemons. */
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == s->child)
			r = child_ended(s, status);
	if (r >= 0)
		return r;
	return s->stopping && !s->child ? EXIT_SUCCESS : -1;
}

static int delay_left_ms(const struct fa_supervisor *s)
{
	uint64_t delay_ns = (uint64_t)s->delay_ms * FA_NS_PER_MS;
	uint64_t past_ns = fa_now_ns() - s->ended_ns;

	if (past_ns >= delay_ns)
		return 0;
	return (int)((delay_ns - past_ns + FA_NS_PER_MS - 1) / FA_NS_PER_MS);
}

static int poll_timeout_ms(const struct fa_supervisor *s)
{
	const int check = fa_supervisor_check_timeout_ms(s), delay = delay_left_ms(s);

	if (s->child || (check >= 0 && check < delay))
		return check;
	return delay;
}

static void restart(struct fa_supervisor *s)
{
	s->delay_ms = s->delay_ms ? s->delay_ms * 2 : DELAY_MIN_MS;
	if (s->delay_ms > DELAY_MAX_MS)
		s->delay_ms = DELAY_MAX_MS;
	(void)fa_supervisor_start_child(s);
}

int fa_supervisor_run(struct fa_supervisor *s)
{
	struct pollfd polled[] = { { .fd = s->signal_fd, .events = POLLIN },
		                   { .fd = s->notify_fd, .events = POLLIN } };
	int status;

	if (fa_supervisor_start_child(s) < 0)
		return EXIT_FAILURE;
	for (;;) {
		(void)poll(polled, 2, poll_timeout_ms(s));
		for (int i = 0; i < MESSAGES_PER_ROUND && fa_supervisor_receive(s); ++i)
			;
		fa_supervisor_check_hang(s);
		status = handle_signals(s);
		if (status >= 0)
			return status;
		if (!s->child && delay_left_ms(s) == 0)
			restart(s);
	}
}
