/*
 * The kernels over pages as host code, one object for each module: EMULATED is its name.
 * Compiled as C++.
 */
#include "tests/cuda-emulator/emulator.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define ENTRY(symbol_, args_name)                                                                  \
	{ #symbol_, [](const void *args) { symbol_(*(const struct args_name *)args); } },

#if EMULATED_16
#define FA_TYPE JOIN(fa_, EMULATED)
#define FA_TYPE_NAME EMULATED
#include "kernels/cuda/sm80/paged_rows.h"
#elif EMULATED_32
#include "kernels/cuda/sm80/paged_f32.cu"
#else
#include "kernels/cuda/sm80/paged_tokens.cu"
#endif

#define DECODE(type, dim, dim_v, atoms, warps, stages)                                             \
	ENTRY(fa_sm80_paged_decode_##type##_d##dim##_v##dim_v##_a##atoms##_w##warps,               \
	      fa_cuda_paged_attention)
#define DECODE_OF(type, ...) DECODE(type, __VA_ARGS__)
#define DECODE_OF_TYPE(...) DECODE_OF(FA_TYPE_NAME, __VA_ARGS__)
#define FORWARD(type, kind, KIND, dim, dim_v, ...)                                                 \
	ENTRY(fa_sm80_paged_forward_##type##_d##dim##_v##dim_v##_##kind, fa_cuda_paged_attention)
#define FORWARD_OF(type, ...) FORWARD(type, __VA_ARGS__)
#define FORWARD_OF_TYPE(...) FORWARD_OF(FA_TYPE_NAME, __VA_ARGS__)

const struct fa_emulated_kernel JOIN(fa_emulated_, EMULATED)[] = {
#if EMULATED_16
	FA_SM80_PAGED_DECODE(DECODE_OF_TYPE) FA_SM80_PAGED_FORWARD(FORWARD_OF_TYPE)
#elif EMULATED_32
	FA_SM80_PAGED_DECODE_F32(DECODE_OF_TYPE)
#else
	ENTRY(fa_sm80_paged_append, fa_cuda_paged_append)
		ENTRY(fa_sm80_paged_read, fa_cuda_paged_append)
			ENTRY(fa_sm80_paged_merge, fa_cuda_paged_merge)
				ENTRY(fa_sm80_paged_copy, fa_cuda_paged_copy)
					ENTRY(fa_sm80_paged_move, fa_cuda_paged_moves)
#endif
		{ nullptr, nullptr },
};
