/*
 * Prefill plans for kernels of compute capability 9.0, which load pages by TMA and whose blocks of
 * threads compute several blocks of rows.
 */
#pragma once

#include "kernels/cuda/paged-plan.h"

/* The kernel for sequences of many rows, the longest with @longest keys; NULL: none covers them. */
const struct fa_cuda_paged_kernel *fa_cuda_paged_sm90_find(const struct fa_cuda_chip *chip,
                                                           const struct fa_paged_attention *p,
                                                           uint32_t longest);

/* Orders the plan's blocks of rows for kernels that pair the first with the last, the second with
 * the last but one, and so on. A key has the keys that a block sees in its high half and UINT32_MAX
 * minus the block's number in its low half; @keys are sorted, the longest first. An item's tile is
 * its first block's number. */
void fa_cuda_paged_sm90_pair(const struct fa_paged_attention *p,
                             const struct fa_cuda_paged_plan *plan,
                             struct fa_cuda_paged_item *items, uint64_t *keys);

/* Divides the plan's blocks of rows over blocks of threads. This and the next function do nothing
 * for other kernels. */
void fa_cuda_paged_sm90_partition(const struct fa_cuda_chip *chip,
                                  const struct fa_paged_attention *p,
                                  struct fa_cuda_paged_plan *plan);

/* Completes @launch. */
void fa_cuda_paged_sm90_launch(const struct fa_cuda_paged_plan *plan,
                               const struct fa_paged_attention *p,
                               struct fa_cuda_paged_launch *launch);
