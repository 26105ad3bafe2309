/* The dense sm80 kernels with masks as host code, for the type FA_TYPE, named FA_TYPE_NAME. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/launch.h"

#include "kernels/cuda/sm80/masked_rows.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define SYMBOL(type, kind, KIND, dim, dim_v, ...) fa_sm80_forward_##type##_d##dim##_v##dim_v##_##kind
#define SYMBOL_EXPANDED(type, ...) SYMBOL(type, __VA_ARGS__)
#define ENTRY(symbol_)                                                                             \
	{ #symbol_, [](const void *data) {                                                         \
		 const struct fa_emulated_mapped *args = (const struct fa_emulated_mapped *)data;  \
		 symbol_(*(const struct fa_cuda_masked_attention *)args->attention);               \
	 } },
#define ENTRY_EXPANDED(symbol_) ENTRY(symbol_)
#define ROW(...) ENTRY_EXPANDED(SYMBOL_EXPANDED(FA_TYPE_NAME, __VA_ARGS__))

const struct fa_emulated_kernel JOIN(fa_emulated_masked_, FA_TYPE_NAME)[] = {
	FA_SM80_MASKED(ROW){ nullptr, nullptr }
};
