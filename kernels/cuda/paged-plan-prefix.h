/*
 * Finds sequences of a step that begin with the same pages, to read these once.
 */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdbool.h>
#include <stdint.h>

#define FA_CUDA_PAGED_NO_GROUP UINT32_MAX

struct fa_cuda_paged_group {
	uint32_t end; /* tokens before it are shared */
	uint32_t n_sequences;
	uint32_t n_tokens;
	uint32_t suffixes;
	uint32_t any; /* one of its sequences */
};

struct fa_cuda_paged_groups {
	uint32_t n;
	struct fa_cuda_paged_group *groups; /* [n] */
	uint32_t *group_of;                 /* [batch]: or FA_CUDA_PAGED_NO_GROUP */
	void *memory;                       /* memory of both arrays */
};

/* Groups those @candidates, [batch], of @p that begin with the same pages, where that saves more
 * than it costs. All rows of a group see all shared tokens. @rows: rows of a KV head per pass of
 * the kernel; @parts: KV heads times slices of V; @blocks: thread blocks that run at once; @end:
 * fa_cuda_paged_epilogue_tiles(). No groups if the step has no host_table, or if memory is
 * short. */
void fa_cuda_paged_groups_find(const struct fa_paged_attention *p, const bool *candidates,
                               uint32_t rows, uint32_t parts, uint32_t blocks, uint32_t end,
                               struct fa_cuda_paged_groups *ret_groups);
void fa_cuda_paged_groups_free(struct fa_cuda_paged_groups *groups);
