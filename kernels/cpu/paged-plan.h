/*
 * How paged attention is divided into tiles. Query heads that share a KV head are packed into one
 * list of rows, as in plan.c, and divided into blocks; where blocks are few, their keys are split
 * at multiples of fixed numbers. A sequence's tiling, and so its results, depend on its own lengths
 * alone.
 */
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/paged.h"

#include <stdatomic.h>

struct fa_cpu_paged_tiling {
	int64_t tile;
	int64_t n_blocks;
	int64_t keys_begin, keys_end; /* that any row sees */
	int64_t split_keys;           /* keys per split; splits start at its multiples */
	int64_t first_split;
	int64_t counter,
		partial;  /* offset of the sequence's counters; of its partial rows, in floats */
	int32_t block;    /* rows */
	int32_t n_splits; /* 1: the tile writes its rows itself */
};

struct fa_cpu_paged_plan {
	int64_t n_tiles, n_counters, partial_floats;
};

void fa_cpu_paged_plan(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                       struct fa_cpu_paged_tiling *tilings, struct fa_cpu_paged_plan *ret_plan);

struct fa_cpu_paged_workspace {
	struct fa_cpu_paged_tiling *tilings;
	_Atomic uint32_t *counters;
	float *partials;
	size_t bytes;
};

/* Lays out @workspace, or NULL, and returns its size. */
void fa_cpu_paged_lay_out(const struct fa_paged_attention *params,
                          const struct fa_cpu_paged_plan *plan, void *workspace,
                          struct fa_cpu_paged_workspace *ret_workspace);

bool fa_cpu_paged_attend(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                         const struct fa_cpu_paged_workspace *workspace, int64_t tile,
                         void *scratch, const bool *stop);
