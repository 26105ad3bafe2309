/*
 * From a request to a launch: pure functions over the table of built kernels. They
 * touch no device and no tensor (cu_seqlens they read), so that every choice can be
 * tested, and printed, without a GPU.
 */
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/maps.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Modules that the build makes; a kernel is found in one of them by its symbol. */
enum fa_cuda_image {
	FA_CUDA_IMAGE_SM80_F16,
	FA_CUDA_IMAGE_SM80_BF16,
	FA_CUDA_IMAGE_SM80_F32,
	FA_CUDA_IMAGE_SM90_F16,
	FA_CUDA_IMAGE_SM90_BF16,
	FA_CUDA_IMAGES,
};

enum fa_cuda_kind {
	FA_CUDA_FULL,   /* every (row, key) pair */
	FA_CUDA_BAND,   /* a window of keys, for instance causal */
	FA_CUDA_WINDOW, /* the same, and best where it is narrow on both sides */
	FA_CUDA_CAP,    /* what has a soft cap and no slopes */
	FA_CUDA_RICH,   /* everything that fa_attention_params can say */
};

/* One built kernel. */
struct fa_cuda_kernel {
	const char *symbol;
	enum fa_cuda_image image;
	enum fa_attention_dtype dtype;
	enum fa_cuda_kind kind;
	int32_t arch;       /* oldest compute capability that runs it, as in fa_cuda_chip */
	int32_t dim, dim_v; /* columns that it computes */
	int32_t rows;       /* query rows of a block */
	int32_t threads;
	int32_t shared_bytes;
	int32_t arch_end;     /* the oldest after @arch that does not, or INT32_MAX */
	int32_t keys;         /* tokens of a box of K and V for those that copy by TMA; else 0 */
	int32_t rows_q;       /* likewise of Q */
	int32_t seqlen_k_max; /* the longest sequence of keys that is best served by it */
	int32_t state_bytes;  /* that a block saves when its launch yields (yield.h); 0: never */
};

extern const struct fa_cuda_kernel fa_cuda_kernels[];
extern const size_t fa_cuda_kernels_count;

/* What of a device matters to the choice. */
struct fa_cuda_chip {
	int32_t arch;             /* 10 * major + minor of the compute capability */
	int32_t shared_bytes_max; /* CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
	int64_t l2_bytes;
	int32_t sms; /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
	/* Kernels for this compute capability alone are not to be used: their modules could
	 * not be loaded. */
	bool portable, portable_paged; /* ... that work on tensors; that work on pages */
	/* For tests (FAD_TUNE_SHARE_EARLY of the daemon): sequences that share pages are grouped as
	 * where nobody knows what that costs. */
	bool share_early;
};

/* A tensor as TMA is to see it, of four dims of 16-bit elements. */
struct fa_cuda_map {
	const void *data;
	uint64_t dims[4];
	uint64_t strides[3]; /* of all but the first, in bytes */
	uint32_t box[4];
};

struct fa_cuda_launch {
	const struct fa_cuda_kernel *kernel;
	uint32_t grid; /* blocks, along x; 0: there is nothing to compute, launch nothing */
	struct fa_cuda_attention args; /* the kernel's first parameter */
	uint64_t work_ns; /* how long it is expected to take at most, on wgmma; else 0 */
	/* What its second, struct fa_cuda_maps, is made of, if it has one. */
	uint32_t n_maps; /* FA_CUDA_MAPS or 0 */
	struct fa_cuda_map maps[FA_CUDA_MAPS];
};

/* Fills what of @args, zeros before, is of a soft cap. 0: none. */
void fa_cuda_attention_cap(struct fa_cuda_attention *args, float scale, float softcap);

/* Whether @kernel is for one compute capability alone. */
bool fa_cuda_kernel_is_special(const struct fa_cuda_kernel *kernel);

/* Whether the chip runs @kernel. */
bool fa_cuda_kernel_runs(const struct fa_cuda_kernel *kernel, const struct fa_cuda_chip *chip);

/* Whether @kernel computes @params, as far as its table row says; not whether it fits
 * a chip. */
bool fa_cuda_kernel_covers(const struct fa_cuda_kernel *kernel,
                           const struct fa_attention_params *params);

/*
 * The launch of @params, which fa_attention_check() has passed, on @kernel, which
 * covers them. -ENOTSUP: a length is beyond what the kernels count with; @text says
 * which.
 */
int fa_cuda_attention_plan_on(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *kernel,
                              const struct fa_attention_params *params, char *text,
                              size_t text_bytes, struct fa_cuda_launch *ret_launch);

/* The kernel that does the least work for @params; NULL: the table has none for them on this
 * chip. */
const struct fa_cuda_kernel *fa_cuda_attention_kernel(const struct fa_cuda_chip *chip,
                                                      const struct fa_attention_params *params);

/* The same on that kernel. -ENOTSUP too if the table has none
 * for this request on this chip. */
int fa_cuda_attention_plan(const struct fa_cuda_chip *chip,
                           const struct fa_attention_params *params, char *text, size_t text_bytes,
                           struct fa_cuda_launch *ret_launch);
