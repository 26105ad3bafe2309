/*
 * Prefill plans for compute capability 9.0, where kernels load pages by TMA and a block of threads
 * computes several blocks of rows.
 */
#pragma once

#include "kernels/cuda/paged-plan.h"

/* Returns the kernel for sequences of many rows, of which the longest has @longest keys; NULL:
 * none. @own: over a client's own pages. */
const struct fa_cuda_paged_kernel *fa_cuda_paged_sm90_find(const struct fa_cuda_chip *chip,
                                                           const struct fa_paged_attention *p,
                                                           bool own, uint32_t longest);

/* Orders the plan's blocks of rows for kernels that pair the first with the last, and so on. A
 * key's high half is the number of keys that a block sees, its low half UINT32_MAX minus the
 * block's number; @keys are sorted, the longest first. An item's tile is its first block's
 * number. */
void fa_cuda_paged_sm90_pair(const struct fa_paged_attention *p,
                             const struct fa_cuda_paged_plan *plan,
                             struct fa_cuda_paged_item *items, uint64_t *keys);

/* This function and the next do nothing for other kernels. */
void fa_cuda_paged_sm90_partition(const struct fa_cuda_chip *chip,
                                  const struct fa_paged_attention *p,
                                  struct fa_cuda_paged_plan *plan);

bool fa_cuda_paged_sm90_covers(const struct fa_cuda_paged_kernel *kernel,
                               const struct fa_paged_attention *p);

void fa_cuda_paged_sm90_maps(const struct fa_cuda_paged_plan *plan,
                             const struct fa_paged_attention *p,
                             struct fa_cuda_paged_launch *launch);

/* Rate of one multiprocessor of an H200. */
#define FA_CUDA_SM_FLOPS_PER_NS 6000

/* Completes @launch. */
void fa_cuda_paged_sm90_launch(const struct fa_cuda_paged_plan *plan,
                               const struct fa_paged_attention *p,
                               struct fa_cuda_paged_launch *launch);

/* Pages that are not fp32. */
bool fa_cuda_paged_sm90_can_map(const struct fa_paged_own *own);

/* Fills the maps of decode of MLA, whose boxes have args.box_keys keys. */
void fa_cuda_paged_sm90_map_latent(const struct fa_paged_attention *p,
                                   struct fa_cuda_paged_launch *launch);

void fa_cuda_paged_sm90_map_rows(const struct fa_paged_own *own,
                                 struct fa_cuda_paged_launch *launch);

/* @p has everything but the pages and the step. */
void fa_cuda_paged_sm90_launch_own(const struct fa_cuda_paged_plan *plan,
                                   const struct fa_paged_attention *p,
                                   const struct fa_paged_own *own,
                                   struct fa_cuda_paged_launch *launch);
