/*
 * How an attention request over tensors is cut: into blocks of rows, KV heads to a tile,
 * and, where that makes too few tiles, parts of the keys. Pure functions of the parameters
 * and the instruction set, any thread, nothing remembered.
 *
 * Where keys are cut depends on the shapes alone, and never on how many processors there
 * are: it shows in the last bits of the results. How many KV heads a tile has does
 * not, and follows the processors.
 */
#pragma once

#include "kernels/cpu/isa.h"

struct fa_cpu_cut {
	int32_t block; /* rows of a tile at most */
	int32_t heads; /* KV heads to a tile of few rows, as in decoding; 0: not of these */
	int64_t chunk; /* keys of a part; 0: no tile has only a part of its keys */
};

void fa_cpu_cut(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                struct fa_cpu_cut *ret_cut);

/* Of one KV head; for ragged batches with numbers that no tile has. Not of few rows. */
int64_t fa_cpu_cut_head_tiles(const struct fa_attention_params *params,
                              const struct fa_cpu_cut *cut);

/* A sequence of a request with parts of the keys. */
struct fa_cpu_cut_sequence {
	int64_t n_q, n_k;
	int64_t n_blocks;
	int64_t n_parts; /* of a block at most; 1: its rows are ended by their tile */
};

void fa_cpu_cut_sequence(const struct fa_attention_params *params, const struct fa_cpu_cut *cut,
                         int32_t sequence, struct fa_cpu_cut_sequence *ret_sequence);
