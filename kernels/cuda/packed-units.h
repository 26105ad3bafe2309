/*
 * How packed rows (sm90/packed_source.h) of sequences of unlike lengths are divided over blocks of
 * threads: into units, a block of rows and some of its tiles of keys each. Pure arithmetic, the same
 * over pages (paged-plan-packed.c) and over ragged tensors (plan-packed.c).
 *
 * Sequences that share a prefix are one item with their rows and the prefix's keys, and further
 * items, the suffixes, with each sequence's other keys (struct fa_cuda_packed_item).
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* A bound of a window that hides nothing. */
#define FA_CUDA_PACKED_UNBOUNDED ((int64_t)1 << 40)

enum fa_cuda_packed_kind {
	FA_CUDA_PACKED_NOTHING, /* the sequence's rows are not packed */
	FA_CUDA_PACKED_ROWS,
	FA_CUDA_PACKED_SUFFIX, /* a suffix of the last item that is none */
};

struct fa_cuda_packed_batch {
	uint32_t rows, keys; /* the kernel's, in a block of rows and in a tile */
	uint32_t heads, kv_heads;
	/* Row i of an item sees its keys [i + diagonal - left, i + diagonal + right]. Every row
	 * sees a key. */
	int64_t left, right;
	int32_t batch; /* number of items, with those of kind NOTHING */
	/* Sets item @b, but for packed.suffix. */
	enum fa_cuda_packed_kind (*item_of)(const void *userdata, int32_t b,
	                                    struct fa_cuda_paged_item *ret_item);
	const void *userdata;
	/* Units of the longest sequences come first: the last thread blocks are short, and there
	 * may be more blocks of rows than FA_CUDA_PACKED_WAVES_MAX allows. */
	bool longest_first;
	bool suffixes; /* there are some; items keep their order */
};

/* Sets a sequence of its own, whose rows all see its keys. */
static inline void fa_cuda_packed_alone(struct fa_cuda_paged_item *item)
{
	item->packed = (struct fa_cuda_packed_item){
		.diagonal = (int32_t)(item->n_k - item->n_q),
		.end_row = item->n_q,
		.suffix = FA_CUDA_PACKED_ALONE,
	};
}

struct fa_cuda_packed_units {
	uint32_t pack_shift; /* as in packed-args.h */
	int32_t pack_sets;
	uint32_t tiles; /* of a unit, at most */
	uint32_t units, partials;
	uint32_t join_wait_ns; /* 0: the last unit of a block of rows joins all parts alone */
	double keys;           /* the launch's time, in keys of a block of rows; 0: unknown */
};

/* Chooses how rows are packed, and the number of units. Returns false if they cannot be packed, or if
 * there are so many blocks of rows that packing gains nothing. A pure function of shapes and chip. */
bool fa_cuda_packed_units_choose(const struct fa_cuda_chip *chip,
                                 const struct fa_cuda_packed_batch *batch,
                                 struct fa_cuda_packed_units *ret_units);

/* Writes the items of packed sequences, in order, and the units. */
void fa_cuda_packed_units_write(const struct fa_cuda_packed_batch *batch,
                                const struct fa_cuda_packed_units *units,
                                struct fa_cuda_paged_item *ret_items,
                                struct fa_cuda_paged_unit *ret_units);
