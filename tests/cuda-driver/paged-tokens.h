/* The operations on pages that are not attention: appending, reading, copying and moving tokens. */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdbool.h>
#include <stdint.h>

/* @codes is NULL if K and V are not stored as codes. @read: copies from the pages to the tensors. */
void fa_fake_append_or_read(const struct fa_cuda_paged_append *p,
                            struct fa_cuda_paged_quantised *codes, bool read);
void fa_fake_widen(const struct fa_cuda_paged_widen *p, uint32_t blocks, uint32_t kv_heads);
void fa_fake_copy_pages(const struct fa_cuda_paged_copy *p, uint32_t pages, uint32_t layers);
void fa_fake_move_tokens(const struct fa_cuda_paged_moves *p, uint32_t sequences, uint32_t layers);
void fa_fake_own_copy(const struct fa_cuda_paged_own_copy *p, uint32_t grid_y);
void fa_fake_append_own(const struct fa_cuda_own_append *p);
