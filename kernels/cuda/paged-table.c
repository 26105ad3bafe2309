/* The table of built kernels over pages, made from the lists that also instantiate them. */
#include "kernels/cuda/paged-plan.h"
#include "kernels/cuda/sm80/paged_kernels.h"

#define DECODE(type, TYPE, bytes_, dim_, dim_v_, atoms, warps, stages)                             \
	{                                                                                          \
		.symbol = "fa_sm80_paged_decode_" #type "_d" #dim_ "_v" #dim_v_ "_a" #atoms        \
			  "_w" #warps,                                                             \
		.image = FA_CUDA_IMAGE_SM80_PAGED_##TYPE,                                          \
		.kind = FA_CUDA_PAGED_DECODE,                                                      \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.arch = 80,                                                                        \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (atoms)*16,                                                                \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_PAGED_SHARED_BYTES(dim_, dim_v_, atoms, warps, stages,     \
		                                           bytes_),                                \
	},
#define DECODE_F16(...) DECODE(f16, F16, 2, __VA_ARGS__)
#define DECODE_BF16(...) DECODE(bf16, BF16, 2, __VA_ARGS__)
#define DECODE_F32(...) DECODE(f32, F32, 4, __VA_ARGS__)

#define FORWARD(type, TYPE, kind_, KIND, dim_, dim_v_, warps, atoms, split, keys, stages, blocks)  \
	{                                                                                          \
		.symbol = "fa_sm80_paged_forward_" #type "_d" #dim_ "_v" #dim_v_ "_" #kind_,       \
		.image = FA_CUDA_IMAGE_SM80_PAGED_##TYPE,                                          \
		.kind = FA_CUDA_PAGED_##KIND,                                                      \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.arch = 80,                                                                        \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (warps) / (split) * (atoms)*16,                                            \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_SHARED_BYTES(dim_, dim_v_, warps, atoms, split, keys,      \
		                                     stages),                                      \
	},
#define FORWARD_F16(...) FORWARD(f16, F16, __VA_ARGS__)
#define FORWARD_BF16(...) FORWARD(bf16, BF16, __VA_ARGS__)

#define TOKENS(name, NAME)                                                                         \
	{                                                                                          \
		.symbol = "fa_sm80_paged_" #name,                                                  \
		.image = FA_CUDA_IMAGE_SM80_PAGED_TOKENS,                                          \
		.kind = FA_CUDA_PAGED_##NAME,                                                      \
		.arch = 80,                                                                        \
		.threads = FA_CUDA_TOKENS_THREADS,                                                 \
	},

const struct fa_cuda_paged_kernel fa_cuda_paged_kernels[] = {
	/* clang-format off */
	FA_SM80_PAGED_DECODE(DECODE_F16)
	FA_SM80_PAGED_DECODE(DECODE_BF16)
	FA_SM80_PAGED_DECODE_F32(DECODE_F32)
	FA_SM80_PAGED_FORWARD(FORWARD_F16)
	FA_SM80_PAGED_FORWARD(FORWARD_BF16)
	TOKENS(append, APPEND)
	TOKENS(read, READ)
	TOKENS(merge, MERGE)
	TOKENS(copy, COPY)
	TOKENS(move, MOVE)
	/* clang-format on */
};

const size_t fa_cuda_paged_kernels_count = sizeof(fa_cuda_paged_kernels) /
                                           sizeof(fa_cuda_paged_kernels[0]);
