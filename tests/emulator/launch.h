/* Launches on the emulator, for C and C++ (emulator.h). */
#pragma once

#include "kernels/cuda/common/args.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel by its symbol: @run is one thread of it, @args its parameters. */
struct fa_emulated_kernel {
	const char *symbol;
	void (*run)(const void *args);
};

/* The parameters of kernels that load by TMA; a map is where its struct fa_cuda_map stands. */
struct fa_emulated_mapped {
	const void *attention, *maps;
};

/* Draws the order of all that follows. */
void fa_emulated_seed(uint64_t seed);
/* Runs every thread of every block, one block after the other. */
void fa_emulated_launch(uint32_t grid_x, uint32_t grid_y, uint32_t threads, uint32_t shared_bytes,
                        void (*run)(const void *args), const void *args);

/* How many warps' lanes went through their rows again since this was asked. */
uint64_t fa_emulated_take_redone(void);

/* The kernels, by module; the last of each has no symbol. */
extern const struct fa_emulated_kernel fa_emulated_f16[], fa_emulated_bf16[], fa_emulated_f32[],
	fa_emulated_tokens[], fa_emulated_codes[], fa_emulated_90_f16[], fa_emulated_90_bf16[],
	fa_emulated_90_codes[], fa_emulated_prefill_f16[], fa_emulated_prefill_bf16[],
	fa_emulated_forward_f16[], fa_emulated_forward_bf16[];

/* The end of launches (end.cu). The caller of a launch that may be asked to tell its end
 * fills @done, and has it checked after the launch. */
void fa_emulated_end_ask(struct fa_cuda_done *done, uint64_t blocks, uint32_t parts);
void fa_emulated_end_check(void);
/* Whoever runs the launch says how many blocks it has, and when each begins. */
void fa_emulated_end_launch(uint64_t blocks);
void fa_emulated_end_block(void);

#ifdef __cplusplus
}
#endif
