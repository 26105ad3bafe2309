#include "kernels/cuda/paged-plan-private.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(FA_PAGED_PAGE_TOKENS_MAX / FA_CUDA_PAGED_STRIP <= 256,
               "the number of a strip in its page is a byte (sm90/paged_load.h)");

#define ARGS_BYTES_MAX 4096

/* A 64-byte group of the arguments begins at @member (args.h). */
#define FETCHED(member) (offsetof(struct fa_cuda_paged_attention, member) % 64 == 48)

_Static_assert(FETCHED(attention.done.counter) && FETCHED(attention.k) &&
                       FETCHED(attention.alibi_slopes) && FETCHED(pages) && FETCHED(kv_heads) &&
                       FETCHED(first_tiles),
               "what is needed together is fetched together");
_Static_assert(sizeof(struct fa_cuda_paged_small_attention) <= ARGS_BYTES_MAX, "it is taken");
_Static_assert(sizeof(struct fa_cuda_paged_attention_quantised) <= ARGS_BYTES_MAX, "it is taken");
_Static_assert(sizeof(struct fa_cuda_paged_small_attention_quantised) <= ARGS_BYTES_MAX,
               "it is taken");
_Static_assert(sizeof(struct fa_cuda_paged_append_quantised) <= ARGS_BYTES_MAX, "it is taken");
_Static_assert(sizeof(struct fa_cuda_paged_attention_own) <= ARGS_BYTES_MAX, "it is taken");
_Static_assert(FA_STORE_E4M3 == (int)FA_PAGED_E4M3 && FA_STORE_INT8 == (int)FA_PAGED_INT8 &&
                       FA_STORE_DTYPE_BF16 == (int)FA_ATTENTION_BF16,
               "kernels know them by these numbers");
_Static_assert(sizeof(struct fa_cuda_paged_small_append) <= ARGS_BYTES_MAX, "it is taken");

int fa_cuda_paged_fail(char *text, size_t text_bytes, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(text, text_bytes, format, list);
	va_end(list);
	return -ENOTSUP;
}

bool fa_cuda_paged_tensor_aligned(const struct fa_attention_tensor *tensor, int64_t bytes)
{
	return !tensor->data ||
	       ((uintptr_t)tensor->data % 16 == 0 && tensor->stride_token * bytes % 16 == 0 &&
	        tensor->stride_head * bytes % 16 == 0 && tensor->stride_token >= 0 &&
	        tensor->stride_token * bytes < 1 << 22);
}

struct fa_cuda_tensor fa_cuda_paged_tensor_of(const struct fa_attention_tensor *tensor,
                                              int64_t bytes)
{
	return (struct fa_cuda_tensor){
		.data = tensor->data,
		.stride_token = tensor->stride_token * bytes,
		.stride_head = tensor->stride_head * bytes,
	};
}

struct fa_cuda_pages fa_cuda_paged_pages_of(const struct fa_paged_cache *cache, int32_t layer,
                                            const uint32_t *table)
{
	const uint32_t strips = (uint32_t)cache->page_tokens / FA_CUDA_PAGED_STRIP;
	const int64_t bytes = fa_cuda_paged_stored_bytes(cache);
	char *const k = (char *)cache->pool + layer * cache->layer_stride;

	return (struct fa_cuda_pages){
		.k = k,
		.v = k + cache->v_offset,
		.table = table,
		/* Exact for strips below 2^32 / page_strips, which is 2^28. */
		.page_magic = ((uint64_t)1 << 32) / strips + 1,
		.page_strips = strips,
		.k_row = (uint32_t)(cache->head_dim * bytes),
		.v_row = (uint32_t)((cache->v_offset ? cache->head_dim_v : cache->head_dim) *
		                    bytes),
	};
}

static uint32_t scales_at(const struct fa_paged_cache *cache, int32_t dim)
{
	return (uint32_t)(cache->kv_heads * cache->page_tokens) * (uint32_t)dim;
}

void fa_cuda_paged_quantised_of(const struct fa_paged_cache *cache, int32_t layer,
                                struct fa_cuda_paged_quantised *ret_codes)
{
	const size_t heads = (size_t)cache->kv_heads;
	/* The front of K has K's scales. */
	const bool v_in_k = cache->v_offset == 0;
	const float *const v_scales = v_in_k ? cache->k_scales : cache->v_scales;
	struct fa_cuda_paged_quantised quantised = {
		.store = (int32_t)cache->store,
		.dtype = (int32_t)cache->dtype,
		.token_scales = !cache->k_scales,
		.k_scales_at = scales_at(cache, cache->head_dim),
		.v_scales_at = scales_at(cache, v_in_k ? cache->head_dim : cache->head_dim_v),
	};

	if (cache->k_scales) {
		memcpy(quantised.k_scales, cache->k_scales + (size_t)layer * heads,
		       heads * sizeof(float));
		memcpy(quantised.v_scales, v_scales + (size_t)layer * heads, heads * sizeof(float));
	}
	*ret_codes = quantised;
}

/* ---- which kernel */

bool fa_cuda_paged_kernel_is_special(const struct fa_cuda_paged_kernel *kernel)
{
	return kernel->arch_end < INT32_MAX;
}

bool fa_cuda_paged_kernel_runs(const struct fa_cuda_paged_kernel *kernel,
                               const struct fa_cuda_chip *chip)
{
	return chip->arch >= kernel->arch && chip->arch < kernel->arch_end &&
	       kernel->shared_bytes <= chip->shared_bytes_max &&
	       !(chip->portable_paged && fa_cuda_paged_kernel_is_special(kernel));
}

const struct fa_cuda_paged_kernel *fa_cuda_paged_find(const struct fa_cuda_chip *chip,
                                                      enum fa_cuda_paged_kind kind,
                                                      enum fa_paged_store store,
                                                      enum fa_attention_dtype dtype, int32_t dim,
                                                      int32_t dim_v, int32_t rows)
{
	const uint32_t wanted = 1u << store;
	const struct fa_cuda_paged_kernel *best = NULL;
	int64_t least = INT64_MAX;

	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];
		int64_t cost;

		if (((kernel->stores ? kernel->stores : 1u << FA_PAGED_PLAIN) & wanted) == 0)
			continue;
		if (kernel->kind != kind || (kernel->dtype && kernel->dtype != dtype) ||
		    kernel->keys || kernel->small || kernel->levels ||
		    !fa_cuda_paged_kernel_runs(kernel, chip))
			continue;
		if (kernel->dim == 0)
			return kernel;
		if (kernel->dim < dim ||
		    (kernel->exact && (kernel->dim != dim || kernel->dim_v != dim_v)))
			continue;
		/* The number of passes over a sequence, times the work of one. */
		cost = (int64_t)fa_cuda_paged_ceil_div((uint64_t)dim_v, (uint64_t)kernel->dim_v) *
		       (kernel->dim + kernel->dim_v);
		if (kind == FA_CUDA_PAGED_DECODE || kind == FA_CUDA_PAGED_SPLIT ||
		    kind == FA_CUDA_PAGED_OWN_DECODE)
			cost *= (int64_t)fa_cuda_paged_ceil_div((uint64_t)rows,
			                                        (uint64_t)kernel->rows) *
			        (32 + (rows <= 32 && kernel->rows > 32 ? 32 : kernel->rows));
		if (cost < least) {
			least = cost;
			best = kernel;
		}
	}
	return best;
}

const struct fa_cuda_paged_kernel *
fa_cuda_paged_inline_table(const struct fa_cuda_paged_kernel *kernel,
                           const struct fa_paged_step *step, struct fa_cuda_paged_plan *plan)
{
	if (!step->host_table || step->table_entries == 0 ||
	    step->table_entries > FA_CUDA_PAGED_INLINE_TABLE ||
	    kernel + 1 == fa_cuda_paged_kernels + fa_cuda_paged_kernels_count || !kernel[1].small)
		return kernel;
	memcpy(plan->table, step->host_table, step->table_entries * sizeof(plan->table[0]));
	plan->inline_table = step->table_entries;
	return kernel + 1;
}

const struct fa_cuda_paged_kernel *fa_cuda_paged_levels(const struct fa_cuda_paged_kernel *kernel)
{
	const struct fa_cuda_paged_kernel *other = kernel + 2;

	if (other >= fa_cuda_paged_kernels + fa_cuda_paged_kernels_count || !other->levels ||
	    other->small || kernel->levels)
		return NULL;
	return other;
}

int fa_cuda_paged_check_cache(const struct fa_cuda_chip *chip, const struct fa_paged_cache *cache,
                              char *text, size_t text_bytes)
{
	int r = fa_paged_check_cache(cache, text, text_bytes);

	if (r < 0 || cache->store == FA_PAGED_PLAIN)
		return r;
	if (cache->dtype == FA_ATTENTION_F32)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "dtype fp32 is not supported with e4m3 or int8 on a GPU: "
		                          "fp16 or bf16");
	if (cache->head_dim % 16 != 0 || cache->head_dim_v % 16 != 0)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "head dims %d and %d are not supported with e4m3 or int8 "
		                          "on a GPU: multiples of 16",
		                          cache->head_dim, cache->head_dim_v);
	if (cache->k_scales && cache->kv_heads > FA_CUDA_QUANTISED_HEADS_MAX)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "scales of %d KV heads are not supported on a GPU: at "
		                          "most %d",
		                          cache->kv_heads, FA_CUDA_QUANTISED_HEADS_MAX);
	if (!fa_cuda_paged_find(chip, FA_CUDA_PAGED_DECODE, cache->store, cache->dtype,
	                        cache->head_dim, cache->head_dim_v, 1) ||
	    !fa_cuda_paged_find(chip, FA_CUDA_PAGED_APPEND, cache->store, cache->dtype, 0, 0, 0))
		return fa_cuda_paged_no_kernel(chip, "pages of e4m3 or int8", text, text_bytes);
	return 0;
}

const struct fa_cuda_paged_kernel *fa_cuda_paged_gate(const struct fa_cuda_chip *chip)
{
	return fa_cuda_paged_find(chip, FA_CUDA_PAGED_GATE, FA_PAGED_PLAIN, FA_ATTENTION_F32, 0, 0,
	                          0);
}

int fa_cuda_paged_no_kernel(const struct fa_cuda_chip *chip, const char *what, char *text,
                            size_t text_bytes)
{
	return fa_cuda_paged_fail(text, text_bytes,
	                          "no GPU kernel for %s on "
	                          "compute capability %d.%d "
	                          "with %d bytes of shared "
	                          "memory",
	                          what, chip->arch / 10, chip->arch % 10, chip->shared_bytes_max);
}

/* ---- requests */

/* Returns the bytes of an attention with chunks; 0: the plan will refuse it. SIZE_MAX / 4, which no
 * caller has: there is no memory. */
static size_t chunks_bytes(const struct fa_paged_request *request)
{
	struct fa_paged_request parts = { .op = FA_PAGED_ATTEND };
	struct fa_cuda_paged_chunks *chunks;
	char text[256];
	size_t bytes;
	int r;

	r = fa_cuda_paged_chunks_new(&request->attention, text, sizeof(text), &chunks);
	if (r < 0)
		return r == -ENOMEM ? SIZE_MAX / 4 : 0;
	parts.attention = chunks->attention;
	bytes = fa_cuda_paged_blob_bytes(&parts);
	free(chunks);
	return bytes;
}

/* Sequences with a tree have no prefixes. */
static int remove_prefixes(struct fa_paged_attention *p, char *text, size_t text_bytes)
{
	struct fa_cuda_prefixes prefixes = { false };

	for (int32_t b = 0; b < p->step->batch; b++)
		if (!fa_cuda_paged_has_tree(p, b))
			fa_cuda_prefixes_add(&prefixes, fa_cuda_paged_n_new(p->step, b),
			                     p->step->lengths[b], p->prefix_lengths[b]);
	p->prefix_lengths = NULL;
	return fa_cuda_prefixes_causal(&prefixes, &p->causal, text, text_bytes);
}

static int plan_chunks(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                       void *blob, struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	struct fa_cuda_paged_chunks *chunks;
	int r;

	r = fa_cuda_paged_chunks_new(p, text, text_bytes, &chunks);
	if (r < 0)
		return r;
	r = fa_cuda_paged_plan_attention(chip, &chunks->attention, blob, plan, text, text_bytes);
	free(chunks);
	return r;
}

static int plan_masks(const struct fa_cuda_chip *chip, const struct fa_paged_attention *attention,
                      void *blob, struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	struct fa_paged_attention p = *attention;
	int r;

	if (p.pattern.block_tokens)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "patterns of blocks are not supported on a GPU");
	if (p.prefix_lengths && p.causal) {
		r = remove_prefixes(&p, text, text_bytes);
		if (r < 0)
			return r;
	}
	plan->causal = p.causal;
	return p.chunk_tokens > 0
	               ? plan_chunks(chip, &p, blob, plan, text, text_bytes)
	               : fa_cuda_paged_plan_attention(chip, &p, blob, plan, text, text_bytes);
}

size_t fa_cuda_paged_blob_bytes(const struct fa_paged_request *request)
{
	if (request->op == FA_PAGED_ATTEND && request->attention.chunk_tokens > 0)
		return chunks_bytes(request);
	switch (request->op) {
	case FA_PAGED_ATTEND: {
		const struct fa_paged_step *step = request->attention.step;
		const size_t batch = (size_t)step->batch;
		const uint32_t packed_from = step->host_table ? FA_CUDA_PAGED_SHARE_TOKENS
		                                              : fa_cuda_paged_packed_tokens(
									&request->attention);
		const size_t widen_bytes = fa_cuda_paged_widen_bytes(&request->attention);
		size_t units = widen_bytes > 0 ? FA_CUDA_PAGED_UNITS : 0;

		for (int32_t b = 0; b < step->batch; b++)
			if (fa_cuda_paged_is_prefill(&request->attention, packed_from, b))
				units = FA_CUDA_PAGED_UNITS;
		/* A block of rows has at least 64; a shared prefix at least two sequences. */
		return (batch + batch / 2 + 2) * (sizeof(struct fa_cuda_paged_item) + 16) +
		       fa_cuda_paged_align(FA_CUDA_PAGED_BLOCKS * sizeof(uint32_t)) +
		       (step->cu_new[batch] / 64 + batch) * sizeof(struct fa_cuda_paged_block) +
		       units * sizeof(struct fa_cuda_paged_unit) + widen_bytes +
		       fa_cuda_paged_split_bytes(&request->attention);
	}
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		return fa_cuda_paged_align((size_t)request->append.step->batch *
		                           sizeof(struct fa_cuda_paged_item));
	case FA_PAGED_MERGE:
		return 0;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		return 2 * fa_cuda_paged_align((size_t)request->pages.count * sizeof(uint32_t));
	case FA_PAGED_MOVE: {
		const struct fa_paged_move *p = &request->move;

		return fa_cuda_paged_align((size_t)p->batch * sizeof(struct fa_cuda_paged_moved)) +
		       fa_cuda_paged_align((size_t)p->cu_moves[p->batch] * sizeof(uint32_t));
	}
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		return fa_cuda_paged_own_copy_blob_bytes(&request->own_copy);
	case FA_PAGED_ATTEND_OWN:
	case FA_PAGED_APPEND_OWN:
		return 0;
	}
	return 0;
}

int fa_cuda_paged_plan(const struct fa_cuda_chip *chip, const struct fa_paged_request *request,
                       void *blob, char *text, size_t text_bytes,
                       struct fa_cuda_paged_plan *ret_plan)
{
	struct fa_cuda_paged_plan plan = { .op = request->op };
	int r = 0;

	switch (request->op) {
	case FA_PAGED_ATTEND:
		r = plan_masks(chip, &request->attention, blob, &plan, text, text_bytes);
		break;
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		r = fa_cuda_paged_plan_append(chip, &request->append, blob, &plan, text,
		                              text_bytes);
		break;
	case FA_PAGED_MERGE:
		r = fa_cuda_paged_plan_merge(chip, &request->merge, &plan, text, text_bytes);
		break;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		r = fa_cuda_paged_plan_pages(chip, &request->pages, blob, &plan, text, text_bytes);
		break;
	case FA_PAGED_MOVE:
		r = fa_cuda_paged_plan_move(chip, &request->move, blob, &plan, text, text_bytes);
		break;
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		r = fa_cuda_paged_plan_own_copy(chip, &request->own_copy, blob, &plan, text,
		                                text_bytes);
		break;
	case FA_PAGED_ATTEND_OWN:
		r = fa_cuda_paged_plan_own(chip, &request->own_attention, &plan, text, text_bytes);
		break;
	case FA_PAGED_APPEND_OWN:
		r = fa_cuda_paged_plan_own_append(chip, &request->own_append, &plan, text,
		                                  text_bytes);
		break;
	}
	if (r < 0)
		return r;
	*ret_plan = plan;
	return 0;
}

int fa_cuda_paged_launches(const struct fa_cuda_paged_plan *plan,
                           const struct fa_paged_request *request, uint64_t blob,
                           uint64_t workspace, uint64_t epoch,
                           struct fa_cuda_paged_launch ret_launches[FA_CUDA_PAGED_LAUNCHES_MAX])
{
	struct fa_cuda_paged_launch *launch = ret_launches;

	if (plan->op == FA_PAGED_ATTEND)
		return fa_cuda_paged_launch_attention(plan, &request->attention, blob, workspace,
		                                      epoch, ret_launches);
	if (plan->op == FA_PAGED_ATTEND_OWN)
		return fa_cuda_paged_launch_own(plan, &request->own_attention, workspace, epoch,
		                                ret_launches);

	if (plan->grid_x == 0 || plan->grid_y == 0)
		return 0;
	launch->kernel = plan->kernel;
	launch->n_maps = 0;
	launch->parts = 0;
	launch->grid_x = plan->grid_x;
	launch->grid_y = plan->grid_y;
	switch (plan->op) {
	case FA_PAGED_ATTEND:
		break;
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		fa_cuda_paged_launch_append(plan, &request->append, blob, launch);
		break;
	case FA_PAGED_MERGE:
		fa_cuda_paged_launch_merge(&request->merge, &launch->args.merge);
		break;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		fa_cuda_paged_launch_pages(plan, &request->pages, blob, &launch->args.copy);
		break;
	case FA_PAGED_MOVE:
		fa_cuda_paged_launch_move(plan, &request->move, blob, &launch->args.moves);
		break;
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		fa_cuda_paged_launch_own_copy(plan, &request->own_copy, blob,
		                              &launch->args.own_copy);
		break;
	case FA_PAGED_ATTEND_OWN:
		break;
	case FA_PAGED_APPEND_OWN:
		fa_cuda_paged_launch_own_append(&request->own_append, &launch->args.own_append);
		break;
	}
	return 1;
}

struct fa_cuda_done *fa_cuda_paged_done(struct fa_cuda_paged_launch *launch)
{
	switch (launch->kernel->kind) {
	case FA_CUDA_PAGED_DECODE:
	case FA_CUDA_PAGED_SPLIT:
	case FA_CUDA_PAGED_LATENT:
	case FA_CUDA_PAGED_BAND:
	case FA_CUDA_PAGED_RICH:
	case FA_CUDA_PAGED_PACKED:
	case FA_CUDA_PAGED_OWN_DECODE:
	case FA_CUDA_PAGED_OWN_FORWARD:
	case FA_CUDA_PAGED_OWN_BAND:
	case FA_CUDA_PAGED_OWN_RICH:
	case FA_CUDA_PAGED_OWN_PACKED:
		return &launch->args.attention.attention.done;
	case FA_CUDA_PAGED_OWN_PLAN:
		return &launch->args.own_plan.done;
	case FA_CUDA_PAGED_OWN_APPEND:
		return &launch->args.own_append.done;
	case FA_CUDA_PAGED_APPEND:
	case FA_CUDA_PAGED_READ:
		return &launch->args.append.done;
	case FA_CUDA_PAGED_WIDEN:
		return &launch->args.widen.done;
	case FA_CUDA_PAGED_MERGE:
		return &launch->args.merge.done;
	case FA_CUDA_PAGED_COPY:
		return &launch->args.copy.done;
	case FA_CUDA_PAGED_OWN_COPY:
		return &launch->args.own_copy.done;
	case FA_CUDA_PAGED_MOVE:
	case FA_CUDA_PAGED_GATE: /* has no completion report */
		break;
	}
	return &launch->args.moves.done;
}
