/*
 * What time-paged measures: a cache with sequences whose pages lie all over the pool, requests
 * over it, bare reads of the same pages; contestants that take turns, and rows that say how they
 * did. One thread; what cannot be done ends the process.
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
	const char *only, *shapes; /* what of all; a part, and a pattern of decode's shapes */
	bool json, quick;
	bool profile; /* each once, and only what it is called; neither times nor checks */
	enum fa_paged_store store;
	bool head_scales;
	const char *type; /* in names */
} time_options;

extern struct paged_gpu *time_gpu;
/* Something was wrong, and was said on stderr: the process is to fail. */
extern bool time_failed;

uint32_t time_below(uint32_t n);
/* What pages hold from now on: "plain", "e4m3", "int8", "e4m3-heads", "int8-heads". */
bool time_set_store(const char *name);

struct time_contestant {
	void (*run)(void *);
	void *userdata;
};

/* Medians of @n contestants, taking turns; the GPU rests four times as long as it works. */
void time_measure(const struct time_contestant *contestants, int n, double *ret_ns);
/* @ratio of times: above 1 is faster than @peer. */
void time_say(const char *name, double value, const char *unit, const char *peer, double ratio);
/* KIND/TYPE/SHAPE-h…/WHAT, for requests of options.n_new tokens a sequence. */
void time_name(char *name, size_t bytes, const char *kind, const char *shape, const char *what);

/* ---- a cache and its sequences, all on the device */

struct time_scene {
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	uint32_t *cu_new, *lengths, *before, *table, *table_start;
	uint64_t pool, device_table, q, k, v;
	size_t page_bytes, q_bytes, kv_bytes;
};

uint32_t time_pages_of(uint32_t length);
/* False: not enough memory. @n_new new tokens of each sequence, with q, k and v. */
bool time_scene_init(struct time_scene *scene, int32_t batch, const uint32_t *lengths,
                     uint32_t n_new);
void time_scene_deinit(struct time_scene *scene);
struct fa_attention_tensor time_tensor(uint64_t data, int32_t heads);

/* ---- a request over it */

struct time_run {
	const struct time_scene *scene;
	struct fa_paged_step step;
	struct fa_paged_request request;
	struct paged_gpu_plan plan;
	uint64_t own_table, out, lse;
};

/* Attention of the new tokens, planned for @chip (NULL: this GPU). @table: NULL, or another one
 * for the same sequences. */
void time_run_init(struct time_run *run, const struct time_scene *scene,
                   const struct fa_cuda_chip *chip, const uint32_t *table, bool deterministic);
void time_run_deinit(struct time_run *run);
/* A contestant's. */
void time_run(void *run);

/* Runs it, and compares some of its rows with what fp64 makes of the same pages. A difference
 * fails, and is false. */
bool time_check(struct time_run *run, const char *name);
/* The same of all rows of two that should be alike but for rounding. */
bool time_compare(struct time_run *ours, struct time_run *theirs, const char *name);

/* ---- reading the same and doing nothing with it */

struct time_bare {
	uint64_t pieces, n_pieces;
	uint32_t piece_bytes;
	double bytes;
};

/* Of @n pages, in that order. */
void time_bare_init(struct time_bare *bare, const struct time_scene *scene, const uint32_t *slots,
                    uint32_t n);
void time_bare_deinit(struct time_bare *bare);
/* A contestant's. */
void time_run_bare(void *bare);
