#include "daemon/backend/cuda/tensor_maps.h"

#include <string.h>

#define WORDS (sizeof(struct fa_cuda_map) / sizeof(uint64_t))

/* Keys are compared and hashed as bytes, so they have no padding. */
_Static_assert(sizeof(struct fa_cuda_map) ==
                       sizeof(void *) + 8 * sizeof(uint64_t) + 4 * sizeof(uint32_t),
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

static CUresult encode(struct fa_cuda_tensor_map_cache *cache, const struct fa_cudriver *driver,
                       const struct fa_cuda_map *map, void *ret_map)
{
	const unsigned int set = set_of(map);
	struct fa_cuda_tensor_map *entry = cache->sets[set];
	CUresult result;

	for (int i = 0; i < FA_CUDA_MAP_WAYS; ++i)
		if (!memcmp(&entry[i].key, map, sizeof(*map))) {
			memcpy(ret_map, entry[i].words, sizeof(entry[i].words));
			return CUDA_SUCCESS;
		}
	if (map->in_rows)
		result = fa_cudriver_encode_rows_map(driver, map->data, map->dims, map->strides,
		                                     map->box, ret_map);
	else
		result = fa_cudriver_encode_tensor_map(driver, map->data, map->dims, map->strides,
		                                       map->box, ret_map);
	if (result != CUDA_SUCCESS)
		return result;
	entry += cache->next_way[set]++ % FA_CUDA_MAP_WAYS;
	entry->key = *map;
	memcpy(entry->words, ret_map, sizeof(entry->words));
	return CUDA_SUCCESS;
}

CUresult fa_cuda_tensor_maps_encode(struct fa_cuda_tensor_map_cache *cache,
                                    const struct fa_cudriver *driver,
                                    const struct fa_cuda_map *maps, uint32_t n,
                                    struct fa_cuda_maps *ret_maps)
{
	CUresult result = CUDA_SUCCESS;

	for (uint32_t i = 0; i < n && result == CUDA_SUCCESS; ++i)
		result = encode(cache, driver, &maps[i], &ret_maps->maps[i]);
	return result;
}
