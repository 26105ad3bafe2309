/* Launches on the emulator, for C and C++ (hopper.h). */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel by its symbol: @run is one thread of it, @args its two parameters. */
struct fa_hopper_kernel {
	const char *symbol;
	void (*run)(const void *args);
};

struct fa_hopper_args {
	const void *attention, *maps;
};

/* Draws the order of all that follows. */
void fa_hopper_seed(uint64_t seed);
/* Runs every thread of every block, one block after the other. */
void fa_hopper_launch(uint32_t grid, uint32_t threads, uint32_t shared_bytes,
                      void (*run)(const void *args), const void *args);

/* How many warps' lanes went through their rows again since this was asked. */
uint64_t fa_hopper_take_redone(void);

/* The kernels, by type; the last has no symbol. */
extern const struct fa_hopper_kernel fa_hopper_f16[], fa_hopper_bf16[];

#ifdef __cplusplus
}
#endif
