/*
 * How paged attention is cut into tiles. A sequence's query heads that share a KV head
 * are packed into one list of rows, as in plan.c, and cut into blocks; where there are
 * few blocks, each is cut along its keys as well, at multiples of fixed numbers. Each
 * sequence is cut by its own lengths alone, so that its results do not depend on the
 * others.
 */
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/paged.h"

#include <stdatomic.h>

/* A sequence: tiles are numbered block by block, head by head, split by split. */
struct fa_cpu_paged_place {
	int64_t tile; /* its first */
	int64_t n_blocks;
	int64_t keys_begin, keys_end; /* that any row sees */
	int64_t chunk;                /* keys of a split, which start at its multiples */
	int64_t first_chunk;          /* of the first split */
	int64_t counter, partial;     /* where its begin: counters, floats */
	int32_t block;                /* rows */
	int32_t n_splits;             /* 1: rows are ended by their tile */
};

struct fa_cpu_paged_plan {
	int64_t n_tiles, n_counters, partial_floats;
};

/* The plan of checked parameters; @places: [batch], or NULL. */
void fa_cpu_paged_plan(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                       struct fa_cpu_paged_place *places, struct fa_cpu_paged_plan *ret_plan);

/* The workspace: places, counters of finished splits, partial rows. */
struct fa_cpu_paged_workspace {
	struct fa_cpu_paged_place *places;
	_Atomic uint32_t *counters;
	float *partials;
	size_t bytes;
};

/* Where the parts of @workspace begin, and its size; @workspace may be NULL. */
void fa_cpu_paged_lay_out(const struct fa_paged_attention *params,
                          const struct fa_cpu_paged_plan *plan, void *workspace,
                          struct fa_cpu_paged_workspace *ret_workspace);

/* One tile of attention. */
bool fa_cpu_paged_attend(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                         const struct fa_cpu_paged_workspace *workspace, int64_t tile,
                         void *scratch, const bool *stop);
