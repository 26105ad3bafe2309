/*
 * A private fad: a real process on a socket in a temporary directory, started
 * from the environment's FAD_DAEMON, with the backend FAD_TEST_BACKEND, if there is such
 * a variable and the test does not choose one. Its stderr is collected; when it is
 * stopped, its exit status and what sanitizers wrote are checked. It dies with
 * the test whatever happens.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fa_test_daemon {
	pid_t pid; /* 0: not running */
	char dir[48];
	bool own_dir;      /* made here, and removed when it is reaped */
	char socket[64];   /* in dir */
	char config[64];   /* in dir, written if options.config was given */
	char log[64];      /* in dir: its stderr */
	uint64_t found_at; /* bytes of the log that were looked at by _log_wait() */
};

struct fa_test_daemon_options {
	const char *config;      /* text of the configuration file; NULL: none */
	const char *const *args; /* further options, ended by NULL; may be NULL */
	uint64_t nofile;         /* RLIMIT_NOFILE; 0: as it is */
	bool everyone;           /* other users may reach the socket */
	const char *dir;         /* use this directory, which is not removed; NULL: make one */
};

/*
 * Starts fad and waits until it accepts connections. @options may be NULL.
 * Fails the test if it does not come up; fa_test_daemon_try() instead returns
 * false and leaves it to the caller to look at the log and to stop it, which
 * returns its status.
 */
void fa_test_daemon_start(struct fa_test_daemon *daemon,
                          const struct fa_test_daemon_options *options);
bool fa_test_daemon_try(struct fa_test_daemon *daemon,
                        const struct fa_test_daemon_options *options);

/* Sets FAD_TUNE_@name for the daemons that are started from now on, and has them be the one that
 * takes it: FAD_TUNABLE_DAEMON, if there is such a variable. */
void fa_test_daemon_tune(const char *name, const char *value);

/* Sends SIGTERM (unless it is gone), and checks that it exits with 0 and left
 * nothing that a sanitizer complained about. Takes one that is not running. */
void fa_test_daemon_stop(struct fa_test_daemon *daemon);

/* Waits for its end, whoever caused it; checks the log, removes the directory
 * and returns waitpid()'s status. */
int fa_test_daemon_reap(struct fa_test_daemon *daemon);

/* Whether it has ended (it is not reaped by this). */
bool fa_test_daemon_is_dead(struct fa_test_daemon *daemon);
/* Waits until it has ended, without reaping it, or fails. */
void fa_test_daemon_wait_dead(struct fa_test_daemon *daemon);

void fa_test_daemon_signal(struct fa_test_daemon *daemon, int signal);

/* The daemon that one with --supervise runs; 0: there is none now. */
pid_t fa_test_daemon_child(const struct fa_test_daemon *supervisor);
/* Waits for the one that follows @before, and returns it. */
pid_t fa_test_daemon_next_child(const struct fa_test_daemon *supervisor, pid_t before);

/* What it has written to stderr, as a string that the caller frees. */
char *fa_test_daemon_log(const struct fa_test_daemon *daemon);

/* Waits until the log contains @part, after what an earlier call has found. */
void fa_test_daemon_log_wait(struct fa_test_daemon *daemon, const char *part);

/* What it holds, as the kernel sees it. */
struct fa_test_usage {
	int fds;
	int memfd_maps; /* mappings of memfds */
	uint64_t memfd_bytes;
	uint64_t rss_bytes;
	uint64_t cpu_ns; /* user and system */
	int threads;
};
void fa_test_daemon_usage(const struct fa_test_daemon *daemon, struct fa_test_usage *ret_usage);

/* From now on it can have @n descriptors more than it has; UINT_MAX: as many as it ever could. */
void fa_test_daemon_leave_fds(const struct fa_test_daemon *daemon, unsigned int n);
