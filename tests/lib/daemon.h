/*
 * A private fad: the program FAD_DAEMON on a socket in a temporary directory, with the backend
 * FAD_TEST_BACKEND unless the test chooses one. When it is stopped, its exit status and its log are
 * checked, also for reports of sanitizers. It dies with the test.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fa_test_daemon {
	pid_t pid; /* 0: not running */
	char dir[48];
	bool own_dir;      /* made here; removed with the daemon */
	char socket[64];   /* in dir */
	char config[64];   /* in dir, if options.config is given */
	char log[64];      /* in dir: stderr */
	uint64_t found_at; /* end of the last match of fa_test_daemon_log_wait() */
};

struct fa_test_daemon_options {
	const char *config;      /* of the configuration file; NULL: none */
	const char *const *args; /* ended by NULL; may be NULL */
	uint64_t nofile;         /* RLIMIT_NOFILE; 0: unchanged */
	bool everyone;           /* other users may connect */
	const char *dir;         /* keep this directory; NULL: make one */
};

/*
 * Waits until fad accepts connections; @options may be NULL. If it does not start, the test fails,
 * or fa_test_daemon_try() returns false and the caller reads the log and reaps.
 */
void fa_test_daemon_start(struct fa_test_daemon *daemon,
                          const struct fa_test_daemon_options *options);
bool fa_test_daemon_try(struct fa_test_daemon *daemon,
                        const struct fa_test_daemon_options *options);

/* For daemons started from now on: FAD_TUNE_@name. They run FAD_TUNABLE_DAEMON if that is set. */
void fa_test_daemon_tune(const char *name, const char *value);

/*
 * Sends SIGTERM unless the daemon has exited; checks status 0 and that no sanitizer complained.
 * Does nothing if none runs.
 */
void fa_test_daemon_stop(struct fa_test_daemon *daemon);

/* Waits for any exit, checks the log, removes the directory; returns waitpid()'s status. */
int fa_test_daemon_reap(struct fa_test_daemon *daemon);

/* Does not reap. */
bool fa_test_daemon_is_dead(struct fa_test_daemon *daemon);
/* Does not reap. */
void fa_test_daemon_wait_dead(struct fa_test_daemon *daemon);

void fa_test_daemon_signal(struct fa_test_daemon *daemon, int signal);

/* The daemon below `fad --supervise`; 0: none runs. */
pid_t fa_test_daemon_child(const struct fa_test_daemon *supervisor);
/* Waits for another child than @before. */
pid_t fa_test_daemon_next_child(const struct fa_test_daemon *supervisor, pid_t before);

/* The caller frees the text. */
char *fa_test_daemon_log(const struct fa_test_daemon *daemon);

/* Waits until @part follows the previous match in the log. */
void fa_test_daemon_log_wait(struct fa_test_daemon *daemon, const char *part);

/* What the daemon uses, as the kernel counts it. */
struct fa_test_usage {
	int fds;
	int memfd_maps;
	uint64_t memfd_bytes;
	uint64_t rss_bytes;
	uint64_t cpu_ns; /* user and system */
	int threads;
};
void fa_test_daemon_usage(const struct fa_test_daemon *daemon, struct fa_test_usage *ret_usage);

/* @n more descriptors than are open; UINT_MAX: up to the hard limit. */
void fa_test_daemon_leave_fds(const struct fa_test_daemon *daemon, unsigned int n);
