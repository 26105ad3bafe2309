/*
 * The supervisor: starts the daemon, keeps the descriptors that it stores, and restarts it with
 * them when it dies or hangs, with systemd's environment and notifications. It opens no device and
 * has one thread, so that little can end it; if it dies, the daemon gets SIGTERM.
 *
 * It passes on SIGTERM, SIGINT and SIGHUP. It exits when the daemon exits with status 0, was asked
 * to exit, or fails before any daemon was ready.
 */
#pragma once

#include "daemon/base/watchdog_ping.h"
#include "daemon/supervise/store.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fa_supervisor {
	char **argv; /* the daemon's arguments */
	int exe_fd;  /* O_PATH; the daemon's executable */
	/* for READY, once; -1: not wanted, or written */
	int ready_fd;
	int signal_fd;      /* SIGCHLD, signals to pass on */
	int notify_fd;      /* the daemon's notifications */
	int notify_path_fd; /* O_PATH, of the notify socket, whose name was removed */
	sigset_t old_mask;
	int oom_score; /* before it was lowered */
	struct fa_supervisor_store store;

	pid_t child; /* 0: none */
	uint64_t started_ns;
	bool ready;      /* this child reported READY */
	bool ever_ready; /* a child reported READY */
	bool stopping;   /* got SIGTERM or SIGINT */
	/* pass SIGHUP on once the child is ready: earlier it could kill it */
	bool reload_pending;

	/* Restarts (supervisor.c). */
	int delay_ms;            /* from the last child's end */
	uint64_t ended_ns;       /* end of the last child */
	int n_crashes;           /* in a row, before READY */
	uint64_t unavailable_ns; /* since when children cannot use the stored state; 0: they can */

	/* Hangs (hang.c). FA_NS_NEVER: disabled. */
	uint64_t watchdog_ns;      /* the daemon's */
	uint64_t heard_ns;         /* last sign of life, or signal to a hanging child */
	uint64_t checked_ns;       /* last check */
	bool aborted, killed;      /* it hung, and got SIGABRT, SIGKILL */
	uint64_t ping_interval_ns; /* for its own watchdog */
	uint64_t pinged_ns;
	struct fa_watchdog_ping ping;
};

/* supervisor.c: returns the exit status. */
int fa_supervisor_run(struct fa_supervisor *supervisor);

/* Passes the stored descriptors. Logs errors. */
int fa_supervisor_start_child(struct fa_supervisor *supervisor);

/* notify.c */
int fa_supervisor_open_notify(struct fa_supervisor *supervisor);
/* Handles one notification; false: there is none. */
bool fa_supervisor_receive(struct fa_supervisor *supervisor);

/* hang.c */
void fa_supervisor_init_watchdog(struct fa_supervisor *supervisor);
/* Pings the supervisor's own watchdog, and ends a hanging child. */
void fa_supervisor_check_hang(struct fa_supervisor *supervisor);
/* Returns the time until the next check; -1: none. */
int fa_supervisor_check_timeout_ms(const struct fa_supervisor *supervisor);
