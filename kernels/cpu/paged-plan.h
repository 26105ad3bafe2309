/*
 * How paged attention is divided into tiles. Query heads that share a KV head are packed into one
 * list of rows, as in plan.c, and divided into blocks; where blocks are few, keys are split at
 * multiples of fixed numbers. A sequence's tiling, and so its results, depend on its own lengths
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
	int64_t split_keys;           /* splits start at multiples of it */
	int64_t first_split;
	int64_t counter, partial; /* of its counters; of its partial rows, in floats */
	int32_t block;            /* rows */
	int32_t n_splits;         /* 1: the tile writes rows itself */
};

/* What a tiling depends on besides the sequence. */
struct fa_cpu_paged_shape {
	int32_t heads, kv_heads, head_dim, head_dim_v;
};

/* Keys of a split: multiples of FA_CPU_PAGED_SPLIT_STEP, a multiple of all kernels' rounds. */
#define FA_CPU_PAGED_SPLIT_STEP 256
#define FA_CPU_PAGED_SPLIT_MIN 1024

struct fa_cpu_paged_rows {
	int64_t n_q, n_k;
	int64_t keys_begin; /* keys before it are hidden */
	int64_t left;       /* window_left */
	int64_t chunk_tokens;
	int64_t split_keys_min;
};

struct fa_cpu_paged_plan {
	int64_t n_tiles, n_counters, partial_floats;
};

void fa_cpu_paged_plan_sequence(const struct fa_cpu_isa *isa,
                                const struct fa_cpu_paged_shape *shape,
                                const struct fa_cpu_paged_rows *rows,
                                struct fa_cpu_paged_plan *plan,
                                struct fa_cpu_paged_tiling *ret_tiling);

void fa_cpu_paged_plan(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                       struct fa_cpu_paged_tiling *tilings, struct fa_cpu_paged_plan *ret_plan);

struct fa_cpu_paged_workspace {
	int32_t batch;
	struct fa_cpu_paged_tiling *tilings;
	_Atomic uint32_t *counters;
	float *partials;
	size_t bytes;
};

/* @memory NULL: only the size is computed. */
void fa_cpu_paged_lay_out(int32_t batch, const struct fa_cpu_paged_plan *plan, void *memory,
                          struct fa_cpu_paged_workspace *ret_workspace);

/* Uses the tilings in @memory. */
void fa_cpu_paged_find(int32_t batch, int32_t kv_heads, void *memory,
                       struct fa_cpu_paged_workspace *ret_workspace);

/* A split of a block's keys. A list is a block of a KV head. */
struct fa_cpu_paged_place {
	int32_t sequence, kv_head;
	int64_t list, block, split;
};

void fa_cpu_paged_locate(const struct fa_cpu_paged_workspace *workspace, int32_t kv_heads,
                         int64_t tile, struct fa_cpu_paged_place *ret_place);

/* Fills in @job's rows and keys. */
bool fa_cpu_paged_run(const struct fa_cpu_isa *isa, const struct fa_cpu_paged_workspace *workspace,
                      const struct fa_cpu_paged_place *place, struct fa_cpu_job *job,
                      void *scratch);

/* Returns the KV heads that tiles are counted by: @kv_heads, or, if query heads of one KV head have
 * different masks, @heads. */
static inline int32_t fa_cpu_paged_lists(const struct fa_attention_pattern *pattern, int32_t heads,
                                         int32_t kv_heads)
{
	return fa_cpu_pattern_per_head(pattern, heads / kv_heads) ? heads : kv_heads;
}

bool fa_cpu_paged_attend(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                         void *memory, int64_t tile, void *scratch, const bool *stop);
