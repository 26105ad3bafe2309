/* Copies tokens between the pool and a client's own pages. Tiles write disjoint memory. */
#pragma once

#include "kernels/paged.h"

int64_t fa_cpu_own_copy_tiles(const struct fa_paged_own_copy *copy);
void fa_cpu_own_copy_tile(const struct fa_paged_own_copy *copy, bool writes, int64_t tile);
