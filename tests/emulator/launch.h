/* Launches on the emulator, for C and C++ (emulator.h). */
#pragma once

#include "kernels/cuda/common/args.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fa_emulated_kernel {
	const char *symbol;
	void (*run)(const void *args);
};

/* Parameters of kernels that load by TMA; a map holds the address of its struct fa_cuda_map. */
struct fa_emulated_mapped {
	const void *attention, *maps;
};

/* Seeds the random order of everything that follows. */
void fa_emulated_seed(uint64_t seed);
void fa_emulated_launch(uint32_t grid_x, uint32_t grid_y, uint32_t threads, uint32_t shared_bytes,
                        void (*run)(const void *args), const void *args);

/* Returns and resets the number of warps that recomputed rows. */
uint64_t fa_emulated_take_recomputed(void);

/* The kernels by module; a NULL symbol ends each table. */
extern const struct fa_emulated_kernel fa_emulated_f16[], fa_emulated_bf16[], fa_emulated_f32[],
	fa_emulated_tokens[], fa_emulated_codes[], fa_emulated_90_f16[], fa_emulated_90_bf16[],
	fa_emulated_90_codes[], fa_emulated_latent[], fa_emulated_prefill_f16[],
	fa_emulated_prefill_bf16[], fa_emulated_forward_f16[], fa_emulated_forward_bf16[],
	fa_emulated_own_f16[], fa_emulated_own_bf16[], fa_emulated_own[], fa_emulated_own_90_f16[],
	fa_emulated_own_90_bf16[], fa_emulated_own_90_e4m3[], fa_emulated_own_prefill_f16[],
	fa_emulated_own_prefill_bf16[], fa_emulated_forward_wide_f16[],
	fa_emulated_forward_wide_bf16[], fa_emulated_forward_wide_f32[], fa_emulated_masked_f16[],
	fa_emulated_masked_bf16[];

/* Completion of launches (completion.cu). The caller of a launch may let @done be filled with a
 * request, and checks it after the launch. */
void fa_emulated_completion_request(struct fa_cuda_done *done, uint64_t blocks, uint32_t parts);
void fa_emulated_completion_check(void);
/* Notes the launch's number of blocks, and the start of each block. */
void fa_emulated_completion_launch(uint64_t blocks);
void fa_emulated_completion_block(void);

#ifdef __cplusplus
}
#endif
