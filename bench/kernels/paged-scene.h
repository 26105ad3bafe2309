/*
 * Shared by the parts of time-paged: a cache with sequences whose pages are scattered over the
 * pool, requests, bare reads of the pages, contestants, result rows. One thread; failures end the
 * process.
 */
#pragma once

#include "tests/gpu/paged-gpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TIME_POINTER(address) ((void *)(uintptr_t)(address))
#define TIME_CONTESTANTS_MAX 10
#define TIME_SAMPLES_MAX 1000

extern struct time_options {
	int32_t page, heads, kv_heads, dim, n_new, samples;
	int32_t pack;              /* struct fa_cuda_chip's, with shared prefixes */
	const char *only, *shapes; /* only: the part to run; shapes: a pattern of decode shapes */
	bool json, quick;
	bool profile; /* run each contestant once, without timing or checks */
	enum fa_paged_store store;
	bool head_scales;
	const char *type; /* the type in result names */
} time_options;

extern struct paged_gpu *time_gpu;
/* Set when a check failed, with a message: the exit status will be 1. */
extern bool time_failed;

uint32_t time_random_below(uint32_t n);
/* Sets what pages hold: "plain", "e4m3", "int8", "e4m3-heads", "int8-heads". */
bool time_set_store(const char *name);

struct time_contestant {
	void (*run)(void *);
	void *userdata;
};

/* Measures @n contestants in turn and returns their medians; the GPU idles four times as long as
 * it works. */
void time_measure(const struct time_contestant *contestants, int n, double *ret_ns);
/* Prints a result. @ratio: speed relative to @peer. */
void time_print(const char *name, double value, const char *unit, const char *peer, double ratio);
/* Makes a result's name: KIND/TYPE/SHAPE-h.../WHAT. */
void time_name(char *name, size_t bytes, const char *kind, const char *shape, const char *what);

/* ---- a cache and its sequences, in device memory */

struct time_scene {
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	uint32_t *cu_new, *lengths, *before, *table, *table_start;
	uint64_t pool, device_table, q, k, v;
	size_t page_bytes, q_bytes, kv_bytes;
};

uint32_t time_pages_of(uint32_t length);
/* Makes sequences with @n_new new tokens each. False: not enough memory. */
bool time_scene_init(struct time_scene *scene, int32_t batch, const uint32_t *lengths,
                     uint32_t n_new);
void time_scene_deinit(struct time_scene *scene);
struct fa_attention_tensor time_tensor(uint64_t data, int32_t heads);

/* ---- a request over a scene */

struct time_run {
	const struct time_scene *scene;
	struct fa_paged_step step;
	struct fa_paged_request request;
	struct paged_gpu_plan plan;
	uint64_t own_table, out, lse;
};

/* @chip: NULL: this GPU. @table: NULL, or another page table for the same sequences. */
void time_run_init(struct time_run *run, const struct time_scene *scene,
                   const struct fa_cuda_chip *chip, const uint32_t *table, bool deterministic);
void time_run_deinit(struct time_run *run);
/* Runs a request as a contestant; @run is a struct time_run. */
void time_run(void *run);

/* Compares some rows with fp64; false after an error, which sets time_failed. */
bool time_check(struct time_run *run, const char *name);
/* Compares all rows of two runs that may differ by rounding only; fails likewise. */
bool time_compare(struct time_run *ours, struct time_run *theirs, const char *name);

/* ---- bare reads of the same pages */

struct time_bare {
	uint64_t pieces, n_pieces;
	uint32_t piece_bytes;
	double bytes;
};

/* Prepares reads of @n pages, in the order of the slots. */
void time_bare_init(struct time_bare *bare, const struct time_scene *scene, const uint32_t *slots,
                    uint32_t n);
void time_bare_deinit(struct time_bare *bare);
/* Reads the pages as a contestant; the argument is a struct time_bare. */
void time_run_bare(void *bare);
