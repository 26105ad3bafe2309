/*
 * The part of the planner's work that is for the kernels of compute capability 9.0, which
 * fetch pages by TMA and whose blocks of threads compute several blocks of rows.
 */
#pragma once

#include "kernels/cuda/paged-plan.h"

/* The kernel for the sequences of many rows, of which the longest has @longest keys; NULL: none of
 * these covers them. */
const struct fa_cuda_paged_kernel *fa_cuda_paged_hopper_find(const struct fa_cuda_chip *chip,
                                                             const struct fa_paged_attention *p,
                                                             uint32_t longest);

/*
 * Orders the plan's blocks of rows for kernels that compute the first and the last together, the
 * second and the last but one, ...: @keys, a block's number taken from UINT32_MAX below the keys
 * that it sees, the longest first. @items have their first block's number as tile.
 */
void fa_cuda_paged_hopper_pair(const struct fa_paged_attention *p,
                               const struct fa_cuda_paged_plan *plan,
                               struct fa_cuda_paged_item *items, uint64_t *keys);

/* Divides the plan's blocks of rows over blocks of threads. Does nothing if the plan has
 * another kernel; likewise below. */
void fa_cuda_paged_hopper_divide(const struct fa_cuda_chip *chip,
                                 const struct fa_paged_attention *p,
                                 struct fa_cuda_paged_plan *plan);

/* Adds what these kernels want to know to @launch. */
void fa_cuda_paged_hopper_launch(const struct fa_cuda_paged_plan *plan,
                                 const struct fa_paged_attention *p,
                                 struct fa_cuda_paged_launch *launch);
