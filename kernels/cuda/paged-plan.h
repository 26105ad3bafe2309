/*
 * From a request over pages to launches: pure functions over the table of built kernels.
 * They touch no device. A step's work is divided once, by fa_cuda_paged_plan(), and then
 * launched for layer after layer.
 *
 * Of a request's arrays those that the host reads (kernels/paged.h) are in host memory; the
 * plan takes over what kernels need of them, as a blob that the caller uploads. All other
 * pointers are the device's.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/plan.h"
#include "kernels/paged.h"

/* Modules that the build makes (paged-images.h). */
enum fa_cuda_paged_image {
	FA_CUDA_IMAGE_SM80_PAGED_F16,
	FA_CUDA_IMAGE_SM80_PAGED_BF16,
	FA_CUDA_IMAGE_SM80_PAGED_F32,
	FA_CUDA_IMAGE_SM80_PAGED_TOKENS,
	FA_CUDA_IMAGE_SM80_PAGED_CODES,
	FA_CUDA_IMAGE_SM90_PREFILL_F16,
	FA_CUDA_IMAGE_SM90_PREFILL_BF16,
	FA_CUDA_IMAGE_SM90_PAGED_F16,
	FA_CUDA_IMAGE_SM90_PAGED_BF16,
	FA_CUDA_IMAGE_SM90_PAGED_CODES,
	FA_CUDA_PAGED_IMAGES,
};

enum fa_cuda_paged_kind {
	FA_CUDA_PAGED_DECODE, /* few rows of a sequence: any request */
	FA_CUDA_PAGED_PIECES, /* the same, with prefixes or in units of its own */
	FA_CUDA_PAGED_BAND,   /* many rows: a window of keys, scale > 0, aligned, V like K */
	FA_CUDA_PAGED_RICH,   /* many rows: all but trees */
	FA_CUDA_PAGED_APPEND,
	FA_CUDA_PAGED_READ,
	FA_CUDA_PAGED_MERGE,
	FA_CUDA_PAGED_COPY, /* and clear */
	FA_CUDA_PAGED_MOVE,
	FA_CUDA_PAGED_GATE, /* none of a request: what waits before one */
};

/* One built kernel. */
struct fa_cuda_paged_kernel {
	const char *symbol;
	enum fa_cuda_paged_image image;
	enum fa_cuda_paged_kind kind;
	bool small;                    /* the row before it, for launches that carry the table */
	bool levels;                   /* two rows before it, for parts of many shares */
	uint32_t stores;               /* bits of enum fa_paged_store; 0: plain */
	enum fa_attention_dtype dtype; /* 0: any */
	int32_t arch, arch_end;        /* runs on compute capabilities in [arch, arch_end) */
	int32_t dim, dim_v;            /* columns that it computes */
	bool exact;                    /* and K and V have no fewer */
	int32_t rows;                  /* decode: of a part; forward: of a block */
	int32_t threads;
	int32_t shared_bytes;
	/* Forward by TMA (paged-hopper.h): keys of a tile of K and V, rows of a box of Q. 0:
	 * others. */
	int32_t keys, rows_q;
	int32_t seqlen_k_max, state_bytes; /* as in struct fa_cuda_kernel */
	int32_t blocks;                    /* decode: that share an SM */
	bool appends;                      /* decode: it can put new tokens into the pages, too */
	bool awaits; /* it waits itself for the launch ahead of it (fa_await_launch_ahead) */
};

extern const struct fa_cuda_paged_kernel fa_cuda_paged_kernels[];
extern const size_t fa_cuda_paged_kernels_count;

/* Whether @kernel is for one compute capability alone; and whether the chip runs it. */
bool fa_cuda_paged_kernel_is_special(const struct fa_cuda_paged_kernel *kernel);
bool fa_cuda_paged_kernel_runs(const struct fa_cuda_paged_kernel *kernel,
                               const struct fa_cuda_chip *chip);

/* Device memory of launches in order: one for each stream. Zeros at first; counters stay. */
#define FA_CUDA_PAGED_COUNTERS_BYTES ((size_t)FA_CUDA_PAGED_COUNTERS * 8)

struct fa_cuda_paged_plan {
	enum fa_paged_op op;
	size_t blob_bytes;      /* to be uploaded before the first launch; may be 0 */
	size_t workspace_bytes; /* at least FA_CUDA_PAGED_COUNTERS_BYTES for attention */

	/* Attention: the sequences of few rows and those of many, either may be none. */
	const struct fa_cuda_paged_kernel *decode, *forward;
	uint32_t decode_items, decode_grid, tiles_each, tiles_extra, tiles_end;
	bool appends; /* fa_cuda_paged_can_append(), as far as attention has to do with it */
	/* Decode in pieces: places of shares, and rows of each. Places there are without pieces,
	 * too, and part_rows of their rows are used; 0: no part is divided. */
	uint32_t prefixes, places, place_rows, part_rows;
	uint32_t forward_items, forward_blocks;
	uint32_t forward_grid, forward_section; /* by TMA */
	uint64_t forward_ns;                    /* how long that is expected to take */
	/* Where in the blob. */
	size_t decode_items_at, block_items_at, forward_items_at, forward_blocks_at;
	size_t pieces_at, tails_at, tokens_at;
	/* Other operations: a kernel, its grid, and up to two arrays in the blob. */
	const struct fa_cuda_paged_kernel *kernel;
	uint32_t grid_x, grid_y;
	size_t first_at, second_at;
	double turns[128]; /* append: the rotary embedding's (fa_cuda_rotary) */
	/* Attention and append: what launches carry. Decode: all items, if there are no more.
	 * The table if the kernel is a small one: then nothing of the step is read in memory but
	 * trees and positions, and there is no blob. */
	uint32_t table_here; /* entries of it, or 0 */
	struct fa_cuda_paged_item first_items[FA_CUDA_PAGED_ITEMS_HERE];
	uint32_t table[FA_CUDA_PAGED_TABLE_HERE];
};

struct fa_cuda_paged_launch {
	const struct fa_cuda_paged_kernel *kernel;
	uint32_t grid_x, grid_y;
	/* Parts that all output falls into, which can be told one by one (fa_cuda_done.parts); 0: they
	 * cannot. */
	uint32_t parts;
	union { /* the kernel's first parameter */
		struct fa_cuda_paged_attention attention;
		struct fa_cuda_paged_append append;
		/* Of a small kernel; the two above are how they begin. */
		struct fa_cuda_paged_small_attention small_attention;
		struct fa_cuda_paged_small_append small_append;
		/* Where pages hold codes; likewise. */
		struct fa_cuda_paged_attention_codes attention_codes;
		struct fa_cuda_paged_small_attention_codes small_attention_codes;
		struct fa_cuda_paged_append_codes append_codes;
		struct fa_cuda_paged_merge merge;
		struct fa_cuda_paged_copy copy;
		struct fa_cuda_paged_moves moves;
		struct fa_cuda_gate gate;
	} args;
	/* What the kernel's second, struct fa_cuda_maps, is made of, if it has one. */
	uint32_t n_maps; /* FA_CUDA_MAPS or 0 */
	struct fa_cuda_map maps[FA_CUDA_MAPS];
};

#define FA_CUDA_PAGED_LAUNCHES_MAX 2

/* What @launch is told about its end, empty so far: the caller's to fill. */
struct fa_cuda_done *fa_cuda_paged_done(struct fa_cuda_paged_launch *launch);

/* The kernel of fa_cuda_gate. It has one block. */
const struct fa_cuda_paged_kernel *fa_cuda_paged_gate(const struct fa_cuda_chip *chip);

/* Whether kernels cover @cache, whose pool and scales are not looked at. -EINVAL, -ENOTSUP,
 * with a sentence in @text. Of plain ones, what fa_paged_check_cache() says: what they lack
 * depends on the request. */
int fa_cuda_paged_check_cache(const struct fa_cuda_chip *chip, const struct fa_paged_cache *cache,
                              char *text, size_t text_bytes);

/* Bytes that a blob of @request has at most. */
size_t fa_cuda_paged_blob_bytes(const struct fa_paged_request *request);

/*
 * Divides the work of @request, which fa_paged_check() has passed, and fills @blob, which
 * has room for fa_cuda_paged_blob_bytes(), 16-byte aligned. -ENOTSUP, with a sentence in
 * @text: no kernel of the table covers it on this chip, or it is beyond what they count
 * with.
 */
int fa_cuda_paged_plan(const struct fa_cuda_chip *chip, const struct fa_paged_request *request,
                       void *blob, char *text, size_t text_bytes,
                       struct fa_cuda_paged_plan *ret_plan);

/*
 * The launches of @request, of which since the plan only the layer, data pointers of tensors
 * (aligned as they were) and lse may have changed; returns how many, which run in order in
 * one stream. @blob and @workspace: device addresses. @epoch: not 0, below
 * 2^48, and for the same workspace more in each call than in the one before.
 */
int fa_cuda_paged_launches(const struct fa_cuda_paged_plan *plan,
                           const struct fa_paged_request *request, uint64_t blob,
                           uint64_t workspace, uint64_t epoch,
                           struct fa_cuda_paged_launch ret_launches[FA_CUDA_PAGED_LAUNCHES_MAX]);

/*
 * Whether the launch of @plan, of @attention, can put into the pages what @append does, which
 * would come right before: then there is nothing left to launch for that. Both are of the same
 * step. Pages and results are the same to the bit.
 */
bool fa_cuda_paged_can_append(const struct fa_cuda_paged_plan *plan,
                              const struct fa_paged_attention *attention,
                              const struct fa_paged_append *append);

/* Has @launch, the only one of such a plan, do so. */
void fa_cuda_paged_add_append(struct fa_cuda_paged_launch *launch,
                              const struct fa_paged_append *append);
