/* Finds sequences whose packed rows share a prefix (paged-plan-packed.c). */
#pragma once

#include "kernels/cuda/packed-units.h"
#include "kernels/cuda/paged-plan.h"

#include <stdbool.h>
#include <stdint.h>

struct fa_cuda_packed_prefixes {
	uint32_t from; /* sequences with fewer new tokens are not packed */
	uint32_t runs; /* prefixes */
	uint32_t n;
	struct fa_cuda_paged_item *items; /* [n], but for packed.suffix */
	bool *suffixes;                   /* [n]: kind of item */
};

/* Returns false, quickly, where no sequences can share a prefix. */
bool fa_cuda_packed_prefixes_possible(const struct fa_paged_attention *p);

/* Finds runs of sequences that begin with the same pages, where sharing these saves keys. The caller
 * has asked fa_cuda_packed_prefixes_possible(), and frees *ret_prefixes. @block_rows: packed rows that a thread block computes at once; @suffix_keys: keys
 * that take as long as what a sequence costs in a run. False: there is
 * no such run, or memory is short. */
bool fa_cuda_packed_prefixes_find(const struct fa_paged_attention *p, uint32_t block_rows,
                                  uint32_t suffix_keys,
                                  struct fa_cuda_packed_prefixes *ret_prefixes);
void fa_cuda_packed_prefixes_free(struct fa_cuda_packed_prefixes *prefixes);
