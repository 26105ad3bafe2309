/* The dense kernels with masks as host code, for the type FA_TYPE, named FA_TYPE_NAME. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/launch.h"

#include "kernels/cuda/sm80/masked_rows.h"
#include "kernels/cuda/sm90/masked_rows.h"

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

#define SYMBOL_SM90(type, name, KIND, dim, dim_v, ...)                                             \
	fa_sm90_forward_##type##_d##dim##_v##dim_v##_##name
#define SYMBOL_SM90_EXPANDED(type, ...) SYMBOL_SM90(type, __VA_ARGS__)
#define ENTRY_SM90(symbol_)                                                                        \
	{ #symbol_, [](const void *data) {                                                         \
		 const struct fa_emulated_mapped *args = (const struct fa_emulated_mapped *)data;  \
		 symbol_(*(const struct fa_cuda_masked_attention *)args->attention,                \
	                 *(const struct fa_cuda_maps *)args->maps);                                \
	 } },
#define ENTRY_SM90_EXPANDED(symbol_) ENTRY_SM90(symbol_)
#define ROW_SM90(...) ENTRY_SM90_EXPANDED(SYMBOL_SM90_EXPANDED(FA_TYPE_NAME, __VA_ARGS__))

const struct fa_emulated_kernel JOIN(fa_emulated_masked_, FA_TYPE_NAME)[] = {
	FA_SM80_MASKED(ROW) FA_SM90_MASKED(ROW_SM90){ nullptr, nullptr }
};
