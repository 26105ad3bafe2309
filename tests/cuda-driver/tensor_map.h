/* Compares the tensor maps of a launch with the request. */
#pragma once

#include "kernels/cuda/paged-plan.h"
#include "kernels/cuda/plan.h"

#include <stdbool.h>

/* Returns what is wrong with a kernel's tensor maps, or NULL. Ragged lengths are checked when the
 * launch runs. */
const char *fa_fake_maps_wrong(const struct fa_cuda_kernel *kernel,
                               const struct fa_cuda_attention *args,
                               const struct fa_cuda_maps *maps);

/* Returns whether @maps have the lengths that the ragged batch's tables give. */
bool fa_fake_maps_fit(const struct fa_cuda_maps *maps, int64_t n_q, int64_t n_k);

/* Returns what is wrong with a kernel's maps of pages, or NULL. The keys of a box must divide a page
 * and a tile. */
const char *fa_fake_paged_maps_wrong(const struct fa_cuda_paged_kernel *kernel,
                                     const struct fa_cuda_paged_attention *args,
                                     const struct fa_cuda_maps *maps);
