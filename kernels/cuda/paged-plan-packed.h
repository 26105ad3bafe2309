/* Plans of packed rows, for compute capability 9.0 (sm90/packed_source.h). */
#pragma once

#include "kernels/cuda/paged-plan.h"

/* If the sequences with many rows are computed as packed rows, sets the plan's kernel and, as
 * forward_blocks, its number of units, and returns true. Depends on shapes and chip alone. */
bool fa_cuda_paged_packed_find(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                               struct fa_cuda_paged_plan *plan);

/* As fa_cuda_paged_packed_find(), for sequences that share prefixes. Also sets plan->prefill_tokens,
 * which may be less than before. */
bool fa_cuda_paged_packed_share(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                                struct fa_cuda_paged_plan *plan);

/* Returns the bytes of partial results, from plan->unit_partials_at in the workspace. */
size_t fa_cuda_paged_packed_bytes(const struct fa_cuda_paged_plan *plan);

/* -ENOMEM. */
int fa_cuda_paged_packed_plan(const struct fa_paged_attention *p, char *blob,
                              const struct fa_cuda_paged_plan *plan);

/* Completes @launch. */
void fa_cuda_paged_packed_launch(const struct fa_cuda_paged_plan *plan,
                                 const struct fa_paged_attention *p, uint64_t blob,
                                 uint64_t workspace, struct fa_cuda_paged_launch *launch);
