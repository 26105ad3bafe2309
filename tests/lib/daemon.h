/*
 * A private fad: the program FAD_DAEMON on a socket in a temporary directory, with the backend
 * FAD_TEST_BACKEND unless the test chooses one. Its stderr is collected in a log. When the daemon
 * is stopped, its exit status and the log are checked, also for reports of sanitizers. The daemon
 * dies with the test.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fa_test_daemon {
	pid_t pid; /* 0: not running */
	char dir[48];
	bool own_dir;      /* made here; removed when the daemon is reaped */
	char socket[64];   /* in dir */
	char config[64];   /* in dir; written if options.config is given */
	char log[64];      /* in dir; collects stderr */
	uint64_t found_at; /* end of what fa_test_daemon_log_wait() has matched */
};

struct fa_test_daemon_options {
	const char *config;      /* contents of the configuration file; NULL: none */
	const char *const *args; /* more options, ended by NULL; may be NULL */
	uint64_t nofile;         /* RLIMIT_NOFILE; 0: unchanged */
	bool everyone;           /* other users may connect */
	const char *dir;         /* use this directory and keep it; NULL: make one */
};

/*
 * Starts fad and waits until it accepts connections; @options may be NULL. Fails the test if the
 * daemon does not start. fa_test_daemon_try() then returns false instead, and the caller reads the
 * log and reaps the daemon.
 */
void fa_test_daemon_start(struct fa_test_daemon *daemon,
                          const struct fa_test_daemon_options *options);
bool fa_test_daemon_try(struct fa_test_daemon *daemon,
                        const struct fa_test_daemon_options *options);

/*
 * Sets FAD_TUNE_@name for daemons started from now on. They run the program FAD_TUNABLE_DAEMON if
 * that is set.
 */
void fa_test_daemon_tune(const char *name, const char *value);

/*
 * Sends SIGTERM unless the daemon has exited; checks status 0 and that no sanitizer complained.
 * Does nothing if the daemon is not running.
 */
void fa_test_daemon_stop(struct fa_test_daemon *daemon);

/*
 * Waits for the daemon to exit for any reason, checks the log, removes the directory, and returns
 * waitpid()'s status.
 */
int fa_test_daemon_reap(struct fa_test_daemon *daemon);

/* Returns true if the daemon has exited; does not reap it. */
bool fa_test_daemon_is_dead(struct fa_test_daemon *daemon);
/* Waits until the daemon has exited; does not reap it. */
void fa_test_daemon_wait_dead(struct fa_test_daemon *daemon);

void fa_test_daemon_signal(struct fa_test_daemon *daemon, int signal);

/* Returns the pid of the daemon below `fad --supervise`; 0: none runs. */
pid_t fa_test_daemon_child(const struct fa_test_daemon *supervisor);
/* Waits for a child with another pid than @before. */
pid_t fa_test_daemon_next_child(const struct fa_test_daemon *supervisor, pid_t before);

/* Returns the log's text; the caller frees it. */
char *fa_test_daemon_log(const struct fa_test_daemon *daemon);

/* Waits until the log contains @part after the previous match. */
void fa_test_daemon_log_wait(struct fa_test_daemon *daemon, const char *part);

/* The daemon's resources as the kernel counts them. */
struct fa_test_usage {
	int fds;
	int memfd_maps; /* mappings of memfds */
	uint64_t memfd_bytes;
	uint64_t rss_bytes;
	uint64_t cpu_ns; /* user and system */
	int threads;
};
void fa_test_daemon_usage(const struct fa_test_daemon *daemon, struct fa_test_usage *ret_usage);

/* Lets the daemon open @n more descriptors; UINT_MAX: up to its hard limit. */
void fa_test_daemon_leave_fds(const struct fa_test_daemon *daemon, unsigned int n);
