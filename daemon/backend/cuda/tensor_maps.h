/* Cache of encoded tensor maps (for TMA). They never expire: a map only says where a tensor lies.
 * Engine thread. */
#pragma once

#include "common/cudriver.h"
#include "kernels/cuda/plan.h"

#define FA_CUDA_MAP_SETS 64
#define FA_CUDA_MAP_WAYS 4

struct fa_cuda_tensor_map {
	struct fa_cuda_map key; /* data NULL: the entry is free */
	/* A CUtensorMap would need more alignment. */
	uint64_t words[sizeof(CUtensorMap) / sizeof(uint64_t)];
};

struct fa_cuda_tensor_map_cache {
	struct fa_cuda_tensor_map sets[FA_CUDA_MAP_SETS][FA_CUDA_MAP_WAYS];
	uint8_t next_way[FA_CUDA_MAP_SETS]; /* in each set, to replace next */
};

/* @n may be 0. */
CUresult fa_cuda_tensor_maps_encode(struct fa_cuda_tensor_map_cache *cache,
                                    const struct fa_cudriver *driver,
                                    const struct fa_cuda_map *maps, uint32_t n,
                                    struct fa_cuda_maps *ret_maps);
