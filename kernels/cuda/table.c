/*
 * The table of kernels over tensors.
 */
#include "kernels/cuda/plan.h"
#include "kernels/cuda/sm80/kernels.h"
#include "kernels/cuda/sm90/kernels.h"

#include <stdint.h>

#define ROW_16(type, TYPE, kind_, KIND, dim_, dim_v_, warps, atoms, split, keys, stages, blocks)   \
	{                                                                                          \
		.symbol = "fa_sm80_forward_" #type "_d" #dim_ "_v" #dim_v_ "_" #kind_,             \
		.image = FA_CUDA_IMAGE_SM80_##TYPE,                                                \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.kind = FA_CUDA_##KIND,                                                            \
		.arch = 80,                                                                        \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (warps) / (split) * (atoms)*16,                                            \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_SHARED_BYTES(dim_, dim_v_, warps, atoms, split, keys,      \
		                                     stages),                                      \
		.arch_end = INT32_MAX,                                                             \
		.seqlen_k_max = INT32_MAX,                                                         \
	},
#define ROW_MASKED(type, TYPE, kind_, KIND, dim_, dim_v_, warps, atoms, split, keys, stages,       \
                   blocks)                                                                         \
	{                                                                                          \
		.symbol = "fa_sm80_forward_" #type "_d" #dim_ "_v" #dim_v_ "_" #kind_,             \
		.image = FA_CUDA_IMAGE_SM80_##TYPE,                                                \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.kind = FA_CUDA_##KIND,                                                            \
		.arch = 80,                                                                        \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (warps) / (split) * (atoms)*16,                                            \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_SHARED_BYTES(dim_, dim_v_, warps, atoms, split, keys,      \
		                                     stages) +                                     \
		                FA_CUDA_MASK_BYTES,                                                \
		.arch_end = INT32_MAX,                                                             \
		.seqlen_k_max = INT32_MAX,                                                         \
	},
#define ROW_MASKED_F16(...) ROW_MASKED(f16, F16, __VA_ARGS__)
#define ROW_MASKED_BF16(...) ROW_MASKED(bf16, BF16, __VA_ARGS__)
#define ROW_F16(...) ROW_16(f16, F16, __VA_ARGS__)
#define ROW_BF16(...) ROW_16(bf16, BF16, __VA_ARGS__)
#define ROW_F32(dim_, dim_v_, rows_, keys_)                                                        \
	{                                                                                          \
		.symbol = "fa_sm80_forward_f32_d" #dim_ "_v" #dim_v_ "_rich",                      \
		.image = FA_CUDA_IMAGE_SM80_F32,                                                   \
		.dtype = FA_ATTENTION_F32,                                                         \
		.kind = FA_CUDA_RICH,                                                              \
		.arch = 80,                                                                        \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = 16 * (rows_),                                                              \
		.threads = FA_SM80_F32_THREADS,                                                    \
		.shared_bytes = FA_SM80_F32_SHARED_BYTES(dim_, dim_v_, rows_, keys_),              \
		.arch_end = INT32_MAX,                                                             \
		.seqlen_k_max = INT32_MAX,                                                         \
	},
/* sm_90a code runs on compute capability 9.0 only. */
#define ROW_SM90(...) ROW_SM90_OF(SM90, __VA_ARGS__)
#define ROW_SM90_OF(IMAGE, type, TYPE, name, KIND, dim_, dim_v_, groups, keys_, stages, q_slots,   \
                    turns, seqlen_k_max_)                                                          \
	{                                                                                          \
		.symbol = "fa_sm90_forward_" #type "_d" #dim_ "_v" #dim_v_ "_" #name,              \
		.image = FA_CUDA_IMAGE_##IMAGE##_##TYPE,                                           \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.kind = FA_CUDA_##KIND,                                                            \
		.arch = 90,                                                                        \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (groups)*FA_SM90_GROUP_ROWS,                                               \
		.threads = ((groups) + 1) * 128,                                                   \
		.shared_bytes = FA_SM90_SHARED_BYTES(dim_, dim_v_, keys_, stages, q_slots) +       \
		                FA_SM90_EXTRA_BYTES_##KIND(dim_, keys_),                           \
		.arch_end = 91,                                                                    \
		.keys = keys_,                                                                     \
		.rows_q = FA_SM90_GROUP_ROWS,                                                      \
		.seqlen_k_max = seqlen_k_max_,                                                     \
		.state_bytes = FA_SM90_YIELDS_##turns * FA_SM90_STATE_BYTES(dim_v_, groups),       \
	},
#define ROW_SM90_F16(...) ROW_SM90(f16, F16, __VA_ARGS__)
#define ROW_SM90_BF16(...) ROW_SM90(bf16, BF16, __VA_ARGS__)
#define ROW_SM90_MASKED_F16(...) ROW_SM90_OF(SM90_MASKED, f16, F16, __VA_ARGS__)
#define ROW_SM90_MASKED_BF16(...) ROW_SM90_OF(SM90_MASKED, bf16, BF16, __VA_ARGS__)

const struct fa_cuda_kernel fa_cuda_kernels[] = {
	/* clang-format off */
	FA_SM80_FORWARD(ROW_F16)
	FA_SM80_FORWARD(ROW_BF16)
	FA_SM80_FORWARD_F32(ROW_F32)
	FA_SM80_MASKED(ROW_MASKED_F16)
	FA_SM80_MASKED(ROW_MASKED_BF16)
	FA_SM90_FORWARD(ROW_SM90_F16)
	FA_SM90_FORWARD(ROW_SM90_BF16)
	FA_SM90_MASKED(ROW_SM90_MASKED_F16)
	FA_SM90_MASKED(ROW_SM90_MASKED_BF16)
	/* clang-format on */
};

const size_t fa_cuda_kernels_count = sizeof(fa_cuda_kernels) / sizeof(fa_cuda_kernels[0]);
