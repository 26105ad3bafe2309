#include "kernels/cuda/paged-plan.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sequences with fewer new tokens than this decode; others are blocks of rows. */
#define FORWARD_TOKENS 48

__attribute__((format(printf, 3, 4))) static int fail(char *text, size_t text_bytes,
                                                      const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(text, text_bytes, format, list);
	va_end(list);
	return -ENOTSUP;
}

static int64_t element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static uint32_t ceil_div(uint64_t a, uint64_t b)
{
	return (uint32_t)((a + b - 1) / b);
}

/* Arrays in the blob start on 16 bytes. */
static size_t align(size_t bytes)
{
	return (bytes + 15) / 16 * 16;
}

/*
 * Whether rows of @tensor can be moved in pieces of 16 bytes, with the offsets inside a
 * tile of at most 512 rows in 32 bits.
 */
static bool tensor_aligned(const struct fa_attention_tensor *tensor, int64_t bytes)
{
	return !tensor->data ||
	       ((uintptr_t)tensor->data % 16 == 0 && tensor->stride_token * bytes % 16 == 0 &&
	        tensor->stride_head * bytes % 16 == 0 && tensor->stride_token >= 0 &&
	        tensor->stride_token * bytes < 1 << 22);
}

static struct fa_cuda_tensor tensor_of(const struct fa_attention_tensor *tensor, int64_t bytes)
{
	return (struct fa_cuda_tensor){
		.data = tensor->data,
		.stride_token = tensor->stride_token * bytes,
		.stride_head = tensor->stride_head * bytes,
	};
}

static struct fa_cuda_pages pages_of(const struct fa_paged_cache *cache, int32_t layer,
                                     const uint32_t *table)
{
	const uint32_t strips = (uint32_t)cache->page_tokens / FA_CUDA_PAGED_STRIP;
	const int64_t bytes = element_bytes(cache->dtype);
	char *const k = (char *)cache->pool + layer * cache->layer_stride;

	return (struct fa_cuda_pages){
		.k = k,
		.v = k + cache->v_offset,
		.table = table,
		/* Exact for strips below 2^32 / strips of a page, which is 2^28. */
		.page_magic = ((uint64_t)1 << 32) / strips + 1,
		.page_strips = strips,
		.k_row = (uint32_t)(cache->head_dim * bytes),
		.v_row = (uint32_t)((cache->v_offset ? cache->head_dim_v : cache->head_dim) *
		                    bytes),
	};
}

/* ---- which kernel */

static bool is_plain(const struct fa_paged_attention *p)
{
	const int64_t bytes = element_bytes(p->cache->dtype);

	return !(p->softcap > 0) && !p->alibi_slopes && !p->sinks && p->scale > 0 &&
	       tensor_aligned(&p->q, bytes) && tensor_aligned(&p->out, bytes) &&
	       (p->cache->v_offset == 0 || p->cache->head_dim == p->cache->head_dim_v);
}

/* The kernel of a kind that computes the least; among equals the first, which is the one
 * with the larger ring. NULL if there is none. */
static const struct fa_cuda_paged_kernel *find(const struct fa_cuda_chip *chip,
                                               enum fa_cuda_paged_kind kind,
                                               enum fa_attention_dtype dtype, int32_t dim,
                                               int32_t dim_v, int32_t rows)
{
	const struct fa_cuda_paged_kernel *best = NULL;
	int64_t least = INT64_MAX;

	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];
		int64_t cost;

		if (kernel->kind != kind || (kernel->dtype && kernel->dtype != dtype) ||
		    kernel->arch > chip->arch || kernel->shared_bytes > chip->shared_bytes_max)
			continue;
		if (kernel->dim == 0)
			return kernel;
		if (kernel->dim < dim)
			continue;
		/* Passes over a sequence, and what each computes. */
		cost = (int64_t)ceil_div((uint64_t)dim_v, (uint64_t)kernel->dim_v) *
		       (kernel->dim + kernel->dim_v);
		if (kind == FA_CUDA_PAGED_DECODE)
			cost *= (int64_t)ceil_div((uint64_t)rows, (uint64_t)kernel->rows) *
			        (32 + kernel->rows);
		if (cost < least) {
			least = cost;
			best = kernel;
		}
	}
	return best;
}

static int missing(const struct fa_cuda_chip *chip, const char *what, char *text, size_t text_bytes)
{
	return fail(text, text_bytes,
	            "no GPU kernel for %s on compute capability %d.%d with %d bytes of shared "
	            "memory",
	            what, chip->arch / 10, chip->arch % 10, chip->shared_bytes_max);
}

/* ---- attention */

static bool has_tree(const struct fa_paged_attention *p, int32_t b)
{
	return p->tree && p->tree_start[b] != FA_PAGED_NO_TREE;
}

static uint32_t n_new_of(const struct fa_paged_step *step, int32_t b)
{
	return step->cu_new[b + 1] - step->cu_new[b];
}

static bool is_forward(const struct fa_paged_attention *p, int32_t b)
{
	return p->cache->dtype != FA_ATTENTION_F32 && !has_tree(p, b) &&
	       n_new_of(p->step, b) >= FORWARD_TOKENS;
}

static struct fa_cuda_paged_item item_of(const struct fa_paged_step *step, int32_t b)
{
	const uint32_t first = step->first ? step->first[b] : 0;

	return (struct fa_cuda_paged_item){
		.first_q = step->cu_new[b],
		.n_q = n_new_of(step, b),
		.n_k = step->lengths[b],
		.begin = first,
		.first = first,
		.table_start = step->table_start[b],
		.tree_start = FA_CUDA_PAGED_NO_TREE,
		.append = step->lengths_before[b],
	};
}

/* Blocks of rows see more keys the later they are; the longest go first. */
static int compare_blocks(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x > y ? -1 : x < y;
}

static int plan_forward(const struct fa_paged_attention *p, char *blob,
                        struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	struct fa_cuda_paged_item *items = (void *)(blob + plan->forward_items_at);
	struct fa_cuda_paged_block *blocks = (void *)(blob + plan->forward_blocks_at);
	const uint32_t rows = (uint32_t)plan->forward->rows;
	const uint64_t slices = ceil_div((uint64_t)p->cache->head_dim_v,
	                                 (uint64_t)plan->forward->dim_v);
	uint64_t *keys;
	uint32_t n = 0, item = 0;

	for (int32_t b = 0; b < p->step->batch; b++) {
		const uint64_t blocks_of = ceil_div(n_new_of(p->step, b), rows);

		if (is_forward(p, b))
			plan->forward_blocks += (uint32_t)blocks_of;
	}
	if ((uint64_t)plan->forward_blocks * (uint64_t)p->heads * slices > INT32_MAX)
		return fail(text, text_bytes, "%u new tokens of %d heads need more than %d blocks",
		            p->step->cu_new[p->step->batch], p->heads, INT32_MAX);
	if (plan->forward_blocks == 0)
		return 0;

	/* First, in place of a block: how many keys its last row sees, and its number in order
	 * of items and rows, which items keep as their tile. */
	keys = (uint64_t *)blocks;
	for (int32_t b = 0; b < p->step->batch; b++) {
		const int64_t n_q = n_new_of(p->step, b);
		const int64_t n_k = p->step->lengths[b];

		if (!is_forward(p, b))
			continue;
		items[item] = item_of(p->step, b);
		items[item].tile = n;
		for (int64_t row = 0; row < n_q; row += rows) {
			const int64_t last = (row + rows < n_q ? row + rows : n_q) - 1;
			int64_t seen = p->causal ? last + n_k - n_q + 1 : n_k;

			seen = seen < 0 ? 0 : seen;
			if (p->window_left >= 0 && seen > p->window_left + (int64_t)rows)
				seen = p->window_left + (int64_t)rows;
			keys[n] = (uint64_t)seen << 32 | (UINT32_MAX - n);
			n++;
		}
		item++;
	}
	qsort(keys, n, sizeof(*keys), compare_blocks);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t number = UINT32_MAX - (uint32_t)keys[i], low = 0, high = item;

		while (high - low > 1) {
			const uint32_t middle = low + (high - low) / 2;

			if (items[middle].tile <= number)
				low = middle;
			else
				high = middle;
		}
		blocks[i].item = low;
		blocks[i].row = (number - items[low].tile) * rows;
	}
	return 0;
}

static int plan_decode(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                       char *blob, struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	struct fa_cuda_paged_item *items = (void *)(blob + plan->decode_items_at);
	uint32_t *block_items = (void *)(blob + plan->block_items_at);
	const uint32_t group = (uint32_t)(p->heads / p->cache->kv_heads);
	const uint32_t slices = ceil_div((uint64_t)p->cache->head_dim_v,
	                                 (uint64_t)plan->decode->dim_v);
	uint32_t sms = chip->sms > 0 ? (uint32_t)chip->sms : 1, n = 0, at = 0;
	uint64_t tiles = 0;

	for (int32_t b = 0; b < p->step->batch; b++) {
		struct fa_cuda_paged_item item = item_of(p->step, b);
		uint64_t parts;

		if (item.n_q == 0 || is_forward(p, b))
			continue;
		if (p->window_left >= 0 &&
		    (int64_t)item.n_k - item.n_q - p->window_left > item.begin)
			item.begin = (uint32_t)((int64_t)item.n_k - item.n_q - p->window_left);
		if (has_tree(p, b))
			item.tree_start = p->tree_start[b];
		item.row_blocks = ceil_div((uint64_t)item.n_q * group,
		                           (uint64_t)plan->decode->rows);
		parts = (uint64_t)p->cache->kv_heads * item.row_blocks * slices;
		item.tiles = 1;
		if (item.n_k > item.begin)
			item.tiles = ceil_div(item.n_k - item.begin / FA_CUDA_PAGED_STRIP *
			                                         FA_CUDA_PAGED_STRIP,
			                      FA_CUDA_PAGED_TILE);
		item.tile = (uint32_t)tiles;
		item.parts = (uint32_t)parts;
		tiles += parts * item.tiles;
		if (parts > INT32_MAX || tiles > INT32_MAX)
			return fail(text, text_bytes,
			            "a step of more than %d tiles of %d tokens is not supported",
			            INT32_MAX, FA_CUDA_PAGED_TILE);
		items[n++] = item;
	}
	if (n == 0)
		return 0;
	if (sms > FA_CUDA_PAGED_COUNTERS)
		sms = FA_CUDA_PAGED_COUNTERS;
	plan->decode_items = n;
	plan->decode_grid = tiles < sms ? (uint32_t)tiles : sms;
	plan->tiles_each = (uint32_t)(tiles / plan->decode_grid);
	plan->tiles_extra = (uint32_t)(tiles % plan->decode_grid);
	for (uint32_t block = 0; block < plan->decode_grid; block++) {
		const uint32_t extra = block < plan->tiles_extra ? block : plan->tiles_extra;
		const uint64_t tile = (uint64_t)block * plan->tiles_each + extra;

		while (at + 1 < n && items[at + 1].tile <= tile)
			at++;
		block_items[block] = at;
	}
	return 0;
}

static int plan_attention(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                          char *blob, struct fa_cuda_paged_plan *plan, char *text,
                          size_t text_bytes)
{
	const struct fa_paged_cache *cache = p->cache;
	const int32_t group = p->heads / cache->kv_heads;
	uint32_t longest = 1, n_forward = 0, n_decode = 0;
	size_t at = 0;
	int r;

	for (int32_t b = 0; b < p->step->batch; b++) {
		const uint32_t n_new = n_new_of(p->step, b);

		if (is_forward(p, b)) {
			n_forward++;
		} else if (n_new > 0) {
			n_decode++;
			longest = n_new > longest ? n_new : longest;
		}
	}
	plan->workspace_bytes = FA_CUDA_PAGED_COUNTERS_BYTES;
	if (n_decode > 0) {
		const int64_t rows = (int64_t)longest * group;

		plan->decode = find(chip, FA_CUDA_PAGED_DECODE, cache->dtype, cache->head_dim,
		                    cache->head_dim_v, rows > 4096 ? 4096 : (int32_t)rows);
		if (!plan->decode)
			return missing(chip, "attention over pages", text, text_bytes);
		plan->decode_items_at = at;
		at += align(n_decode * sizeof(struct fa_cuda_paged_item));
		plan->block_items_at = at;
		r = plan_decode(chip, p, blob, plan, text, text_bytes);
		if (r < 0)
			return r;
		at += align(plan->decode_grid * sizeof(uint32_t));
		plan->workspace_bytes += (size_t)plan->decode_grid * 2 *
		                         (size_t)plan->decode->rows *
		                         ((size_t)plan->decode->dim_v + 2) * sizeof(float);
	}
	if (n_forward > 0) {
		plan->forward = find(chip, is_plain(p) ? FA_CUDA_PAGED_BAND : FA_CUDA_PAGED_RICH,
		                     cache->dtype, cache->head_dim, cache->head_dim_v, 0);
		/* Chips with little shared memory have the rich ones alone. */
		if (!plan->forward)
			plan->forward = find(chip, FA_CUDA_PAGED_RICH, cache->dtype,
			                     cache->head_dim, cache->head_dim_v, 0);
		if (!plan->forward)
			return missing(chip, "attention of many rows over pages", text, text_bytes);
		plan->forward_items = n_forward;
		plan->forward_items_at = at;
		at += align(n_forward * sizeof(struct fa_cuda_paged_item));
		plan->forward_blocks_at = at;
		r = plan_forward(p, blob, plan, text, text_bytes);
		if (r < 0)
			return r;
		at += align(plan->forward_blocks * sizeof(struct fa_cuda_paged_block));
	}
	plan->blob_bytes = at;
	return 0;
}

static void launch_attention(const struct fa_cuda_paged_plan *plan,
                             const struct fa_paged_attention *p,
                             const struct fa_cuda_paged_kernel *kernel, uint64_t blob,
                             uint64_t workspace, uint32_t epoch,
                             struct fa_cuda_paged_attention *ret_args)
{
	const struct fa_paged_cache *cache = p->cache;
	const int64_t bytes = element_bytes(cache->dtype);
	const bool decode = kernel->kind == FA_CUDA_PAGED_DECODE;
	const size_t sums_at = (size_t)plan->decode_grid * 2 * (size_t)kernel->rows *
	                       (size_t)kernel->dim_v * sizeof(float);
	const uint64_t partials = workspace + FA_CUDA_PAGED_COUNTERS_BYTES;
	int64_t left = p->window_left, right = p->window_right;
	struct fa_cuda_paged_attention args = {
		.attention = {
			.q = tensor_of(&p->q, bytes),
			.out = tensor_of(&p->out, bytes),
			.lse = p->lse,
			.lse_stride_token = p->lse_stride_token,
			.lse_stride_head = p->lse_stride_head,
			.alibi_slopes = p->alibi_slopes,
			.sinks = p->sinks,
			.heads = p->heads,
			.group = p->heads / cache->kv_heads,
			.head_dim = cache->head_dim,
			.head_dim_v = cache->head_dim_v,
			.scale_log2 = (float)(p->scale * M_LOG2E),
			.aligned = tensor_aligned(&p->q, bytes) && tensor_aligned(&p->out, bytes),
		},
		.pages = pages_of(cache, p->layer, p->step->table),
		.tree = p->tree,
		.positions = p->positions,
		.epoch = epoch,
		.kv_heads = cache->kv_heads,
		.slices = (int32_t)ceil_div((uint64_t)cache->head_dim_v, (uint64_t)kernel->dim_v),
	};

	left = left < 0 || left > FA_CUDA_WINDOW_MAX ? FA_CUDA_WINDOW_MAX : left;
	right = right < 0 || right > FA_CUDA_WINDOW_MAX ? FA_CUDA_WINDOW_MAX : right;
	args.tree_right = (int32_t)right;
	args.attention.window_left = (int32_t)left;
	args.attention.window_right = p->causal ? 0 : (int32_t)right;
	if (p->softcap > 0) {
		args.attention.cap_in = p->scale / p->softcap;
		args.attention.cap_out = (float)(p->softcap * M_LOG2E);
	}
	if (decode) {
		args.items = (const void *)(uintptr_t)(blob + plan->decode_items_at);
		args.block_items = (const void *)(uintptr_t)(blob + plan->block_items_at);
		args.counters = (void *)(uintptr_t)workspace;
		args.partials = (void *)(uintptr_t)partials;
		args.partial_sums = (void *)(uintptr_t)(partials + sums_at);
		args.tiles_each = plan->tiles_each;
		args.tiles_extra = plan->tiles_extra;
	} else {
		args.items = (const void *)(uintptr_t)(blob + plan->forward_items_at);
		args.blocks = (const void *)(uintptr_t)(blob + plan->forward_blocks_at);
	}
	*ret_args = args;
}

/* ---- append and read */

static int plan_append(const struct fa_cuda_chip *chip, const struct fa_paged_append *p, char *blob,
                       struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	struct fa_cuda_paged_item *items = (void *)blob;
	const struct fa_paged_step *step = p->step;

	plan->kernel = find(chip,
	                    plan->op == FA_PAGED_READ ? FA_CUDA_PAGED_READ : FA_CUDA_PAGED_APPEND,
	                    p->cache->dtype, 0, 0, 0);
	if (!plan->kernel)
		return missing(chip, "tokens in pages", text, text_bytes);
	for (int32_t b = 0; b < step->batch; b++)
		items[b] = item_of(step, b);
	plan->grid_x = ceil_div(step->cu_new[step->batch], FA_CUDA_APPEND_TOKENS);
	plan->grid_y = 1;
	plan->blob_bytes = align((size_t)step->batch * sizeof(*items));
	return 0;
}

static void launch_append(const struct fa_paged_append *p, enum fa_paged_op op, uint64_t blob,
                          struct fa_cuda_paged_append *ret_args)
{
	const struct fa_paged_cache *cache = p->cache;
	const int64_t bytes = element_bytes(cache->dtype);
	const struct fa_paged_rotary *rotary = &p->rotary;
	const bool read = op == FA_PAGED_READ;
	struct fa_cuda_paged_append args = {
		.pages = pages_of(cache, p->layer, p->step->table),
		.items = (const void *)(uintptr_t)blob,
		.batch = p->step->batch,
		.tokens = (int32_t)p->step->cu_new[p->step->batch],
		.kv_heads = cache->kv_heads,
		.dtype = (int32_t)cache->dtype,
		.head_dim = cache->head_dim,
		.head_dim_v = cache->head_dim_v,
		.k = tensor_of(&p->k, bytes),
		.v = tensor_of(&p->v, bytes),
		.aligned = tensor_aligned(&p->k, bytes) && tensor_aligned(&p->v, bytes),
	};

	if (!read && cache->v_offset == 0)
		args.v.data = NULL;
	if (!read && p->heads > 0) {
		args.heads = p->heads;
		args.q = tensor_of(&p->q, bytes);
		args.q_out = tensor_of(&p->q_out, bytes);
		args.aligned = args.aligned && tensor_aligned(&p->q, bytes) &&
		               tensor_aligned(&p->q_out, bytes);
	}
	/* Q that is not turned and stays where it is needs nothing. */
	if (!read && rotary->dim == 0 && p->q.data == p->q_out.data)
		args.q.data = NULL;
	if (!read && rotary->dim > 0) {
		args.rotary.half = rotary->dim / 2;
		args.rotary.interleaved = rotary->interleaved;
		args.rotary.cos = rotary->cos;
		args.rotary.sin = rotary->sin;
		args.rotary.table_positions = rotary->table_positions;
		args.rotary.positions = rotary->positions;
		for (int32_t i = 0; !rotary->cos && i < rotary->dim / 2; i++)
			args.rotary.turns[i] = rotary->scale / (2 * M_PI) *
			                       pow(rotary->base, -2.0 * i / rotary->dim);
	}
	*ret_args = args;
}

/* ---- merge, pages, moves */

static int plan_merge(const struct fa_cuda_chip *chip, const struct fa_paged_merge *p,
                      struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const uint64_t threads = (uint64_t)p->tokens * (uint64_t)p->heads * 8;

	plan->kernel = find(chip, FA_CUDA_PAGED_MERGE, p->dtype, 0, 0, 0);
	if (!plan->kernel)
		return missing(chip, "merging results", text, text_bytes);
	if (threads > (uint64_t)INT32_MAX * FA_CUDA_TOKENS_THREADS)
		return fail(text, text_bytes, "%lld tokens of %d heads are too many to merge",
		            (long long)p->tokens, p->heads);
	plan->grid_x = ceil_div(threads, FA_CUDA_TOKENS_THREADS);
	plan->grid_y = 1;
	return 0;
}

static struct fa_cuda_paged_partial partial_of(const struct fa_paged_partial *partial,
                                               int64_t bytes)
{
	return (struct fa_cuda_paged_partial){
		.out = tensor_of(&partial->out, bytes),
		.lse = partial->lse,
		.lse_stride_token = partial->lse_stride_token,
		.lse_stride_head = partial->lse_stride_head,
	};
}

static void launch_merge(const struct fa_paged_merge *p, struct fa_cuda_paged_merge *ret_args)
{
	const int64_t bytes = element_bytes(p->dtype);

	*ret_args = (struct fa_cuda_paged_merge){
		.a = partial_of(&p->a, bytes),
		.b = partial_of(&p->b, bytes),
		.result = partial_of(&p->result, bytes),
		.rows = p->tokens * p->heads,
		.heads = p->heads,
		.head_dim_v = p->head_dim_v,
		.dtype = (int32_t)p->dtype,
		.aligned = tensor_aligned(&p->a.out, bytes) && tensor_aligned(&p->b.out, bytes) &&
		           tensor_aligned(&p->result.out, bytes),
	};
}

static int plan_pages(const struct fa_cuda_chip *chip, const struct fa_paged_pages *p, char *blob,
                      struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const size_t bytes = (size_t)p->count * sizeof(uint32_t);

	plan->kernel = find(chip, FA_CUDA_PAGED_COPY, p->cache->dtype, 0, 0, 0);
	if (!plan->kernel)
		return missing(chip, "copies of pages", text, text_bytes);
	if (p->cache->layers > 65535)
		return fail(text, text_bytes, "layers %d are not supported: at most 65535",
		            p->cache->layers);
	memcpy(blob, p->to, bytes);
	plan->second_at = align(bytes);
	plan->blob_bytes = align(bytes);
	if (plan->op == FA_PAGED_COPY) {
		memcpy(blob + plan->second_at, p->from, bytes);
		plan->blob_bytes = 2 * align(bytes);
	}
	plan->grid_x = (uint32_t)p->count;
	plan->grid_y = (uint32_t)p->cache->layers;
	return 0;
}

static void launch_pages(const struct fa_cuda_paged_plan *plan, const struct fa_paged_pages *p,
                         uint64_t blob, struct fa_cuda_paged_copy *ret_args)
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

static int plan_move(const struct fa_cuda_chip *chip, const struct fa_paged_move *p, char *blob,
                     struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	struct fa_cuda_paged_moved *moved = (void *)blob;
	const size_t from_bytes = (size_t)p->cu_moves[p->batch] * sizeof(uint32_t);

	plan->kernel = find(chip, FA_CUDA_PAGED_MOVE, p->cache->dtype, 0, 0, 0);
	if (!plan->kernel)
		return missing(chip, "moves of tokens", text, text_bytes);
	if (p->cache->layers > 65535)
		return fail(text, text_bytes, "layers %d are not supported: at most 65535",
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
	plan->second_at = align(plan->grid_x * sizeof(*moved));
	memcpy(blob + plan->second_at, p->from, from_bytes);
	plan->blob_bytes = plan->second_at + align(from_bytes);
	plan->grid_y = (uint32_t)p->cache->layers;
	return 0;
}

static void launch_move(const struct fa_cuda_paged_plan *plan, const struct fa_paged_move *p,
                        uint64_t blob, struct fa_cuda_paged_moves *ret_args)
{
	const int64_t bytes = element_bytes(p->cache->dtype);

	*ret_args = (struct fa_cuda_paged_moves){
		.pages = pages_of(p->cache, 0, p->table),
		.layer_stride = p->cache->layer_stride,
		.kv_heads = p->cache->kv_heads,
		.page_tokens = p->cache->page_tokens,
		.k_bytes = (uint32_t)(p->cache->head_dim * bytes),
		.v_bytes = p->cache->v_offset ? (uint32_t)(p->cache->head_dim_v * bytes) : 0,
		.sequences = (const void *)(uintptr_t)blob,
		.from = (const void *)(uintptr_t)(blob + plan->second_at),
	};
}

/* ---- requests */

size_t fa_cuda_paged_blob_bytes(const struct fa_paged_request *request)
{
	switch (request->op) {
	case FA_PAGED_ATTEND: {
		const struct fa_paged_step *step = request->attention.step;
		const size_t batch = (size_t)step->batch;

		/* A block of rows has at least 64. */
		return (batch + 2) * (sizeof(struct fa_cuda_paged_item) + 16) +
		       align(FA_CUDA_PAGED_COUNTERS * sizeof(uint32_t)) +
		       (step->cu_new[batch] / 64 + batch) * sizeof(struct fa_cuda_paged_block);
	}
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		return align((size_t)request->append.step->batch *
		             sizeof(struct fa_cuda_paged_item));
	case FA_PAGED_MERGE:
		return 0;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		return 2 * align((size_t)request->pages.count * sizeof(uint32_t));
	case FA_PAGED_MOVE: {
		const struct fa_paged_move *p = &request->move;

		return align((size_t)p->batch * sizeof(struct fa_cuda_paged_moved)) +
		       align((size_t)p->cu_moves[p->batch] * sizeof(uint32_t));
	}
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
		r = plan_attention(chip, &request->attention, blob, &plan, text, text_bytes);
		break;
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		r = plan_append(chip, &request->append, blob, &plan, text, text_bytes);
		break;
	case FA_PAGED_MERGE:
		r = plan_merge(chip, &request->merge, &plan, text, text_bytes);
		break;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		r = plan_pages(chip, &request->pages, blob, &plan, text, text_bytes);
		break;
	case FA_PAGED_MOVE:
		r = plan_move(chip, &request->move, blob, &plan, text, text_bytes);
		break;
	}
	if (r < 0)
		return r;
	*ret_plan = plan;
	return 0;
}

int fa_cuda_paged_launches(const struct fa_cuda_paged_plan *plan,
                           const struct fa_paged_request *request, uint64_t blob,
                           uint64_t workspace, uint32_t epoch,
                           struct fa_cuda_paged_launch ret_launches[FA_CUDA_PAGED_LAUNCHES_MAX])
{
	struct fa_cuda_paged_launch *launch = ret_launches;

	if (plan->op == FA_PAGED_ATTEND) {
		const struct fa_paged_attention *p = &request->attention;

		/* The long one first, so that the other fills up behind its end. */
		if (plan->forward_blocks > 0) {
			launch->kernel = plan->forward;
			launch_attention(plan, p, plan->forward, blob, workspace, epoch,
			                 &launch->args.attention);
			launch->grid_x = plan->forward_blocks * (uint32_t)p->heads *
			                 (uint32_t)launch->args.attention.slices;
			launch->grid_y = 1;
			launch++;
		}
		if (plan->decode_grid > 0) {
			launch->kernel = plan->decode;
			launch_attention(plan, p, plan->decode, blob, workspace, epoch,
			                 &launch->args.attention);
			launch->grid_x = plan->decode_grid;
			launch->grid_y = 1;
			launch++;
		}
		return (int)(launch - ret_launches);
	}

	if (plan->grid_x == 0 || plan->grid_y == 0)
		return 0;
	launch->kernel = plan->kernel;
	launch->grid_x = plan->grid_x;
	launch->grid_y = plan->grid_y;
	switch (plan->op) {
	case FA_PAGED_ATTEND:
		break;
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		launch_append(&request->append, plan->op, blob, &launch->args.append);
		break;
	case FA_PAGED_MERGE:
		launch_merge(&request->merge, &launch->args.merge);
		break;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		launch_pages(plan, &request->pages, blob, &launch->args.copy);
		break;
	case FA_PAGED_MOVE:
		launch_move(plan, &request->move, blob, &launch->args.moves);
		break;
	}
	return 1;
}
