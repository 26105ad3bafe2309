/*
 * From a request to a launch: pure functions over the table of built kernels. They touch no device
 * and read no tensor but cu_seqlens.
 */
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/common/mask-args.h"
#include "kernels/cuda/common/packed-args.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* For each SM, in a preemptible launch: blocks that have not begun stop one after another. */
#define FA_CUDA_PREEMPT_BLOCKS_AN_SM 16

enum fa_cuda_image {
	FA_CUDA_IMAGE_SM80_F16,
	FA_CUDA_IMAGE_SM80_BF16,
	FA_CUDA_IMAGE_SM80_F32,
	FA_CUDA_IMAGE_SM90_F16,
	FA_CUDA_IMAGE_SM90_BF16,
	FA_CUDA_IMAGE_SM90_MASKED_F16,
	FA_CUDA_IMAGE_SM90_MASKED_BF16,
	FA_CUDA_IMAGES,
};

enum fa_cuda_kind {
	FA_CUDA_FULL,          /* every (row, key) pair */
	FA_CUDA_BAND,          /* a window of keys, such as causal */
	FA_CUDA_WINDOW,        /* the same, best for windows narrow on both sides */
	FA_CUDA_CAP,           /* a soft cap and no slopes */
	FA_CUDA_RICH,          /* everything but blocks, patterns and bits */
	FA_CUDA_MASKED,        /* these, too */
	FA_CUDA_PACKED,        /* as BAND, for few rows on many keys (plan-packed.c) */
	FA_CUDA_PACKED_RAGGED, /* the same, of a ragged batch */
};

struct fa_cuda_kernel {
	const char *symbol;
	enum fa_cuda_image image;
	enum fa_attention_dtype dtype;
	enum fa_cuda_kind kind;
	int32_t arch;       /* oldest compute capability */
	int32_t dim, dim_v; /* columns computed */
	int32_t rows;       /* query rows per block */
	int32_t threads;
	int32_t shared_bytes;
	int32_t arch_end;     /* the first after @arch that does not run it, or INT32_MAX */
	int32_t keys;         /* of a box of K and V, by TMA; else 0 */
	int32_t rows_q;       /* the same for Q */
	int32_t seqlen_k_max; /* best up to this many keys */
	int32_t state_bytes;  /* saved on preemption (preempt.h); 0: none */
};

extern const struct fa_cuda_kernel fa_cuda_kernels[];
extern const size_t fa_cuda_kernels_count;

struct fa_cuda_chip {
	int32_t arch;             /* 10 * major + minor of the compute capability */
	int32_t shared_bytes_max; /* CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
	int64_t l2_bytes;
	int32_t sms; /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
	/* The modules for exactly this compute capability failed to load: those over tensors, and
	 * those over pages. */
	bool portable, portable_paged;
	/* For tests (FAD_TUNE_SHARE_EARLY): groups sequences as if an epilogue's cost were
	 * unknown. */
	bool share_early;
	/* The caller provides workspaces. */
	bool workspace;
	/* For tests and benchmarks. Packed rows (paged-plan-packed.h): 0: where they are faster;
	 * -1: never; n: where possible, in units of at most n tiles. */
	int32_t pack;
};

struct fa_cuda_map {
	const void *data;
	uint64_t dims[4];
	uint64_t strides[3];
	uint32_t box[4];
	uint64_t in_rows; /* 1: a box's rows are adjacent; 0: swizzled */
};

struct fa_cuda_launch {
	const struct fa_cuda_kernel *kernel;
	uint32_t grid;
	union {
		struct fa_cuda_attention args;
		struct fa_cuda_packed_attention packed; /* of packed rows; begins with args */
		struct fa_cuda_masked_attention masked; /* of MASKED; begins with args */
	};
	size_t workspace_bytes; /* 0, or what fa_cuda_packed_set() needs */
	uint32_t list_units;    /* > 0: a ragged batch's entries of fa_cuda_ragged_list() */
	/* > 0: of a ragged batch with packed rows, for fa_cuda_packed_list(): most tiles of a unit,
	 * and packed sequences. */
	uint32_t unit_tiles, list_items;
	uint64_t work_ns; /* upper estimate, for wgmma kernels; else 0 */
	uint32_t n_maps;
	struct fa_cuda_map maps[FA_CUDA_MAPS];
};

/* Sets the soft cap in the zero-initialised @args. @softcap 0: none. */
void fa_cuda_attention_cap(struct fa_cuda_attention *args, float scale, float softcap);

bool fa_cuda_kernel_is_special(const struct fa_cuda_kernel *kernel);

/* Its argument is a struct fa_cuda_packed_attention. */
static inline bool fa_cuda_kernel_is_packed(const struct fa_cuda_kernel *kernel)
{
	return kernel->kind == FA_CUDA_PACKED || kernel->kind == FA_CUDA_PACKED_RAGGED;
}

/* Returns the size of the kernel's argument, which begins with a struct fa_cuda_attention. */
static inline size_t fa_cuda_kernel_args_bytes(const struct fa_cuda_kernel *kernel)
{
	return fa_cuda_kernel_is_packed(kernel) ? sizeof(struct fa_cuda_packed_attention)
	       : kernel->kind == FA_CUDA_MASKED ? sizeof(struct fa_cuda_masked_attention)
	                                        : sizeof(struct fa_cuda_attention);
}

bool fa_cuda_kernel_runs(const struct fa_cuda_kernel *kernel, const struct fa_cuda_chip *chip);

/* Returns true if the kernel's table row covers @params; the chip is not considered. */
bool fa_cuda_kernel_covers(const struct fa_cuda_kernel *kernel,
                           const struct fa_attention_params *params);

/* The launch of checked @params on @kernel, which covers them. -ENOTSUP: a length exceeds the
 * kernels' range; @text says which. */
int fa_cuda_attention_plan_on(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *kernel,
                              const struct fa_attention_params *params, char *text,
                              size_t text_bytes, struct fa_cuda_launch *ret_launch);

/* Returns the kernel with the least work, or NULL. */
const struct fa_cuda_kernel *fa_cuda_attention_kernel(const struct fa_cuda_chip *chip,
                                                      const struct fa_attention_params *params);

/* Returns true if chunks hide a key. */
bool fa_cuda_has_chunks(const struct fa_attention_params *params);

/* ---- plan-masks.c */

/* Rewrites checked @params without chunks and prefixes, which no kernel has: chunks become a ragged
 * batch of at most @most sequences. The caller frees *ret_lengths, to which cu_seqlens then point;
 * NULL: they are as before. -ENOTSUP with a sentence in @text: there are more, sequences of a
 * tensor do not follow one another, or a prefix ends among rows; -ENOMEM. */
int fa_cuda_masks_rewrite(struct fa_attention_params *params, int32_t most, char *text,
                          size_t text_bytes, uint32_t **ret_lengths);

/* What prefixes of a causal batch do: let all rows of a sequence see all its keys, some see more
 * than causal lets them, or nothing. */
struct fa_cuda_prefixes {
	bool all, some, none;
};

void fa_cuda_prefixes_add(struct fa_cuda_prefixes *prefixes, int64_t n_q, int64_t n_k,
                          int64_t prefix);
/* Stores whether the batch is causal without its prefixes, or returns -ENOTSUP with a sentence in @text. */
int fa_cuda_prefixes_causal(const struct fa_cuda_prefixes *prefixes, bool *ret_causal, char *text,
                            size_t text_bytes);

/* ---- plan-ragged.c */

/* Counts a ragged launch's units, for all heads, and their (row, key) pairs. False: too many for a
 * list. */
bool fa_cuda_ragged_plan(const struct fa_cuda_launch *launch, uint32_t *ret_units,
                         double *ret_pairs);

/* The list of a launch whose cu_seqlens are still in host memory. The caller copies both to the
 * GPU, the list in front, and sets args.list_units. Without the list a launch is slower, but right.
 * False: no memory. */
bool fa_cuda_ragged_list(const struct fa_cuda_launch *launch, int64_t l2_bytes,
                         struct fa_cuda_ragged_unit *ret_list);

/* ---- plan-packed.c */

/* The launch of checked @params with packed rows. False: they cannot be packed on this chip, or
 * would take longer than on @best, the kernel for unpacked rows. */
bool fa_cuda_packed_plan(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *best,
                         const struct fa_attention_params *params,
                         struct fa_cuda_launch *ret_launch);

/* Sets the workspace of packed rows: device memory whose first FA_CUDA_PACKED_WORKSPACE_ZERO bytes
 * were zeroed once. @epoch: as for fa_cuda_paged_launches(). */
void fa_cuda_packed_set(struct fa_cuda_launch *launch, uint64_t workspace, uint64_t epoch);

/* Bytes of the launch's list: 0 unless a ragged batch's rows are packed; at most
 * FA_CUDA_LIST_BYTES_MAX. */
size_t fa_cuda_packed_list_bytes(const struct fa_cuda_launch *launch);

/* Writes the list of a launch whose cu_seqlens are still in host memory to @list, which the caller
 * copies to @address on the GPU. Both are 16-byte aligned. */
void fa_cuda_packed_list(struct fa_cuda_launch *launch, void *list, uint64_t address);

/* Limit of the warps of all blocks of rows whose keys are divided. */
#define FA_CUDA_PACKED_COUNTERS_MAX 16384
/* A workspace begins alike for work over pages, whose counters come first. */
#define FA_CUDA_PACKED_COUNTERS_AT ((size_t)8 * 20480)
#define FA_CUDA_PACKED_WORKSPACE_ZERO                                                              \
	(FA_CUDA_PACKED_COUNTERS_AT + (size_t)8 * FA_CUDA_PACKED_COUNTERS_MAX)

int fa_cuda_attention_plan(const struct fa_cuda_chip *chip,
                           const struct fa_attention_params *params, char *text, size_t text_bytes,
                           struct fa_cuda_launch *ret_launch);
