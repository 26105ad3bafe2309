/* Tensor maps. A map of this driver holds what it was made from, so that a launch can be compared with
 * the request that it was planned from. */
#include "tests/cuda-driver/tensor_map.h"

#include "kernels/cuda/sm90/kernels.h"
#include "tests/cuda-driver/driver.h"

#include <string.h>

/* What a tensor map contains in this driver: enough to compare it with the request. */
#define MAP_MAGIC 0x70616d2d64616601ull

struct map {
	uint64_t magic; /* MAP_MAGIC: this driver encoded the map */
	const void *data;
	uint64_t dims[4];
	uint64_t strides[3];
	uint32_t box[4];
};

_Static_assert(sizeof(struct map) <= sizeof(CUtensorMap), "it fits");

CUresult cuTensorMapEncodeTiled(CUtensorMap *ret_map, CUtensorMapDataType type, cuuint32_t rank,
                                void *address, const cuuint64_t *dims, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
	struct map *map = (struct map *)ret_map;

	FA_FAKE_ENTER(cuTensorMapEncodeTiled, FA_FAKE_INIT);
	if ((uintptr_t)ret_map % 64 || type != CU_TENSOR_MAP_DATA_TYPE_UINT16 || rank != 4 ||
	    (uintptr_t)address % 16 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
	    (swizzle != CU_TENSOR_MAP_SWIZZLE_128B && swizzle != CU_TENSOR_MAP_SWIZZLE_NONE) ||
	    promotion != CU_TENSOR_MAP_L2_PROMOTION_L2_128B ||
	    fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < 4; ++i)
		if (!dims[i] || dims[i] > 1ull << 32 || !box[i] || box[i] > 256 ||
		    element_strides[i] != 1 || (i < 3 && (strides[i] % 16 || strides[i] >> 40)))
			return CUDA_ERROR_INVALID_VALUE;
	if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] * 2 > 128)
		return CUDA_ERROR_INVALID_VALUE;
	memset(map, 0, sizeof(*ret_map));
	map->magic = MAP_MAGIC;
	map->data = address;
	memcpy(map->dims, dims, sizeof(map->dims));
	memcpy(map->strides, strides, sizeof(map->strides));
	memcpy(map->box, box, sizeof(map->box));
	return CUDA_SUCCESS;
}

/* Returns whether @map is of @tensor, in boxes of @rows of @box_heads; strides of dims of size 1 do not
 * matter. */
static bool map_is_of(const void *where, const struct fa_cuda_tensor *tensor, int32_t rows,
                      int32_t box_heads, int64_t dim, int64_t tokens, int64_t heads, int64_t batch)
{
	/* The box must be of this shape, as the kernel waits for its bytes. */
	const uint32_t box[] = { 64, (uint32_t)rows, (uint32_t)box_heads, 1 };
	const uint64_t dims[] = { (uint64_t)dim, (uint64_t)tokens, (uint64_t)heads,
		                  (uint64_t)batch };
	const int64_t strides[] = { tensor->stride_token, tensor->stride_head,
		                    tensor->stride_batch };
	const struct map *map = where;

	if (map->magic != MAP_MAGIC || map->data != tensor->data ||
	    memcmp(map->dims, dims, sizeof(dims)) || memcmp(map->box, box, sizeof(box)))
		return false;
	for (int i = 0; i < 3; ++i)
		if (dims[i + 1] > 1 && map->strides[i] != (uint64_t)strides[i])
			return false;
	return true;
}

const char *fa_fake_maps_wrong(const struct fa_cuda_kernel *kernel,
                               const struct fa_cuda_attention *args,
                               const struct fa_cuda_maps *maps)
{
	const bool ragged = args->cu_seqlens_q;
	const int64_t batch = ragged ? 1 : args->triples / args->slices / args->heads;
	const int64_t n_q =
		ragged ? (int64_t)((const struct map *)&maps->maps[FA_CUDA_MAP_Q])->dims[1]
		       : args->seqlen_q;
	const int64_t n_k =
		ragged ? (int64_t)((const struct map *)&maps->maps[FA_CUDA_MAP_K])->dims[1]
		       : args->seqlen_k;
	const int64_t kv_heads = args->heads / args->group;
	const int32_t keys = kernel->kind == FA_CUDA_MASKED ? FA_SM90_HALF_KEYS : kernel->keys;
	int32_t rows_q = kernel->rows_q;

	if (fa_cuda_kernel_is_packed(kernel)) {
		const struct fa_cuda_packed_attention *packed = (const void *)args;

		rows_q = 1 << packed->pack_shift;
	}
	if (!map_is_of(&maps->maps[FA_CUDA_MAP_Q], &args->q, rows_q, kernel->rows_q / rows_q,
	               args->head_dim, n_q, args->heads, batch))
		return "the map of q";
	if (!map_is_of(&maps->maps[FA_CUDA_MAP_K], &args->k, keys, 1, args->head_dim, n_k, kv_heads,
	               batch))
		return "the map of k";
	if (!map_is_of(&maps->maps[FA_CUDA_MAP_V], &args->v, keys, 1, args->head_dim_v, n_k,
	               kv_heads, batch))
		return "the map of v";
	return NULL;
}

bool fa_fake_maps_fit(const struct fa_cuda_maps *maps, int64_t n_q, int64_t n_k)
{
	const int64_t tokens[] = {
		[FA_CUDA_MAP_Q] = n_q, [FA_CUDA_MAP_K] = n_k, [FA_CUDA_MAP_V] = n_k
	};

	for (int i = 0; i < FA_CUDA_MAPS; ++i)
		if (((const struct map *)&maps->maps[i])->dims[1] != (uint64_t)tokens[i])
			return false;
	return true;
}

const char *fa_fake_paged_maps_wrong(const struct fa_cuda_paged_kernel *kernel,
                                     const struct fa_cuda_paged_attention *args,
                                     const struct fa_cuda_maps *maps)
{
	const struct map *q = (const void *)&maps->maps[FA_CUDA_MAP_Q];
	const int64_t kv_heads = args->attention.heads / args->attention.group;
	const int32_t page = (int32_t)args->pages.page_strips * 16;

	const int32_t rows_q = kernel->kind == FA_CUDA_PAGED_PACKED ? 1 << args->pack_shift
	                                                            : kernel->rows_q;

	const bool latent = kernel->kind == FA_CUDA_PAGED_LATENT;
	const int32_t keys = latent ? FA_CUDA_PAGED_TILE : kernel->keys;

	if (!latent &&
	    !map_is_of(q, &args->attention.q, rows_q, kernel->rows_q / rows_q,
	               args->attention.head_dim, (int64_t)q->dims[1], args->attention.heads, 1))
		return "the map of q";
	if (latent && !kernel->maps) /* it loads codes */
		return NULL;
	if (args->box_keys <= 0 || page % args->box_keys || keys % args->box_keys)
		return "boxes";
	for (int i = FA_CUDA_MAP_K; i <= (latent ? FA_CUDA_MAP_K : FA_CUDA_MAP_V); ++i) {
		const bool is_k = i == FA_CUDA_MAP_K;
		const uint32_t row = is_k ? args->pages.k_row : args->pages.v_row;
		const struct fa_cuda_tensor tensor = {
			.data = is_k ? args->pages.k : args->pages.v,
			.stride_token = row,
			.stride_head = (int64_t)row * page,
			.stride_batch = 256,
		};

		if (!map_is_of(&maps->maps[i], &tensor, args->box_keys, 1,
		               is_k ? args->attention.head_dim : args->attention.head_dim_v, page,
		               kv_heads, INT32_MAX))
			return "a map of pages";
	}
	return NULL;
}
