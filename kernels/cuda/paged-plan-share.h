/*
 * Which sequences of a step begin with the same pages, and are to read them once.
 */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdbool.h>
#include <stdint.h>

#define FA_CUDA_PAGED_NO_GROUP UINT32_MAX

struct fa_cuda_paged_group {
	uint32_t end; /* tokens before it are shared */
	uint32_t n_sequences;
	uint32_t n_tokens; /* new ones, of all its sequences */
	uint32_t tails;    /* row blocks, of all its sequences */
	uint32_t any;      /* one of its sequences */
};

struct fa_cuda_paged_groups {
	uint32_t n;
	struct fa_cuda_paged_group *groups; /* [n] */
	uint32_t *group_of;                 /* [batch]: or FA_CUDA_PAGED_NO_GROUP */
	void *memory;                       /* of both */
};

/*
 * Groups those of @p's sequences that are @candidates, [batch], where that saves more than it
 * costs. @rows: of a KV head, that the kernel takes at a time; @parts: KV heads and slices of
 * V; @blocks: that run at once; @end: fa_cuda_paged_end_tiles(). All rows of a group see all of
 * what is shared. No groups: the step's table is not in the host's memory, they would not pay, or
 * there is no memory. To be freed.
 */
void fa_cuda_paged_groups_find(const struct fa_paged_attention *p, const bool *candidates,
                               uint32_t rows, uint32_t parts, uint32_t blocks, uint32_t end,
                               struct fa_cuda_paged_groups *ret_groups);
void fa_cuda_paged_groups_free(struct fa_cuda_paged_groups *groups);
