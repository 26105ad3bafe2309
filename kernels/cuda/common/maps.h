/*
 * Tensor maps of kernels that copy by TMA: opaque to all but the driver, and the kernel's second
 * parameter. Tensors have dims (dim, token, head, sequence); ragged ones have one sequence.
 */
#pragma once

#include <stdint.h>

enum fa_cuda_map_index {
	FA_CUDA_MAP_Q,
	FA_CUDA_MAP_K,
	FA_CUDA_MAP_V,
	FA_CUDA_MAPS,
};

struct fa_cuda_maps {
	struct {
		uint64_t words[16];
	} maps[FA_CUDA_MAPS];
} __attribute__((aligned(128)));
