/*
 * The table of kernels over pages.
 */
#include "kernels/cuda/paged-plan.h"
#include "kernels/cuda/sm80/own_kernels.h"
#include "kernels/cuda/sm80/paged_kernels.h"
#include "kernels/cuda/sm90/latent_kernels.h"
#include "kernels/cuda/sm90/paged_kernels.h"
#include "kernels/cuda/sm90/prefill_kernels.h"

#define DECODE(name, KIND, type, TYPE, bytes_, dim_, dim_v_, atoms, warps, stages)                 \
	{                                                                                          \
		.symbol = "fa_sm80_paged_" #name "_" #type "_d" #dim_ "_v" #dim_v_ "_a" #atoms     \
			  "_w" #warps,                                                             \
		.image = FA_CUDA_IMAGE_SM80_PAGED_##TYPE,                                          \
		.kind = FA_CUDA_PAGED_##KIND,                                                      \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.arch = 80,                                                                        \
		.arch_end = INT32_MAX,                                                             \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (atoms)*16,                                                                \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_PAGED_SHARED_BYTES(dim_, dim_v_, atoms, warps, stages,     \
		                                           bytes_),                                \
		.blocks = 1,                                                                       \
	},
#define DECODE_F16(...) DECODE(decode, DECODE, f16, F16, 2, __VA_ARGS__)
#define SPLIT_F16(...) DECODE(pieces, SPLIT, f16, F16, 2, __VA_ARGS__)
#define DECODE_BF16(...) DECODE(decode, DECODE, bf16, BF16, 2, __VA_ARGS__)
#define SPLIT_BF16(...) DECODE(pieces, SPLIT, bf16, BF16, 2, __VA_ARGS__)
#define DECODE_F32(...) DECODE(decode, DECODE, f32, F32, 4, __VA_ARGS__)
#define SPLIT_F32(...) DECODE(pieces, SPLIT, f32, F32, 4, __VA_ARGS__)

#define DECODE_90(...)                                                                             \
	DECODE_90_AS("", false, false, decode, DECODE, __VA_ARGS__)                                \
	DECODE_90_AS("_small", true, false, decode, DECODE, __VA_ARGS__)                           \
	DECODE_90_AS("", false, true, levels, DECODE, __VA_ARGS__)                                 \
	DECODE_90_AS("_small", true, true, levels, DECODE, __VA_ARGS__)
#define SPLIT_90(...) DECODE_90_AS("", false, false, pieces, SPLIT, __VA_ARGS__)
#define DECODE_90_AS(suffix, small_, levels_, name, KIND, type, TYPE, dim_, atoms, groups, stages, \
                     blocks_)                                                                      \
	{                                                                                          \
		.symbol = "fa_sm90_paged_" #name "_" #type "_d" #dim_ "_a" #atoms suffix,          \
		.small = small_,                                                                   \
		.levels = levels_,                                                                 \
		.image = FA_CUDA_IMAGE_SM90_PAGED_##TYPE,                                          \
		.kind = FA_CUDA_PAGED_##KIND,                                                      \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.arch = 90,                                                                        \
		.arch_end = 91,                                                                    \
		.dim = dim_,                                                                       \
		.dim_v = dim_,                                                                     \
		.exact = true,                                                                     \
		.rows = (atoms)*16,                                                                \
		.threads = FA_SM90_PAGED_THREADS(dim_, atoms, groups),                             \
		.shared_bytes = FA_SM90_PAGED_SHARED_BYTES(dim_, atoms, groups, stages),           \
		.blocks = blocks_,                                                                 \
		.appends = FA_SM90_PAGED_APPENDS(dim_, atoms),                                     \
		.awaits = true,                                                                    \
	},
#define DECODE_90_F16(...) DECODE_90(f16, F16, __VA_ARGS__)
#define PIECES_90_F16(...) SPLIT_90(f16, F16, __VA_ARGS__)
#define DECODE_90_BF16(...) DECODE_90(bf16, BF16, __VA_ARGS__)
#define PIECES_90_BF16(...) SPLIT_90(bf16, BF16, __VA_ARGS__)

#define FORWARD(type, TYPE, kind_, KIND, dim_, dim_v_, warps, atoms, split, keys, stages, blocks)  \
	{                                                                                          \
		.symbol = "fa_sm80_paged_forward_" #type "_d" #dim_ "_v" #dim_v_ "_" #kind_,       \
		.image = FA_CUDA_IMAGE_SM80_PAGED_##TYPE,                                          \
		.kind = FA_CUDA_PAGED_##KIND,                                                      \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.arch = 80,                                                                        \
		.arch_end = INT32_MAX,                                                             \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (warps) / (split) * (atoms)*16,                                            \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_SHARED_BYTES(dim_, dim_v_, warps, atoms, split, keys,      \
		                                     stages),                                      \
	},
#define FORWARD_F16(...) FORWARD(f16, F16, __VA_ARGS__)
#define FORWARD_BF16(...) FORWARD(bf16, BF16, __VA_ARGS__)

/* @plan_bytes: of shared memory in which the kernel plans for itself. */
#define HOPPER_AS(prefix, image_, kind_, plan_bytes, type, TYPE, name, dim_, dim_v_, groups,       \
                  keys_, stages, q_slots, turns, seqlen_k_max_)                                    \
	{                                                                                          \
		.symbol = "fa_sm90_" #prefix "_prefill_" #type "_d" #dim_ "_v" #dim_v_ "_" #name,  \
		.image = FA_CUDA_IMAGE_SM90_##image_##TYPE,                                        \
		.kind = FA_CUDA_PAGED_##kind_,                                                     \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.arch = 90,                                                                        \
		.arch_end = 91,                                                                    \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (groups)*FA_SM90_GROUP_ROWS,                                               \
		.threads = ((groups) + 1) * 128,                                                   \
		.shared_bytes = FA_SM90_SHARED_BYTES(dim_, dim_v_, keys_, stages, q_slots) +       \
		                (int32_t)(plan_bytes),                                             \
		.keys = keys_,                                                                     \
		.rows_q = FA_SM90_GROUP_ROWS,                                                      \
		.seqlen_k_max = seqlen_k_max_,                                                     \
		.state_bytes = FA_SM90_YIELDS_##turns * FA_SM90_STATE_BYTES(dim_v_, groups),       \
	},
#define HOPPER(type, TYPE, name, KIND, ...)                                                        \
	HOPPER_AS(paged, PREFILL_, KIND, 0, type, TYPE, name, __VA_ARGS__)
#define HOPPER_OWN(type, TYPE, name, KIND, ...)                                                    \
	HOPPER_AS(own, OWN_PREFILL_, OWN_##KIND, OWN_PLAN_##KIND, type, TYPE, name, __VA_ARGS__)
#define OWN_PLAN_BAND sizeof(struct fa_cuda_own_prefill_plan)
#define OWN_PLAN_RICH sizeof(struct fa_cuda_own_prefill_plan)
#define OWN_PLAN_PACKED sizeof(struct fa_cuda_own_packed_plan)
#define HOPPER_OWN_F16(...) HOPPER_OWN(f16, F16, __VA_ARGS__)
#define HOPPER_OWN_BF16(...) HOPPER_OWN(bf16, BF16, __VA_ARGS__)
#define HOPPER_F16(...) HOPPER(f16, F16, __VA_ARGS__)
#define HOPPER_BF16(...) HOPPER(bf16, BF16, __VA_ARGS__)

#define CODES(store, STORE, dim_, dim_v_, atoms, warps, stages_)                                   \
	{                                                                                          \
		.symbol = "fa_sm80_codes_decode_" #store "_d" #dim_ "_a" #atoms "_w" #warps,       \
		.image = FA_CUDA_IMAGE_SM80_PAGED_CODES,                                           \
		.kind = FA_CUDA_PAGED_DECODE,                                                      \
		.stores = 1u << FA_PAGED_##STORE,                                                  \
		.arch = 80,                                                                        \
		.arch_end = INT32_MAX,                                                             \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (atoms)*16,                                                                \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_QUANTISED_SHARED_BYTES(dim_, dim_v_, atoms, warps,         \
		                                               stages_),                           \
		.blocks = 1,                                                                       \
	},
#define CODES_E4M3(...) CODES(e4m3, E4M3, __VA_ARGS__)
#define CODES_INT8(...) CODES(int8, INT8, __VA_ARGS__)

#define CODES_90(...)                                                                              \
	CODES_90_AS("", false, false, decode, __VA_ARGS__)                                         \
	CODES_90_AS("_small", true, false, decode, __VA_ARGS__)                                    \
	CODES_90_AS("", false, true, levels, __VA_ARGS__)                                          \
	CODES_90_AS("_small", true, true, levels, __VA_ARGS__)
#define CODES_90_AS(suffix, small_, levels_, name, store, STORE, dim_, atoms, groups, stages_)     \
	{                                                                                          \
		.symbol = "fa_sm90_codes_" #name "_" #store "_d" #dim_ "_a" #atoms suffix,         \
		.small = small_,                                                                   \
		.levels = levels_,                                                                 \
		.image = FA_CUDA_IMAGE_SM90_PAGED_CODES,                                           \
		.kind = FA_CUDA_PAGED_DECODE,                                                      \
		.stores = 1u << FA_PAGED_##STORE,                                                  \
		.arch = 90,                                                                        \
		.arch_end = 91,                                                                    \
		.dim = dim_,                                                                       \
		.dim_v = dim_,                                                                     \
		.exact = true,                                                                     \
		.rows = (atoms)*16,                                                                \
		.threads = FA_SM90_CODES_THREADS(groups),                                          \
		.shared_bytes = FA_SM90_CODES_SHARED_BYTES(dim_, atoms, groups, stages_),          \
		.blocks = 1,                                                                       \
		.awaits = true,                                                                    \
	},
#define CODES_90_E4M3(...) CODES_90(e4m3, E4M3, __VA_ARGS__)
#define CODES_90_INT8(...) CODES_90(int8, INT8, __VA_ARGS__)

#define TOKENS_CODES(name, NAME)                                                                   \
	{                                                                                          \
		.symbol = "fa_sm80_paged_" #name,                                                  \
		.image = FA_CUDA_IMAGE_SM80_PAGED_TOKENS,                                          \
		.kind = FA_CUDA_PAGED_##NAME,                                                      \
		.stores = 1u << FA_PAGED_E4M3 | 1u << FA_PAGED_INT8,                               \
		.arch = 80,                                                                        \
		.arch_end = INT32_MAX,                                                             \
		.threads = FA_CUDA_TOKENS_THREADS,                                                 \
	},

#define TOKENS(name, NAME, small_)                                                                 \
	{                                                                                          \
		.symbol = "fa_sm80_paged_" #name,                                                  \
		.small = small_,                                                                   \
		.image = FA_CUDA_IMAGE_SM80_PAGED_TOKENS,                                          \
		.kind = FA_CUDA_PAGED_##NAME,                                                      \
		.arch = 80,                                                                        \
		.arch_end = INT32_MAX,                                                             \
		.threads = FA_CUDA_TOKENS_THREADS,                                                 \
	},

#define OWN_DECODE(type, IMAGE, DTYPE, bytes_, dim_, dim_v_, atoms, warps, stages)                 \
	{                                                                                          \
		.symbol = "fa_sm80_own_decode_" #type "_d" #dim_ "_v" #dim_v_ "_a" #atoms,         \
		.image = FA_CUDA_IMAGE_SM80_##IMAGE,                                               \
		.kind = FA_CUDA_PAGED_OWN_DECODE,                                                  \
		.dtype = FA_ATTENTION_##DTYPE,                                                     \
		.arch = 80,                                                                        \
		.arch_end = INT32_MAX,                                                             \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (atoms)*16,                                                                \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_PAGED_SHARED_BYTES(dim_, dim_v_, atoms, warps, stages,     \
		                                           bytes_),                                \
		.blocks = 1,                                                                       \
	},
#define OWN_DECODE_F16(...) OWN_DECODE(f16, OWN_F16, F16, 2, __VA_ARGS__)
#define OWN_DECODE_BF16(...) OWN_DECODE(bf16, OWN_BF16, BF16, 2, __VA_ARGS__)
#define OWN_DECODE_F32(...) OWN_DECODE(f32, OWN, F32, 4, __VA_ARGS__)
#define OWN_DECODE_E4M3(dim_, dim_v_, atoms, warps, stages_)                                       \
	{                                                                                          \
		.symbol = "fa_sm80_own_decode_e4m3_d" #dim_ "_a" #atoms,                           \
		.image = FA_CUDA_IMAGE_SM80_OWN,                                                   \
		.kind = FA_CUDA_PAGED_OWN_DECODE,                                                  \
		.stores = 1u << FA_PAGED_E4M3,                                                     \
		.arch = 80,                                                                        \
		.arch_end = INT32_MAX,                                                             \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (atoms)*16,                                                                \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_QUANTISED_SHARED_BYTES(dim_, dim_v_, atoms, warps,         \
		                                               stages_),                           \
		.blocks = 1,                                                                       \
	},
#define OWN_FORWARD(type, TYPE, dim_, dim_v_, warps, atoms, split, keys, stages, blocks)           \
	{                                                                                          \
		.symbol = "fa_sm80_own_forward_" #type "_d" #dim_ "_v" #dim_v_,                    \
		.image = FA_CUDA_IMAGE_SM80_OWN_##TYPE,                                            \
		.kind = FA_CUDA_PAGED_OWN_FORWARD,                                                 \
		.dtype = FA_ATTENTION_##TYPE,                                                      \
		.arch = 80,                                                                        \
		.arch_end = INT32_MAX,                                                             \
		.dim = dim_,                                                                       \
		.dim_v = dim_v_,                                                                   \
		.rows = (warps) / (split) * (atoms)*16,                                            \
		.threads = (warps)*32,                                                             \
		.shared_bytes = FA_SM80_SHARED_BYTES(dim_, dim_v_, warps, atoms, split, keys,      \
		                                     stages),                                      \
	},
#define OWN_FORWARD_F16(...) OWN_FORWARD(f16, F16, __VA_ARGS__)
#define OWN_FORWARD_BF16(...) OWN_FORWARD(bf16, BF16, __VA_ARGS__)

#define OWN_90(name, IMAGE, stores_, dtype_, dim_, atoms, threads_, shared, plans_)                \
	{                                                                                          \
		.symbol = "fa_sm90_own_decode_" #name "_d" #dim_ "_a" #atoms,                      \
		.image = FA_CUDA_IMAGE_SM90_OWN_##IMAGE,                                           \
		.kind = FA_CUDA_PAGED_OWN_DECODE,                                                  \
		.stores = stores_,                                                                 \
		.dtype = dtype_,                                                                   \
		.arch = 90,                                                                        \
		.arch_end = 91,                                                                    \
		.dim = dim_,                                                                       \
		.dim_v = dim_,                                                                     \
		.exact = true,                                                                     \
		.rows = (atoms)*16,                                                                \
		.threads = threads_,                                                               \
		.shared_bytes = (plans_) ? ((shared) + 15) / 16 * 16 +                             \
		                                   (int32_t)sizeof(struct fa_cuda_own_shared_plan) \
		                         : (shared),                                               \
		.blocks = 1,                                                                       \
		.awaits = true,                                                                    \
		.maps = true,                                                                      \
		.plans = plans_,                                                                   \
	},
#define OWN_90_16(type, TYPE, dim_, atoms, groups, stages, blocks)                                 \
	OWN_90(type, TYPE, 1u << FA_PAGED_PLAIN, FA_ATTENTION_##TYPE, dim_, atoms,                 \
	       FA_SM90_PAGED_THREADS(dim_, atoms, groups),                                         \
	       FA_SM90_PAGED_SHARED_BYTES(dim_, atoms, groups, stages), FA_SM90_OWN_PLANS(dim_))
#define OWN_90_F16(...) OWN_90_16(f16, F16, __VA_ARGS__)
#define OWN_90_BF16(...) OWN_90_16(bf16, BF16, __VA_ARGS__)
#define OWN_90_E4M3(dim_, atoms, groups, stages_)                                                  \
	OWN_90(e4m3, E4M3, 1u << FA_PAGED_E4M3, 0, dim_, atoms, FA_SM90_CODES_THREADS(groups),     \
	       FA_SM90_CODES_SHARED_BYTES(dim_, atoms, groups, stages_), false)

#define LATENT(type, TYPE, DTYPE, stores_, maps_)                                                  \
	{                                                                                          \
		.symbol = "fa_sm90_paged_latent_" #type,                                           \
		.image = FA_CUDA_IMAGE_SM90_LATENT_##TYPE,                                         \
		.kind = FA_CUDA_PAGED_LATENT,                                                      \
		.dtype = FA_ATTENTION_##DTYPE,                                                     \
		.stores = stores_,                                                                 \
		.arch = 90,                                                                        \
		.arch_end = 91,                                                                    \
		.dim = FA_SM90_LATENT_DIM,                                                         \
		.dim_v = FA_SM90_LATENT_DIM_V,                                                     \
		.exact = true,                                                                     \
		.rows = FA_SM90_LATENT_ROWS,                                                       \
		.threads = FA_SM90_LATENT_THREADS,                                                 \
		.shared_bytes = FA_SM90_LATENT_SHARED_BYTES,                                       \
		.blocks = 1,                                                                       \
		.awaits = true,                                                                    \
		.maps = maps_,                                                                     \
	},

const struct fa_cuda_paged_kernel fa_cuda_paged_kernels[] = {
	/* clang-format off */
	FA_SM90_PAGED_DECODE(DECODE_90_F16)
	FA_SM90_PAGED_DECODE(DECODE_90_BF16)
	FA_SM80_PAGED_DECODE(DECODE_F16)
	FA_SM80_PAGED_DECODE(DECODE_BF16)
	FA_SM80_PAGED_DECODE_F32(DECODE_F32)
	FA_SM90_PAGED_PIECES(PIECES_90_F16)
	FA_SM90_PAGED_PIECES(PIECES_90_BF16)
	FA_SM80_PAGED_SPLIT(SPLIT_F16)
	FA_SM80_PAGED_SPLIT(SPLIT_BF16)
	FA_SM80_PAGED_DECODE_F32(SPLIT_F32)
	FA_SM80_PAGED_FORWARD(FORWARD_F16)
	FA_SM80_PAGED_FORWARD(FORWARD_BF16)
	FA_SM90_PREFILL(HOPPER_F16)
	FA_SM90_PREFILL(HOPPER_BF16)
	FA_SM90_CODES_DECODE(CODES_90_E4M3)
	FA_SM90_CODES_DECODE(CODES_90_INT8)
	FA_SM80_QUANTISED_DECODE(CODES_E4M3)
	FA_SM80_QUANTISED_DECODE(CODES_INT8)
	TOKENS(append, APPEND, false)
	TOKENS(append_small, APPEND, true)
	TOKENS(read, READ, false)
	TOKENS(merge, MERGE, false)
	TOKENS(copy, COPY, false)
	TOKENS(move, MOVE, false)
	TOKENS_CODES(append_codes, APPEND)
	TOKENS_CODES(read_codes, READ)
	TOKENS_CODES(widen, WIDEN)
	TOKENS(own_copy, OWN_COPY, false)
	TOKENS_CODES(own_copy_codes, OWN_COPY)
	{
		.symbol = "fa_sm80_paged_gate",
		.image = FA_CUDA_IMAGE_SM80_PAGED_TOKENS,
		.kind = FA_CUDA_PAGED_GATE,
		.arch = 80,
		.arch_end = INT32_MAX,
		.threads = FA_CUDA_GATE_THREADS,
	},
	LATENT(f16, F16, F16, 0, true)
	LATENT(bf16, BF16, BF16, 0, true)
	LATENT(e4m3, E4M3, BF16, 1u << FA_PAGED_E4M3, false)
	FA_SM90_OWN_PREFILL(HOPPER_OWN_F16)
	FA_SM90_OWN_PREFILL(HOPPER_OWN_BF16)
	FA_SM90_OWN_DECODE(OWN_90_F16)
	FA_SM90_OWN_DECODE(OWN_90_BF16)
	FA_SM90_CODES_DECODE(OWN_90_E4M3)
	FA_SM80_OWN_DECODE(OWN_DECODE_F16)
	FA_SM80_OWN_DECODE(OWN_DECODE_BF16)
	FA_SM80_OWN_DECODE_F32(OWN_DECODE_F32)
	FA_SM80_OWN_DECODE_E4M3(OWN_DECODE_E4M3)
	FA_SM80_OWN_FORWARD(OWN_FORWARD_F16)
	FA_SM80_OWN_FORWARD(OWN_FORWARD_BF16)
	{
		.symbol = "fa_sm80_own_plan",
		.image = FA_CUDA_IMAGE_SM80_OWN,
		.kind = FA_CUDA_PAGED_OWN_PLAN,
		.arch = 80,
		.arch_end = INT32_MAX,
		.threads = FA_CUDA_TOKENS_THREADS,
		.shared_bytes = FA_SM80_OWN_PLAN_SHARED_BYTES,
	},
	{
		.symbol = "fa_sm80_own_append",
		.image = FA_CUDA_IMAGE_SM80_OWN,
		.kind = FA_CUDA_PAGED_OWN_APPEND,
		.stores = 1u << FA_PAGED_PLAIN | 1u << FA_PAGED_E4M3,
		.arch = 80,
		.arch_end = INT32_MAX,
		.threads = FA_CUDA_TOKENS_THREADS,
	},
	/* clang-format on */
};

const size_t fa_cuda_paged_kernels_count = sizeof(fa_cuda_paged_kernels) /
                                           sizeof(fa_cuda_paged_kernels[0]);
