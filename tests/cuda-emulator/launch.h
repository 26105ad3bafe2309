/* Launches on the emulator, for C and C++ (emulator.h). */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel by its symbol: @run is one thread of it. */
struct fa_emulated_kernel {
	const char *symbol;
	void (*run)(const void *args);
};

/* Runs every thread of every block; @random draws the order of the blocks. */
void fa_emulated_launch(uint32_t grid_x, uint32_t grid_y, uint32_t threads, uint32_t shared_bytes,
                        void (*run)(const void *args), const void *args,
                        uint64_t (*random)(uint64_t below));

/* The kernels over pages, by module; the last has no symbol. */
extern const struct fa_emulated_kernel fa_emulated_f16[], fa_emulated_bf16[], fa_emulated_f32[],
	fa_emulated_tokens[];

#ifdef __cplusplus
}
#endif
