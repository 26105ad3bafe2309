/*
 * The CUDA backend's maps of tensors, which kernels that copy by TMA take. All of it is
 * the engine thread's.
 */
#include "daemon/backend/cuda/backend.h"

#include <string.h>

#define WORDS (sizeof(struct fa_cuda_map) / sizeof(uint64_t))

/* No padding: maps are compared and hashed as bytes. */
_Static_assert(sizeof(struct fa_cuda_map) ==
                       sizeof(void *) + 7 * sizeof(uint64_t) + 4 * sizeof(uint32_t),
               "all of it is its fields");
_Static_assert(sizeof(CUtensorMap) == sizeof(((struct fa_cuda_maps *)0)->maps[0]), "one map");
_Static_assert((FA_CUDA_MAP_SETS & (FA_CUDA_MAP_SETS - 1)) == 0, "a power of two");

static unsigned int set_of(const struct fa_cuda_map *map)
{
	uint64_t words[WORDS], hash = 0;

	memcpy(words, map, sizeof(words));
	for (size_t i = 0; i < WORDS; ++i) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ull;
		hash ^= hash >> 32;
	}
	return (unsigned int)(hash & (FA_CUDA_MAP_SETS - 1));
}

static CUresult make(struct fa_device *device, const struct fa_cuda_map *map, void *ret_map)
{
	const unsigned int set = set_of(map);
	struct fa_cuda_known_map *known = device->maps.sets[set];
	CUresult result;

	for (int i = 0; i < FA_CUDA_MAP_WAYS; ++i)
		if (!memcmp(&known[i].of, map, sizeof(*map))) {
			memcpy(ret_map, known[i].words, sizeof(known[i].words));
			return CUDA_SUCCESS;
		}
	result = fa_cudriver_map(&device->driver, map->data, map->dims, map->strides, map->box,
	                         ret_map);
	if (result != CUDA_SUCCESS)
		return result;
	known += device->maps.oldest[set]++ % FA_CUDA_MAP_WAYS;
	known->of = *map;
	memcpy(known->words, ret_map, sizeof(known->words));
	return CUDA_SUCCESS;
}

CUresult fa_cuda_maps_make(struct fa_device *device, const struct fa_cuda_map *maps, uint32_t n,
                           struct fa_cuda_maps *ret_maps)
{
	CUresult result = CUDA_SUCCESS;

	for (uint32_t i = 0; i < n && result == CUDA_SUCCESS; ++i)
		result = make(device, &maps[i], &ret_maps->maps[i]);
	return result;
}
