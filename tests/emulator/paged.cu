/* The paged kernels, compiled as C++ for the host, once for each module of the GPU. EMULATED_*
 * select the module; EMULATED is the last part of its name. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/launch.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define ENTRY(symbol_, args_name)                                                                  \
	{ #symbol_, [](const void *args) { symbol_(*(const struct args_name *)args); } },

#if EMULATED_OWN_90 && EMULATED_CODES
#include "kernels/cuda/sm90/own_e4m3.cu"
#elif EMULATED_90 && EMULATED_CODES
#include "kernels/cuda/sm90/paged_codes.cu"
#elif EMULATED_90
#define FA_TYPE JOIN(fa_, EMULATED)
#define FA_TYPE_NAME EMULATED
#include "kernels/cuda/sm90/paged_decode_rows.h"
#elif EMULATED_16
#define FA_TYPE JOIN(fa_, EMULATED)
#define FA_TYPE_NAME EMULATED
#include "kernels/cuda/sm80/paged_rows.h"
#elif EMULATED_32
#include "kernels/cuda/sm80/paged_f32.cu"
#elif EMULATED_CODES
#include "kernels/cuda/sm80/paged_codes.cu"
#elif EMULATED_OWN_90
#define FA_TYPE JOIN(fa_, EMULATED)
#define FA_TYPE_NAME EMULATED
#include "kernels/cuda/sm90/own_rows.h"
#elif EMULATED_OWN_16
#define FA_TYPE JOIN(fa_, EMULATED)
#define FA_TYPE_NAME EMULATED
#include "kernels/cuda/sm80/own_rows.h"
#elif EMULATED_OWN
#include "kernels/cuda/sm80/own.cu"
#else
#include "kernels/cuda/sm80/paged_tokens.cu"
#endif

#define DECODE(name, type, dim, dim_v, atoms, warps, stages)                                       \
	ENTRY(fa_sm80_paged_##name##_##type##_d##dim##_v##dim_v##_a##atoms##_w##warps,             \
	      fa_cuda_paged_attention)
#define DECODE_OF(name, type, ...) DECODE(name, type, __VA_ARGS__)
#define DECODE_OF_TYPE(...) DECODE_OF(decode, FA_TYPE_NAME, __VA_ARGS__)
#define PIECES_OF_TYPE(...) DECODE_OF(pieces, FA_TYPE_NAME, __VA_ARGS__)
#define QUANTISED(store, dim, dim_v, atoms, warps, stages)                                                    \
	ENTRY(fa_sm80_codes_decode_##store##_d##dim##_a##atoms##_w##warps,                         \
	      fa_cuda_paged_attention_quantised)
#define CODES_E4M3(...) QUANTISED(e4m3, __VA_ARGS__)
#define CODES_INT8(...) QUANTISED(int8, __VA_ARGS__)
#define DECODE_90(type, dim, atoms, ...)                                                           \
	ENTRY(fa_sm90_paged_decode_##type##_d##dim##_a##atoms, fa_cuda_paged_attention)            \
	ENTRY(fa_sm90_paged_decode_##type##_d##dim##_a##atoms##_small,                             \
	      fa_cuda_paged_small_attention)                                                       \
	ENTRY(fa_sm90_paged_levels_##type##_d##dim##_a##atoms, fa_cuda_paged_attention)            \
	ENTRY(fa_sm90_paged_levels_##type##_d##dim##_a##atoms##_small,                             \
	      fa_cuda_paged_small_attention)
#define DECODE_90_OF(type, ...) DECODE_90(type, __VA_ARGS__)
#define DECODE_90_OF_TYPE(...) DECODE_90_OF(FA_TYPE_NAME, __VA_ARGS__)
#define PIECES_90(type, dim, atoms, ...)                                                           \
	ENTRY(fa_sm90_paged_pieces_##type##_d##dim##_a##atoms, fa_cuda_paged_attention)
#define PIECES_90_OF(type, ...) PIECES_90(type, __VA_ARGS__)
#define PIECES_90_OF_TYPE(...) PIECES_90_OF(FA_TYPE_NAME, __VA_ARGS__)
#define CODES_90(store, dim, atoms, ...)                                                           \
	ENTRY(fa_sm90_codes_decode_##store##_d##dim##_a##atoms, fa_cuda_paged_attention_quantised)     \
	ENTRY(fa_sm90_codes_decode_##store##_d##dim##_a##atoms##_small,                            \
	      fa_cuda_paged_small_attention_quantised)                                                 \
	ENTRY(fa_sm90_codes_levels_##store##_d##dim##_a##atoms, fa_cuda_paged_attention_quantised)     \
	ENTRY(fa_sm90_codes_levels_##store##_d##dim##_a##atoms##_small,                            \
	      fa_cuda_paged_small_attention_quantised)
#define CODES_90_E4M3(...) CODES_90(e4m3, __VA_ARGS__)
#define CODES_90_INT8(...) CODES_90(int8, __VA_ARGS__)
#define FORWARD(type, kind, KIND, dim, dim_v, ...)                                                 \
	ENTRY(fa_sm80_paged_forward_##type##_d##dim##_v##dim_v##_##kind, fa_cuda_paged_attention)
#define FORWARD_OF(type, ...) FORWARD(type, __VA_ARGS__)
#define FORWARD_OF_TYPE(...) FORWARD_OF(FA_TYPE_NAME, __VA_ARGS__)

#define OWN_DECODE(type, dim, dim_v, atoms, ...)                                                   \
	ENTRY(fa_sm80_own_decode_##type##_d##dim##_v##dim_v##_a##atoms, fa_cuda_paged_attention_own)
#define OWN_DECODE_OF(type, ...) OWN_DECODE(type, __VA_ARGS__)
#define OWN_DECODE_OF_TYPE(...) OWN_DECODE_OF(FA_TYPE_NAME, __VA_ARGS__)
#define OWN_E4M3(dim, dim_v, atoms, ...)                                                                  \
	ENTRY(fa_sm80_own_decode_e4m3_d##dim##_a##atoms, fa_cuda_paged_attention_own)
#define OWN_FORWARD(type, dim, dim_v, ...)                                                         \
	ENTRY(fa_sm80_own_forward_##type##_d##dim##_v##dim_v, fa_cuda_paged_attention_own)
#define OWN_FORWARD_OF(type, ...) OWN_FORWARD(type, __VA_ARGS__)
#define OWN_FORWARDS_OF_TYPE(...) OWN_FORWARD_OF(FA_TYPE_NAME, __VA_ARGS__)

#define MAPPED(symbol_, args_name)                                                                 \
	{ #symbol_, [](const void *data) {                                                         \
		 const struct fa_emulated_mapped *args = (const struct fa_emulated_mapped *)data;  \
		 symbol_(*(const struct args_name *)args->attention,                               \
		         *(const struct fa_cuda_maps *)args->maps);                                \
	 } },
#define OWN_90(type, dim, atoms, ...)                                                              \
	MAPPED(fa_sm90_own_decode_##type##_d##dim##_a##atoms, fa_cuda_paged_attention_own)
#define OWN_90_OF(type, ...) OWN_90(type, __VA_ARGS__)
#define OWN_90_OF_TYPE(...) OWN_90_OF(FA_TYPE_NAME, __VA_ARGS__)
#define OWN_90_E4M3(...) OWN_90(e4m3, __VA_ARGS__)

#if EMULATED_OWN_90
const struct fa_emulated_kernel JOIN(fa_emulated_own_90_, EMULATED)[] = {
#elif EMULATED_OWN_16
const struct fa_emulated_kernel JOIN(fa_emulated_own_, EMULATED)[] = {
#elif EMULATED_90
const struct fa_emulated_kernel JOIN(fa_emulated_90_, EMULATED)[] = {
#else
const struct fa_emulated_kernel JOIN(fa_emulated_, EMULATED)[] = {
#endif
#if EMULATED_OWN_90 && EMULATED_CODES
	FA_SM90_CODES_DECODE(OWN_90_E4M3)
#elif EMULATED_OWN_90
	FA_SM90_OWN_DECODE(OWN_90_OF_TYPE)
#elif EMULATED_90 && EMULATED_CODES
	FA_SM90_CODES_DECODE(CODES_90_E4M3) FA_SM90_CODES_DECODE(CODES_90_INT8)
#elif EMULATED_90
	FA_SM90_PAGED_DECODE(DECODE_90_OF_TYPE) FA_SM90_PAGED_PIECES(PIECES_90_OF_TYPE)
#elif EMULATED_16
FA_SM80_PAGED_DECODE(DECODE_OF_TYPE)
FA_SM80_PAGED_FORWARD(FORWARD_OF_TYPE)
FA_SM80_PAGED_SPLIT(PIECES_OF_TYPE)
#elif EMULATED_32
FA_SM80_PAGED_DECODE_F32(DECODE_OF_TYPE)
FA_SM80_PAGED_DECODE_F32(PIECES_OF_TYPE)
#elif EMULATED_CODES
FA_SM80_QUANTISED_DECODE(CODES_E4M3)
FA_SM80_QUANTISED_DECODE(CODES_INT8)
#elif EMULATED_OWN_16
FA_SM80_OWN_DECODE(OWN_DECODE_OF_TYPE)
FA_SM80_OWN_FORWARD(OWN_FORWARDS_OF_TYPE)
#elif EMULATED_OWN
FA_SM80_OWN_DECODE_F32(OWN_DECODE_OF_TYPE)
FA_SM80_OWN_DECODE_E4M3(OWN_E4M3)
ENTRY(fa_sm80_own_plan, fa_cuda_own_plan)
ENTRY(fa_sm80_own_append, fa_cuda_own_append)
#else
ENTRY(fa_sm80_paged_append, fa_cuda_paged_append)
ENTRY(fa_sm80_paged_append_small, fa_cuda_paged_small_append)
ENTRY(fa_sm80_paged_read, fa_cuda_paged_append)
ENTRY(fa_sm80_paged_append_codes, fa_cuda_paged_append_quantised)
ENTRY(fa_sm80_paged_read_codes, fa_cuda_paged_append_quantised)
ENTRY(fa_sm80_paged_widen, fa_cuda_paged_widen)
ENTRY(fa_sm80_paged_merge, fa_cuda_paged_merge)
ENTRY(fa_sm80_paged_copy, fa_cuda_paged_copy)
ENTRY(fa_sm80_paged_move, fa_cuda_paged_moves)
ENTRY(fa_sm80_paged_own_copy, fa_cuda_paged_own_copy)
ENTRY(fa_sm80_paged_own_copy_codes, fa_cuda_paged_own_copy)
#endif
		{ nullptr, nullptr },
};
