/* Decode of MLA on compute capability 9.0 (sm90/latent.h). */
#pragma once

#include "kernels/cuda/paged-plan.h"

/* Returns the kernel for the sequences of @p that decode, or NULL: one of them, or the attention, asks
 * for what it does not do. @prefill_tokens: as in the plan. */
const struct fa_cuda_paged_kernel *fa_cuda_paged_latent_find(const struct fa_cuda_chip *chip,
                                                             const struct fa_paged_attention *p,
                                                             uint32_t prefill_tokens);

/* Returns the number of thread blocks that share the tiles of keys. */
uint32_t fa_cuda_paged_latent_team(const struct fa_cuda_paged_plan *plan,
                                   const struct fa_paged_attention *p);

/* Lengthens items by tiles without tokens such that ranges of tiles, of equal size, begin where an item
 * begins or evenly within one, if that takes less time than dividing the tiles over @teams as they are.
 * Returns the number of teams then, else 0. */
uint32_t fa_cuda_paged_latent_align(struct fa_cuda_paged_item *items, uint32_t n, uint32_t teams);

/* Returns the keys of a box of K, such that each lies in one page. */
int32_t fa_cuda_paged_latent_box(const struct fa_paged_attention *p,
                                 const struct fa_cuda_paged_item *items, uint32_t n);

void fa_cuda_paged_latent_launch(const struct fa_cuda_paged_plan *plan,
                                 const struct fa_paged_attention *p,
                                 struct fa_cuda_paged_launch *launch);
