/*
 * Shared by fabench's benchmarks.
 *
 * A benchmark is one function, listed in fabench.c. It measures fad and a peer in alternating
 * blocks, and adds a result per number. One thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_bench_result; /* bench.c */

struct fa_bench {
	struct fa_bench_result *results;
	size_t n_results;
	bool json;            /* print JSON at the end, nothing else */
	bool quick;           /* short, for tests: its numbers mean nothing */
	unsigned int seconds; /* duration of load tests; 0: default */
	bool mps;             /* the GPU is used through MPS, and result names say so */
	const char *only;     /* a pattern for the names of results (cpu, fair); NULL: all */
	bool list;            /* print the names of cpu's results, measure nothing */
	const char *socket;   /* the running daemon's socket; NULL: start a private daemon */
	char device[128];
};

void fa_bench_init(struct fa_bench *bench);
void fa_bench_deinit(struct fa_bench *bench);

/* Puts the GPU's model before the CPU's in the machine's name. */
void fa_bench_set_gpu(struct fa_bench *bench, const char *gpu);

/*
 * Adds a result, and prints it unless JSON is wanted. @name never changes:
 * area/dtype/shape/variant. @ratio is the speed relative to @peer (above 1: faster); NULL and 0: no
 * peer. -ENOMEM.
 */
int fa_bench_add(struct fa_bench *bench, const char *name, double value, const char *unit,
                 const char *peer, double ratio);

void fa_bench_log(const struct fa_bench *bench, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

int fa_bench_print_json(const struct fa_bench *bench);

/* Sorts @values and returns a percentile; 0: there are no values. */
uint64_t fa_bench_percentile(uint64_t *values, size_t n_values, double percent);

/* The benchmarks. Each returns 0, or a negative errno after a message; -ENODEV: this
 * machine lacks what it needs, a GPU or root. */
int fa_bench_rtt(struct fa_bench *bench);
int fa_bench_layers(struct fa_bench *bench); /* called by rtt */
int fa_bench_throughput(struct fa_bench *bench);
int fa_bench_crowd(struct fa_bench *bench);
int fa_bench_fair(struct fa_bench *bench);
int fa_bench_cpu(struct fa_bench *bench);
int fa_bench_wire(struct fa_bench *bench);
int fa_bench_restart(struct fa_bench *bench);
int fa_bench_prefill(struct fa_bench *bench);
int fa_bench_gpu(struct fa_bench *bench);
int fa_bench_request(struct fa_bench *bench);
int fa_bench_step(struct fa_bench *bench);
int fa_bench_yield(struct fa_bench *bench);

/* Only in fabench-launch. @prepares_only: launch nothing. */
int fa_bench_launch(struct fa_bench *bench, bool prepares_only);

/* Main function of the second client of fabench gpu. */
int fa_bench_gpu_storm(const char *socket, const char *ends);
