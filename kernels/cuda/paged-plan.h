/*
 * From a request over pages to launches: pure functions over the table of built kernels; no device
 * is touched. fa_cuda_paged_plan() divides a step's work once, for all its layers. Arrays that the
 * host reads (kernels/paged.h) are in host memory; the plan copies what kernels need into a blob
 * that the caller uploads. All other pointers are the device's.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/plan.h"
#include "kernels/paged.h"

enum fa_cuda_paged_image {
	FA_CUDA_IMAGE_SM80_PAGED_F16,
	FA_CUDA_IMAGE_SM80_PAGED_BF16,
	FA_CUDA_IMAGE_SM80_PAGED_F32,
	FA_CUDA_IMAGE_SM80_PAGED_TOKENS,
	FA_CUDA_IMAGE_SM80_PAGED_CODES,
	FA_CUDA_IMAGE_SM80_OWN_F16,
	FA_CUDA_IMAGE_SM80_OWN_BF16,
	FA_CUDA_IMAGE_SM80_OWN,
	FA_CUDA_IMAGE_SM90_OWN_F16,
	FA_CUDA_IMAGE_SM90_OWN_BF16,
	FA_CUDA_IMAGE_SM90_OWN_E4M3,
	FA_CUDA_IMAGE_SM90_OWN_PREFILL_F16,
	FA_CUDA_IMAGE_SM90_OWN_PREFILL_BF16,
	FA_CUDA_IMAGE_SM90_PREFILL_F16,
	FA_CUDA_IMAGE_SM90_PREFILL_BF16,
	FA_CUDA_IMAGE_SM90_PAGED_F16,
	FA_CUDA_IMAGE_SM90_PAGED_BF16,
	FA_CUDA_IMAGE_SM90_PAGED_CODES,
	FA_CUDA_IMAGE_SM90_LATENT_F16,
	FA_CUDA_IMAGE_SM90_LATENT_BF16,
	FA_CUDA_IMAGE_SM90_LATENT_E4M3,
	FA_CUDA_PAGED_IMAGES,
};

enum fa_cuda_paged_kind {
	FA_CUDA_PAGED_DECODE,
	FA_CUDA_PAGED_SPLIT,  /* the same, with shared prefixes or fixed splits */
	FA_CUDA_PAGED_LATENT, /* decode of MLA (paged-plan-latent.h) */
	FA_CUDA_PAGED_BAND,   /* many rows: a window of keys, scale > 0, aligned, V like K */
	FA_CUDA_PAGED_RICH,   /* many rows: all but trees */
	FA_CUDA_PAGED_PACKED, /* few rows on many keys: as BAND (paged-plan-packed.h) */
	FA_CUDA_PAGED_APPEND,
	FA_CUDA_PAGED_READ,
	FA_CUDA_PAGED_WIDEN, /* before many rows over codes: kernels for bf16 compute them */
	FA_CUDA_PAGED_MERGE,
	FA_CUDA_PAGED_COPY, /* and clear */
	FA_CUDA_PAGED_MOVE,
	FA_CUDA_PAGED_OWN_COPY,
	FA_CUDA_PAGED_GATE, /* the gate before a request */
	/* Over a client's own pages: few rows, many rows, what precedes both, and append. */
	FA_CUDA_PAGED_OWN_DECODE,
	FA_CUDA_PAGED_OWN_FORWARD,
	FA_CUDA_PAGED_OWN_BAND, /* many rows, by TMA: as BAND and RICH */
	FA_CUDA_PAGED_OWN_RICH,
	FA_CUDA_PAGED_OWN_PACKED, /* few rows on many keys; plans for itself (own_packed.h) */
	FA_CUDA_PAGED_OWN_PLAN,
	FA_CUDA_PAGED_OWN_APPEND,
};

struct fa_cuda_paged_kernel {
	const char *symbol;
	enum fa_cuda_paged_image image;
	enum fa_cuda_paged_kind kind;
	bool small;      /* inline-table variant of the previous row */
	bool levels;     /* variant of the row before the previous one: reduces in levels */
	uint32_t stores; /* bits of enum fa_paged_store; 0: plain */
	enum fa_attention_dtype dtype; /* 0: any */
	int32_t arch, arch_end;        /* runs on [arch, arch_end) */
	int32_t dim, dim_v;            /* computed columns */
	bool exact;                    /* K and V have exactly these columns */
	int32_t rows;                  /* of a part in decode, of a block in prefill */
	int32_t threads;
	int32_t shared_bytes;
	/* Prefill by TMA (paged-plan-sm90.h): keys of a tile of K and V, rows of a box of Q; else
	 * 0. */
	int32_t keys, rows_q;
	int32_t seqlen_k_max, state_bytes; /* as in struct fa_cuda_kernel */
	int32_t blocks;                    /* decode: per SM */
	bool appends;                      /* decode: can also append new tokens */
	bool awaits; /* awaits its predecessor itself (fa_await_launch_ahead) */
	bool maps;   /* decode: its second parameter is struct fa_cuda_maps */
	bool plans;  /* decode: can plan for itself, in shared memory (own_plan.h) */
};

extern const struct fa_cuda_paged_kernel fa_cuda_paged_kernels[];
extern const size_t fa_cuda_paged_kernels_count;

bool fa_cuda_paged_kernel_is_special(const struct fa_cuda_paged_kernel *kernel);
bool fa_cuda_paged_kernel_runs(const struct fa_cuda_paged_kernel *kernel,
                               const struct fa_cuda_chip *chip);

/* Counters in a stream's workspace: zero at first; they persist. */
#define FA_CUDA_PAGED_COUNTERS_BYTES ((size_t)FA_CUDA_PAGED_COUNTERS * 8)

struct fa_cuda_paged_plan {
	enum fa_paged_op op;
	size_t blob_bytes;
	size_t workspace_bytes; /* at least FA_CUDA_PAGED_COUNTERS_BYTES for attention */

	/* Attention: kernels for sequences of few rows and of many; either may be NULL. */
	const struct fa_cuda_paged_kernel *decode, *forward;
	uint32_t decode_items, decode_grid, tiles_each, tiles_extra, epilogue_tiles;
	bool appends; /* for fa_cuda_paged_can_append() */
	bool causal;  /* of the attention, without its prefixes */
	/* Decode: shared prefixes; partial results; rows of each, of which part_rows are in use
	 * without FA_CUDA_PAGED_SPLIT; part_rows 0: no part is divided. */
	uint32_t prefixes, places, partial_rows, part_rows;
	/* Decode of MLA: decode_grid counts teams of so many thread blocks; keys of a box of K. */
	uint32_t team;
	int32_t box_keys;
	uint32_t forward_items, forward_blocks;
	uint32_t forward_grid, forward_section; /* of the prefill launch by TMA */
	bool forward_pairs;
	uint64_t forward_ns;     /* expected, of the launch by TMA */
	uint32_t prefill_tokens; /* sequences with fewer new tokens decode */
	/* Packed rows: forward_blocks is the number of units, of at most unit_tiles tiles; a group
	 * of rows has 2^pack_shift tokens. */
	uint32_t unit_tiles, unit_partials, pack_shift;
	uint32_t packed_items, packed_prefixes, suffix_keys; /* if sequences share prefixes */
	uint32_t join_wait_ns; /* also of MLA; as in common/packed-args.h */
	int32_t pack_sets;     /* sets of 64 >> pack_shift heads per KV head */
	size_t unit_partials_at;
	size_t decode_items_at, block_items_at, forward_items_at, forward_blocks_at;
	size_t splits_at, suffixes_at, tokens_at;
	/* Other operations; over a client's own pages, and before many rows over codes: the first
	 * kernel. */
	const struct fa_cuda_paged_kernel *kernel;
	uint32_t grid_x, grid_y;
	uint32_t own_units; /* packed rows over a client's own pages: units of a KV head */
	/* Over a client's own pages: where in the workspace the device writes its plan. */
	size_t own_ranges_at, own_items_at, own_forward_items_at, own_block_items_at,
		own_forward_blocks_at, own_columns_at;
	size_t first_at, second_at;
	/* Many rows over codes: rows of each head that are bf16 in the workspace; 0: there are no
	 * such. Where they are there, and where in the blob the arrays of paged-plan-widen.c. */
	uint32_t wide_rows;
	int32_t wide_batch; /* sequences of these arrays: with attention chunks not the request's */
	size_t wide_at, wide_arrays_at;
	/* Copies of a client's own pages. */
	size_t k_data_at, v_data_at, k_scales_at, v_scales_at;
	uint32_t own_unit;
	double turns[FA_CUDA_ROTARY_DIM_MAX / 2]; /* append: fa_cuda_rotary.turns */
	/* Attention and append: whether all items, if they are few, are in the launch's arguments;
	 * and the table, too, for a small kernel. A small kernel has no blob: it reads only trees
	 * and positions of the step from memory. */
	uint32_t inline_table;
	struct fa_cuda_paged_item first_items[FA_CUDA_PAGED_INLINE_ITEMS];
	uint32_t table[FA_CUDA_PAGED_INLINE_TABLE];
};

struct fa_cuda_paged_launch {
	const struct fa_cuda_paged_kernel *kernel;
	uint32_t grid_x, grid_y;
	/* Parts of the output that can be reported separately (fa_cuda_done.parts); 0: none. */
	uint32_t parts;
	union {
		struct fa_cuda_paged_attention attention;
		struct fa_cuda_paged_append append;
		/* Arguments of small kernels; they begin like the two above. */
		struct fa_cuda_paged_small_attention small_attention;
		struct fa_cuda_paged_small_append small_append;
		/* Arguments for quantised pages; they begin like the plain ones. */
		struct fa_cuda_paged_attention_quantised attention_quantised;
		struct fa_cuda_paged_small_attention_quantised small_attention_quantised;
		struct fa_cuda_paged_append_quantised append_quantised;
		struct fa_cuda_paged_widen widen;
		struct fa_cuda_paged_merge merge;
		struct fa_cuda_paged_copy copy;
		struct fa_cuda_paged_moves moves;
		struct fa_cuda_paged_own_copy own_copy;
		struct fa_cuda_gate gate;
		/* A client's own pages; the first begins as attention. */
		struct fa_cuda_paged_attention_own own;
		struct fa_cuda_own_plan own_plan;
		struct fa_cuda_own_append own_append;
	} args;
	uint32_t n_maps;
	struct fa_cuda_map maps[FA_CUDA_MAPS];
};

#define FA_CUDA_PAGED_LAUNCHES_MAX 3

/* The caller fills it. */
struct fa_cuda_done *fa_cuda_paged_done(struct fa_cuda_paged_launch *launch);

const struct fa_cuda_paged_kernel *fa_cuda_paged_gate(const struct fa_cuda_chip *chip);

/* Checks if kernels cover @cache, whatever its pool and scales: -EINVAL or -ENOTSUP with a sentence
 * in @text. Plain caches pass if fa_paged_check_cache() does; a request may still be refused. */
int fa_cuda_paged_check_cache(const struct fa_cuda_chip *chip, const struct fa_paged_cache *cache,
                              char *text, size_t text_bytes);

size_t fa_cuda_paged_blob_bytes(const struct fa_paged_request *request);

/* Divides the work of @request, which fa_paged_check() has passed, and fills @blob, 16-byte aligned
 * and of fa_cuda_paged_blob_bytes(). -ENOTSUP with a sentence in @text: no kernel covers it on this
 * chip, or it exceeds their counters. */
int fa_cuda_paged_plan(const struct fa_cuda_chip *chip, const struct fa_paged_request *request,
                       void *blob, char *text, size_t text_bytes,
                       struct fa_cuda_paged_plan *ret_plan);

/* Fills the launches of @request, which run in order in one stream, and returns their number. Since
 * the plan was made only the layer, lse, and data pointers of tensors (with the same alignment) may
 * have changed. @blob and @workspace: device addresses. @epoch: not 0, below 2^48, and greater in
 * each call with the same workspace. */
int fa_cuda_paged_launches(const struct fa_cuda_paged_plan *plan,
                           const struct fa_paged_request *request, uint64_t blob,
                           uint64_t workspace, uint64_t epoch,
                           struct fa_cuda_paged_launch ret_launches[FA_CUDA_PAGED_LAUNCHES_MAX]);

/* Returns true if the attention's launch can also do @append, which belongs to the same step and
 * would come right before it. Pages and results are then the same to the bit. */
bool fa_cuda_paged_can_append(const struct fa_cuda_paged_plan *plan,
                              const struct fa_paged_attention *attention,
                              const struct fa_paged_append *append);

void fa_cuda_paged_add_append(struct fa_cuda_paged_launch *launch,
                              const struct fa_paged_append *append);
