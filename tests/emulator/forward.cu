/* The sm90 forward kernels as host code, for the type FA_TYPE, named FA_TYPE_NAME. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/launch.h"

#include "kernels/cuda/sm90/forward_rows.h"

#define ROW(type, name, KIND, dim, dim_v, ...)                                                     \
	static void run_##name##_##dim##_##dim_v(const void *data)                                 \
	{                                                                                          \
		const struct fa_emulated_mapped *args = (const struct fa_emulated_mapped *)data;           \
                                                                                                   \
		fa_sm90_forward_##type##_d##dim##_v##dim_v##_##name(                               \
			*(const FA_SOURCE_##KIND::ARGS *)args->attention,                        \
			*(const struct fa_cuda_maps *)args->maps);                                 \
	}
#define ROW_EXPANDED(type, ...) ROW(type, __VA_ARGS__)
#define ROW_OF_TYPE(...) ROW_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)
FA_SM90_FORWARD(ROW_OF_TYPE)

#define ENTRY(type, name, KIND, dim, dim_v, ...)                                                   \
	{ "fa_sm90_forward_" #type "_d" #dim "_v" #dim_v "_" #name, run_##name##_##dim##_##dim_v },
#define ENTRY_EXPANDED(type, ...) ENTRY(type, __VA_ARGS__)
#define ENTRY_OF_TYPE(...) ENTRY_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)
#define JOIN(a, b) a##b
#define TABLE(type) JOIN(fa_emulated_forward_, type)

extern "C" const struct fa_emulated_kernel TABLE(FA_TYPE_NAME)[] = { FA_SM90_FORWARD(ENTRY_OF_TYPE){
	NULL, NULL } };
