/* The sm90 prefill kernels as host code, for the type FA_TYPE, named FA_TYPE_NAME. EMULATED_OWN:
 * those over a client's own pages. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/launch.h"

#if EMULATED_OWN
#include "kernels/cuda/sm90/own_prefill_rows.h"
#define ROWS FA_SM90_OWN_PREFILL
#define PREFIX own
#define ARGS fa_cuda_paged_attention_own
#define TABLE_PREFIX fa_emulated_own_prefill_
#else
#include "kernels/cuda/sm90/prefill_rows.h"
#define ROWS FA_SM90_PREFILL
#define PREFIX paged
#define ARGS fa_cuda_paged_attention
#define TABLE_PREFIX fa_emulated_prefill_
#endif

#define ROW(prefix, type, name, KIND, dim, dim_v, ...)                                             \
	static void run_##name##_##dim##_##dim_v(const void *data)                                 \
	{                                                                                          \
		const struct fa_emulated_mapped *args = (const struct fa_emulated_mapped *)data;           \
                                                                                                   \
		fa_sm90_##prefix##_prefill_##type##_d##dim##_v##dim_v##_##name(                    \
			*(const struct ARGS *)args->attention,                                     \
			*(const struct fa_cuda_maps *)args->maps);                                 \
	}
#define ROW_EXPANDED(prefix, type, ...) ROW(prefix, type, __VA_ARGS__)
#define ROW_OF_TYPE(...) ROW_EXPANDED(PREFIX, FA_TYPE_NAME, __VA_ARGS__)
ROWS(ROW_OF_TYPE)

#define ENTRY(prefix, type, name, KIND, dim, dim_v, ...)                                           \
	{ "fa_sm90_" #prefix "_prefill_" #type "_d" #dim "_v" #dim_v "_" #name,                    \
	  run_##name##_##dim##_##dim_v },
#define ENTRY_EXPANDED(prefix, type, ...) ENTRY(prefix, type, __VA_ARGS__)
#define ENTRY_OF_TYPE(...) ENTRY_EXPANDED(PREFIX, FA_TYPE_NAME, __VA_ARGS__)
#define JOIN(a, b) a##b
#define JOINED(a, b) JOIN(a, b)

extern "C" const struct fa_emulated_kernel JOINED(TABLE_PREFIX, FA_TYPE_NAME)[] = {
	ROWS(ENTRY_OF_TYPE){ NULL, NULL }
};
