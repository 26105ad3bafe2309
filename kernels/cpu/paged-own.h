/*
 * Attention over a client's own pages, and appending to them. Lengths and cu_q are read once, into
 * the workspace, when a request begins; table entries and slots are bounded where they are read.
 */
#pragma once

#include "kernels/cpu/isa.h"

size_t fa_cpu_own_workspace_bytes(const struct fa_paged_own_attention *params);
/* Returns the number of tiles. */
int64_t fa_cpu_own_begin(const struct fa_cpu_isa *isa, const struct fa_paged_own_attention *params,
                         void *memory);
bool fa_cpu_own_attend(const struct fa_cpu_isa *isa, const struct fa_paged_own_attention *params,
                       void *memory, int64_t tile, void *scratch, const bool *stop);

void fa_cpu_own_append(const struct fa_paged_own_append *params, int64_t token);
