/* The measured daemon: a private one, or one that runs already (--socket). */
#pragma once

#include "bench/fabench/bench.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fa_bench_daemon {
	char socket[108];
	char directory[64]; /* the socket's directory; "": not a private daemon */
	pid_t pid;
};

/* Starts a private daemon and waits for it, or with --socket asks for the pid of the running
 * one. Returns 0 or a negative errno after a message. */
int fa_bench_daemon_start(const struct fa_bench *bench, struct fa_bench_daemon *ret_daemon);

/* The same, but all users may connect to a private daemon. */
int fa_bench_daemon_start_for_all(const struct fa_bench *bench, struct fa_bench_daemon *ret_daemon);

/* Starts a private daemon with a supervisor, whose pid is in @ret_daemon. */
int fa_bench_daemon_start_supervised(const struct fa_bench *bench,
                                     struct fa_bench_daemon *ret_daemon);

/* True if there is a fad-tunable, which takes FAD_TUNE_* (tests/cuda-driver/tuning-env.c). */
bool fa_bench_daemon_is_tunable(void);
int fa_bench_daemon_start_tunable(const struct fa_bench *bench, struct fa_bench_daemon *ret_daemon);

/* Gets the pid of the serving process. */
int fa_bench_daemon_process(const struct fa_bench_daemon *daemon, pid_t *ret_pid);

/* Stops a private daemon. -EIO: the daemon's exit status was not 0. */
int fa_bench_daemon_stop(struct fa_bench_daemon *daemon);

/* Waits, at most 10 s, until only the caller has a session. */
int fa_bench_daemon_settle(const struct fa_bench_daemon *daemon);

/* Returns the daemon's resident memory; 0: unknown. */
uint64_t fa_bench_daemon_rss_bytes(const struct fa_bench_daemon *daemon);

/* Returns the CPU time of all threads; 0: unknown. */
uint64_t fa_bench_daemon_cpu_ns(const struct fa_bench_daemon *daemon);
