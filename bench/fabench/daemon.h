/*
 * The daemon that is measured: a private one, started and stopped here, or one
 * that somebody else runs; and what the system says of its process.
 */
#pragma once

#include "bench/fabench/bench.h"

#include <stdint.h>
#include <sys/types.h>

struct fa_bench_daemon {
	char socket[108];
	char directory[64]; /* of a private daemon's socket; "": not ours */
	pid_t pid;
};

/*
 * Starts a daemon with a socket in a new temporary directory and waits until it
 * accepts connections; or, if @bench names a socket, asks that one who it is.
 * Returns 0 or a negative errno after a sentence on stderr.
 */
int fa_bench_daemon_start(const struct fa_bench *bench, struct fa_bench_daemon *ret_daemon);

/* The same, a private one, under a supervisor: that is @ret_daemon's pid. */
int fa_bench_daemon_start_supervised(const struct fa_bench *bench,
                                     struct fa_bench_daemon *ret_daemon);

/* The process that serves. */
int fa_bench_daemon_process(const struct fa_bench_daemon *daemon, pid_t *ret_pid);

/* Ends a private daemon. Returns 0, or -EIO if it did not exit with status 0. */
int fa_bench_daemon_stop(struct fa_bench_daemon *daemon);

/* Waits, 10 s at most, until the daemon has forgotten every client but the asking one. */
int fa_bench_daemon_settle(const struct fa_bench_daemon *daemon);

/* Bytes of memory that the daemon's process has resident; 0 if unknown. */
uint64_t fa_bench_daemon_rss_bytes(const struct fa_bench_daemon *daemon);

/* Processor time of all its threads so far; 0 if unknown. */
uint64_t fa_bench_daemon_cpu_ns(const struct fa_bench_daemon *daemon);
