/*
 * What the benchmarks of fabench share: a list of results that is printed as a
 * table for people or as JSON for programs, and a few statistics.
 *
 * A benchmark is a function of the table in fabench.c. It measures itself and
 * its peer in the same run, in alternating blocks, and adds a result for each
 * number. One thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_bench_result; /* bench.c's */

struct fa_bench {
	struct fa_bench_result *results;
	size_t n_results;
	bool json;            /* results go to stdout as JSON at the end, nothing else does */
	bool quick;           /* as short as still works: for tests, not for numbers */
	unsigned int seconds; /* for what lasts as long as one likes; 0: as it is meant */
	bool mps;             /* all of it under MPS: names say so */
	const char *socket;   /* of the daemon to measure; NULL: a private one is started */
	char device[128];     /* the machine, in words */
};

/* Sets everything to nothing, and device to what /proc/cpuinfo says. */
void fa_bench_init(struct fa_bench *bench);
void fa_bench_deinit(struct fa_bench *bench);

/* The machine has this GPU. */
void fa_bench_name_gpu(struct fa_bench *bench, const char *gpu);

/*
 * Adds one number. @name is stable: area/dtype/shape/variant. @peer is what it was
 * measured against in this run, and @ratio the speed against it (above 1: faster);
 * NULL and 0 if there is none. Prints a line unless JSON is wanted. Returns 0 or
 * -ENOMEM.
 */
int fa_bench_add(struct fa_bench *bench, const char *name, double value, const char *unit,
                 const char *peer, double ratio);

/* Progress for people, on stderr: what takes time and why. */
void fa_bench_say(const struct fa_bench *bench, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* {"results": [...]} to stdout. */
int fa_bench_print_json(const struct fa_bench *bench);

/* The value below which @percent of @values lie; sorts them. 0 of none. */
uint64_t fa_bench_percentile(uint64_t *values, size_t n_values, double percent);

/* The benchmarks: 0, or a negative errno after a sentence on stderr. */
int fa_bench_rtt(struct fa_bench *bench);
int fa_bench_layers(struct fa_bench *bench); /* a part of rtt */
int fa_bench_throughput(struct fa_bench *bench);
int fa_bench_crowd(struct fa_bench *bench);
int fa_bench_cpu(struct fa_bench *bench);
int fa_bench_wire(struct fa_bench *bench);
int fa_bench_restart(struct fa_bench *bench);
int fa_bench_prefill(struct fa_bench *bench); /* -ENODEV as fa_bench_gpu() */
int fa_bench_gpu(struct fa_bench *bench);     /* -ENODEV: there is no GPU, or none for us */
int fa_bench_request(struct fa_bench *bench); /* the same */
int fa_bench_step(struct fa_bench *bench);    /* the same */
int fa_bench_yield(struct fa_bench *bench);   /* the same */

/* Of fabench-launch. @prepares_only: nothing is launched. -ENODEV as fa_bench_gpu(). */
int fa_bench_launch(struct fa_bench *bench, bool prepares_only);

/* The other client of fa_bench_gpu(), in a process of its own; its exit status. */
int fa_bench_gpu_storm(const char *socket, const char *ends);
