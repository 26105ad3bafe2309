/* The dense sm80 kernels for head dims above 256 as host code, for the type FA_TYPE, named
 * FA_TYPE_NAME. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/launch.h"

#include "kernels/cuda/sm80/kernels.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#if EMULATED_32
#undef FA_SM80_FORWARD_F32
#define FA_SM80_FORWARD_F32 FA_SM80_FORWARD_F32_WIDE
#include "kernels/cuda/sm80/forward_f32.cu"
#define ROWS FA_SM80_FORWARD_F32_WIDE
#define SYMBOL(type, dim, dim_v, ...) fa_sm80_forward_##type##_d##dim##_v##dim_v##_rich
#else
#undef FA_SM80_FORWARD
#define FA_SM80_FORWARD FA_SM80_FORWARD_WIDE
#include "kernels/cuda/sm80/forward_rows.h"
#define ROWS FA_SM80_FORWARD_WIDE
#define SYMBOL(type, kind, KIND, dim, dim_v, ...) fa_sm80_forward_##type##_d##dim##_v##dim_v##_##kind
#endif
#define SYMBOL_EXPANDED(type, ...) SYMBOL(type, __VA_ARGS__)
#define ENTRY(symbol_)                                                                             \
	{ #symbol_, [](const void *data) {                                                         \
		 const struct fa_emulated_mapped *args = (const struct fa_emulated_mapped *)data;  \
		 symbol_(*(const struct fa_cuda_attention *)args->attention);                      \
	 } },
#define ENTRY_EXPANDED(symbol_) ENTRY(symbol_)
#define ROW(...) ENTRY_EXPANDED(SYMBOL_EXPANDED(FA_TYPE_NAME, __VA_ARGS__))

const struct fa_emulated_kernel JOIN(fa_emulated_forward_wide_, FA_TYPE_NAME)[] = {
	ROWS(ROW){ nullptr, nullptr }
};
