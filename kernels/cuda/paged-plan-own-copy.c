/* Copies between the pool and a client's own pages: one launch for all layers. */
#include "kernels/cuda/paged-plan-private.h"

#include <string.h>

#define UNIT_MAX 16

static uint32_t n_tokens(const struct fa_paged_own_copy *p)
{
	return p->step->lengths[0] - p->step->lengths_before[0];
}

static size_t data_bytes(const struct fa_paged_own_copy *p)
{
	return fa_cuda_paged_align((size_t)p->n_layers * sizeof(void *));
}

static size_t scales_bytes(const struct fa_paged_own_copy *p)
{
	const struct fa_paged_cache *cache = p->cache;

	if (cache->store == FA_PAGED_PLAIN || !cache->k_scales)
		return 0;
	return fa_cuda_paged_align((size_t)p->n_layers * (size_t)cache->kv_heads * sizeof(float));
}

size_t fa_cuda_paged_own_copy_blob_bytes(const struct fa_paged_own_copy *p)
{
	return fa_cuda_paged_align((size_t)p->n_pages * sizeof(uint32_t)) + 2 * data_bytes(p) +
	       2 * scales_bytes(p);
}

static size_t add(char *blob, size_t *at, const void *from, size_t bytes)
{
	const size_t begin = *at;

	memcpy(blob + begin, from, bytes);
	*at += fa_cuda_paged_align(bytes);
	return begin;
}

/* The lowest set bit tells the alignment of a side's rows. */
static uint64_t alignment_of(const struct fa_paged_own_copy *p,
                             const struct fa_attention_tensor *tensor, void *const *data,
                             int32_t dim)
{
	const int64_t bytes = fa_cuda_paged_element_bytes(p->cache->dtype);
	uint64_t bits = (uint64_t)((tensor->stride_batch | tensor->stride_token |
	                            tensor->stride_head | dim) *
	                           bytes);

	for (int32_t i = 0; i < p->n_layers; i++)
		bits |= (uintptr_t)data[i];
	return bits;
}

static uint32_t unit_of(const struct fa_paged_own_copy *p)
{
	uint64_t bits = UNIT_MAX;

	if (p->k_data)
		bits |= alignment_of(p, &p->k, p->k_data, p->cache->head_dim);
	if (p->v_data)
		bits |= alignment_of(p, &p->v, p->v_data, p->cache->head_dim_v);
	return (uint32_t)(bits & -bits);
}

int fa_cuda_paged_plan_own_copy(const struct fa_cuda_chip *chip, const struct fa_paged_own_copy *p,
                                char *blob, struct fa_cuda_paged_plan *plan, char *text,
                                size_t text_bytes)
{
	const struct fa_paged_cache *cache = p->cache;
	const size_t scales = (size_t)p->n_layers * (size_t)cache->kv_heads;
	const size_t first = (size_t)p->layer * (size_t)cache->kv_heads;
	const uint32_t begin = p->step->lengths_before[0], end = p->step->lengths[0];
	const float *const v_scales = cache->v_offset ? cache->v_scales : cache->k_scales;
	const uint32_t sides = (p->k_data != NULL) + (p->v_data != NULL);
	size_t at = 0;

	plan->kernel = fa_cuda_paged_find(chip, FA_CUDA_PAGED_OWN_COPY, cache->store, cache->dtype,
	                                  0, 0, 0);
	if (!plan->kernel)
		return fa_cuda_paged_no_kernel(chip, "copies of a client's pages", text,
		                               text_bytes);
	if ((uint32_t)p->n_layers > 65535 / sides)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "n_layers %d is not supported: at most %u", p->n_layers,
		                          65535 / sides);
	plan->first_at = add(blob, &at, p->pages, (size_t)p->n_pages * sizeof(uint32_t));
	if (p->k_data)
		plan->k_data_at = add(blob, &at, p->k_data, (size_t)p->n_layers * sizeof(void *));
	if (p->v_data)
		plan->v_data_at = add(blob, &at, p->v_data, (size_t)p->n_layers * sizeof(void *));
	if (scales_bytes(p)) {
		plan->k_scales_at = add(blob, &at, cache->k_scales + first, scales * sizeof(float));
		plan->v_scales_at = add(blob, &at, v_scales + first, scales * sizeof(float));
	}
	plan->blob_bytes = at;
	plan->own_unit = unit_of(p);
	if (begin < end)
		plan->grid_x = (end - 1) / FA_CUDA_PAGED_STRIP - begin / FA_CUDA_PAGED_STRIP + 1;
	plan->grid_y = (uint32_t)p->n_layers * sides;
	return 0;
}

static struct fa_cuda_own_strides strides_of(const struct fa_attention_tensor *tensor,
                                             int64_t bytes)
{
	return (struct fa_cuda_own_strides){
		.page = tensor->stride_batch * bytes,
		.token = tensor->stride_token * bytes,
		.head = tensor->stride_head * bytes,
	};
}

void fa_cuda_paged_launch_own_copy(const struct fa_cuda_paged_plan *plan,
                                   const struct fa_paged_own_copy *p, uint64_t blob,
                                   struct fa_cuda_paged_own_copy *ret_args)
{
	const struct fa_paged_cache *cache = p->cache;
	const int64_t bytes = fa_cuda_paged_element_bytes(cache->dtype);

	*ret_args = (struct fa_cuda_paged_own_copy){
		.pages = fa_cuda_paged_pages_of(cache, p->layer, p->step->table),
		.layer_stride = cache->layer_stride,
		.own_pages = (const void *)(uintptr_t)(blob + plan->first_at),
		.k_strides = strides_of(&p->k, bytes),
		.v_strides = strides_of(&p->v, bytes),
		.first = p->step->lengths_before[0],
		.end = p->step->lengths_before[0] + n_tokens(p),
		.table_start = p->step->table_start[0],
		.own_page_tokens = (uint32_t)p->page_tokens,
		.offset = p->offset,
		.kv_heads = cache->kv_heads,
		.head_dim = cache->head_dim,
		.head_dim_v = cache->head_dim_v,
		.dtype = (int32_t)cache->dtype,
		.store = (int32_t)cache->store,
		.unit = plan->own_unit,
		.writes = plan->op == FA_PAGED_WRITE_OWN,
	};
	if (p->k_data)
		ret_args->k_data = (void *)(uintptr_t)(blob + plan->k_data_at);
	if (p->v_data)
		ret_args->v_data = (void *)(uintptr_t)(blob + plan->v_data_at);
	if (cache->store != FA_PAGED_PLAIN) {
		struct fa_cuda_paged_quantised quantised;

		fa_cuda_paged_quantised_of(cache, p->layer, &quantised);
		ret_args->k_scales_at = quantised.k_scales_at;
		ret_args->v_scales_at = quantised.v_scales_at;
	}
	if (scales_bytes(p)) {
		ret_args->k_scales = (const void *)(uintptr_t)(blob + plan->k_scales_at);
		ret_args->v_scales = (const void *)(uintptr_t)(blob + plan->v_scales_at);
	}
}
