/*
 * How an attention request over tensors is divided: into blocks of rows, KV heads per tile and,
 * where there would be too few tiles, splits of the keys. Pure functions, any thread. Where keys
 * are split depends on the shapes alone, never on the number of processors, because it shows in the
 * results' last bits. The KV heads per tile do not show, and follow the number of processors.
 */
#pragma once

#include "kernels/cpu/isa.h"

/* True: query heads of one KV head may have different masks. */
bool fa_cpu_tiling_masks_of_heads(const struct fa_attention_params *params);

struct fa_cpu_tiling {
	int32_t block;
	int32_t heads;      /* per tile of few rows; 0: many rows */
	int64_t split_keys; /* 0: keys are not split */
};

void fa_cpu_tiling_choose(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                          struct fa_cpu_tiling *ret_cut);

/* A ragged batch may have a few empty ones. Not for few rows. */
int64_t fa_cpu_tiling_head_tiles(const struct fa_attention_params *params,
                                 const struct fa_cpu_tiling *tiling);

struct fa_cpu_tiling_sequence {
	int64_t n_q, n_k;
	int64_t n_blocks;
	int64_t n_splits; /* of a block, at most; 1: the tile writes rows itself */
};

void fa_cpu_tiling_sequence(const struct fa_attention_params *params,
                            const struct fa_cpu_tiling *tiling, int32_t sequence,
                            struct fa_cpu_tiling_sequence *ret_sequence);
