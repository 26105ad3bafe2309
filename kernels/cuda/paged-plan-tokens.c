/*
 * Append, read, merge, copy, clear and move, over pages.
 */
#include "kernels/cuda/paged-plan-private.h"

#include <math.h>
#include <string.h>

/* ---- append and read */

int fa_cuda_paged_plan_append(const struct fa_cuda_chip *chip, const struct fa_paged_append *p,
                              char *blob, struct fa_cuda_paged_plan *plan, char *text,
                              size_t text_bytes)
{
	struct fa_cuda_paged_item *items = (void *)blob;
	const struct fa_paged_step *step = p->step;
	const struct fa_paged_rotary *rotary = &p->rotary;

	plan->kernel = fa_cuda_paged_find(
		chip, plan->op == FA_PAGED_READ ? FA_CUDA_PAGED_READ : FA_CUDA_PAGED_APPEND,
		p->cache->store, p->cache->dtype, 0, 0, 0);
	if (!plan->kernel)
		return fa_cuda_paged_no_kernel(chip, "tokens in pages", text, text_bytes);
	if (plan->op == FA_PAGED_APPEND && rotary->dim > FA_CUDA_ROTARY_DIM_MAX)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "rotary dim %d is not supported on a GPU: at most %d",
		                          rotary->dim, FA_CUDA_ROTARY_DIM_MAX);
	for (int32_t b = 0; b < step->batch; b++)
		fa_cuda_paged_item_of(step, b, &items[b]);
	plan->grid_x = fa_cuda_paged_ceil_div(step->cu_new[step->batch], FA_CUDA_APPEND_TOKENS);
	plan->grid_y = 1;
	plan->blob_bytes = fa_cuda_paged_align((size_t)step->batch * sizeof(*items));
	if (step->batch <= FA_CUDA_PAGED_INLINE_ITEMS)
		plan->kernel = fa_cuda_paged_inline_table(plan->kernel, step, plan);
	if (plan->kernel->small) {
		memcpy(plan->first_items, items, (size_t)step->batch * sizeof(*items));
		plan->blob_bytes = 0;
	}
	if (plan->op == FA_PAGED_APPEND && !rotary->cos)
		for (int32_t i = 0; i < rotary->dim / 2; i++)
			plan->turns[i] = rotary->scale / (2 * M_PI) *
			                 pow(rotary->base, -2.0 * i / rotary->dim);
	return 0;
}

void fa_cuda_paged_launch_append(const struct fa_cuda_paged_plan *plan,
                                 const struct fa_paged_append *p, uint64_t blob,
                                 struct fa_cuda_paged_launch *launch)
{
	const struct fa_paged_cache *cache = p->cache;
	const int64_t bytes = fa_cuda_paged_element_bytes(cache->dtype);
	const struct fa_paged_rotary *rotary = &p->rotary;
	const bool read = plan->op == FA_PAGED_READ;
	struct fa_cuda_paged_append args = {
		.pages = fa_cuda_paged_pages_of(cache, p->layer, p->step->table),
		.items = (const void *)(uintptr_t)blob,
		.batch = p->step->batch,
		.tokens = (int32_t)p->step->cu_new[p->step->batch],
		.kv_heads = cache->kv_heads,
		.dtype = (int32_t)cache->dtype,
		.head_dim = cache->head_dim,
		.head_dim_v = cache->head_dim_v,
		.k = fa_cuda_paged_tensor_of(&p->k, bytes),
		.v = fa_cuda_paged_tensor_of(&p->v, bytes),
		.aligned = fa_cuda_paged_tensor_aligned(&p->k, bytes) &&
		           fa_cuda_paged_tensor_aligned(&p->v, bytes),
	};

	if (!read && cache->v_offset == 0)
		args.v.data = NULL;
	if (!read && p->heads > 0) {
		args.heads = p->heads;
		args.q = fa_cuda_paged_tensor_of(&p->q, bytes);
		args.q_out = fa_cuda_paged_tensor_of(&p->q_out, bytes);
		args.aligned = args.aligned && fa_cuda_paged_tensor_aligned(&p->q, bytes) &&
		               fa_cuda_paged_tensor_aligned(&p->q_out, bytes);
	}
	/* Nothing to do if Q stays in place without rotation. */
	if (!read && rotary->dim == 0 && p->q.data == p->q_out.data)
		args.q.data = NULL;
	if (!read && rotary->dim > 0) {
		args.rotary.half = rotary->dim / 2;
		args.rotary.first = rotary->first;
		args.rotary.interleaved = rotary->interleaved;
		args.rotary.cos = rotary->cos;
		args.rotary.sin = rotary->sin;
		args.rotary.table_positions = rotary->table_positions;
		args.rotary.positions = rotary->positions;
		memcpy(args.rotary.turns, plan->turns, sizeof(args.rotary.turns));
	}
	launch->args.append = args;
	if (cache->store != FA_PAGED_PLAIN)
		fa_cuda_paged_quantised_of(cache, p->layer,
		                           &launch->args.append_quantised.quantised);
	if (plan->kernel->small) {
		struct fa_cuda_paged_small_append *small = &launch->args.small_append;

		memcpy(small->items, plan->first_items,
		       (size_t)p->step->batch * sizeof(small->items[0]));
		memcpy(small->table, plan->table, plan->inline_table * sizeof(small->table[0]));
	}
}

/* ---- merge, pages, moves */

int fa_cuda_paged_plan_merge(const struct fa_cuda_chip *chip, const struct fa_paged_merge *p,
                             struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const uint64_t threads = (uint64_t)p->tokens * (uint64_t)p->heads * 8;

	plan->kernel = fa_cuda_paged_find(chip, FA_CUDA_PAGED_MERGE, FA_PAGED_PLAIN, p->dtype, 0, 0,
	                                  0);
	if (!plan->kernel)
		return fa_cuda_paged_no_kernel(chip, "merging results", text, text_bytes);
	if (threads > (uint64_t)INT32_MAX * FA_CUDA_TOKENS_THREADS)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "%lld tokens of %d heads are too many to merge",
		                          (long long)p->tokens, p->heads);
	plan->grid_x = fa_cuda_paged_ceil_div(threads, FA_CUDA_TOKENS_THREADS);
	plan->grid_y = 1;
	return 0;
}

static struct fa_cuda_paged_partial partial_of(const struct fa_paged_partial *partial,
                                               int64_t bytes)
{
	return (struct fa_cuda_paged_partial){
		.out = fa_cuda_paged_tensor_of(&partial->out, bytes),
		.lse = partial->lse,
		.lse_stride_token = partial->lse_stride_token,
		.lse_stride_head = partial->lse_stride_head,
	};
}

void fa_cuda_paged_launch_merge(const struct fa_paged_merge *p,
                                struct fa_cuda_paged_merge *ret_args)
{
	const int64_t bytes = fa_cuda_paged_element_bytes(p->dtype);

	*ret_args = (struct fa_cuda_paged_merge){
		.a = partial_of(&p->a, bytes),
		.b = partial_of(&p->b, bytes),
		.result = partial_of(&p->result, bytes),
		.rows = p->tokens * p->heads,
		.heads = p->heads,
		.head_dim_v = p->head_dim_v,
		.dtype = (int32_t)p->dtype,
		.aligned = fa_cuda_paged_tensor_aligned(&p->a.out, bytes) &&
		           fa_cuda_paged_tensor_aligned(&p->b.out, bytes) &&
		           fa_cuda_paged_tensor_aligned(&p->result.out, bytes),
	};
}

int fa_cuda_paged_plan_pages(const struct fa_cuda_chip *chip, const struct fa_paged_pages *p,
                             char *blob, struct fa_cuda_paged_plan *plan, char *text,
                             size_t text_bytes)
{
	const size_t bytes = (size_t)p->count * sizeof(uint32_t);

	plan->kernel = fa_cuda_paged_find(chip, FA_CUDA_PAGED_COPY, FA_PAGED_PLAIN, p->cache->dtype,
	                                  0, 0, 0);
	if (!plan->kernel)
		return fa_cuda_paged_no_kernel(chip, "copies of pages", text, text_bytes);
	if (p->cache->layers > 65535)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "layers %d are not supported: at most 65535",
		                          p->cache->layers);
	memcpy(blob, p->to, bytes);
	plan->second_at = fa_cuda_paged_align(bytes);
	plan->blob_bytes = fa_cuda_paged_align(bytes);
	if (plan->op == FA_PAGED_COPY) {
		memcpy(blob + plan->second_at, p->from, bytes);
		plan->blob_bytes = 2 * fa_cuda_paged_align(bytes);
	}
	plan->grid_x = (uint32_t)p->count;
	plan->grid_y = (uint32_t)p->cache->layers;
	return 0;
}

void fa_cuda_paged_launch_pages(const struct fa_cuda_paged_plan *plan,
                                const struct fa_paged_pages *p, uint64_t blob,
                                struct fa_cuda_paged_copy *ret_args)
{
	struct fa_cuda_paged_copy args = {
		.pool = p->cache->pool,
		.layer_stride = p->cache->layer_stride,
		.v_offset = p->cache->v_offset,
		.to = (const void *)(uintptr_t)blob,
	};

	fa_paged_page_bytes(p->cache, &args.k_bytes, &args.v_bytes);
	if (plan->op == FA_PAGED_COPY)
		args.from = (const void *)(uintptr_t)(blob + plan->second_at);
	*ret_args = args;
}

int fa_cuda_paged_plan_move(const struct fa_cuda_chip *chip, const struct fa_paged_move *p,
                            char *blob, struct fa_cuda_paged_plan *plan, char *text,
                            size_t text_bytes)
{
	struct fa_cuda_paged_moved *moved = (void *)blob;
	const size_t from_bytes = (size_t)p->cu_moves[p->batch] * sizeof(uint32_t);

	plan->kernel = fa_cuda_paged_find(chip, FA_CUDA_PAGED_MOVE, FA_PAGED_PLAIN, p->cache->dtype,
	                                  0, 0, 0);
	if (!plan->kernel)
		return fa_cuda_paged_no_kernel(chip, "moves of tokens", text, text_bytes);
	if (p->cache->layers > 65535)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "layers %d are not supported: at most 65535",
		                          p->cache->layers);
	for (int32_t b = 0; b < p->batch; b++) {
		if (p->cu_moves[b + 1] == p->cu_moves[b])
			continue;
		moved[plan->grid_x++] = (struct fa_cuda_paged_moved){
			.begin = p->cu_moves[b],
			.end = p->cu_moves[b + 1],
			.to = p->to[b],
			.table_start = p->table_start[b],
		};
	}
	plan->second_at = fa_cuda_paged_align(plan->grid_x * sizeof(*moved));
	memcpy(blob + plan->second_at, p->from, from_bytes);
	plan->blob_bytes = plan->second_at + fa_cuda_paged_align(from_bytes);
	plan->grid_y = (uint32_t)p->cache->layers;
	return 0;
}

void fa_cuda_paged_launch_move(const struct fa_cuda_paged_plan *plan, const struct fa_paged_move *p,
                               uint64_t blob, struct fa_cuda_paged_moves *ret_args)
{
	const int64_t bytes = fa_cuda_paged_stored_bytes(p->cache);

	*ret_args = (struct fa_cuda_paged_moves){
		.pages = fa_cuda_paged_pages_of(p->cache, 0, p->table),
		.layer_stride = p->cache->layer_stride,
		.kv_heads = p->cache->kv_heads,
		.page_tokens = p->cache->page_tokens,
		.k_bytes = (uint32_t)(p->cache->head_dim * bytes),
		.v_bytes = p->cache->v_offset ? (uint32_t)(p->cache->head_dim_v * bytes) : 0,
		.sequences = (const void *)(uintptr_t)blob,
		.from = (const void *)(uintptr_t)(blob + plan->second_at),
	};
	if (p->cache->store != FA_PAGED_PLAIN && !p->cache->k_scales) {
		struct fa_cuda_paged_quantised quantised;

		fa_cuda_paged_quantised_of(p->cache, 0, &quantised);
		ret_args->k_scales_at = quantised.k_scales_at;
		ret_args->v_scales_at = quantised.v_scales_at;
	}
}
