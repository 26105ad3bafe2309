#include "kernels/cuda/paged-plan-sm90.h"

#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/sm90/kernels.h"

#include <stdlib.h>

#define MAP_DIM_MAX (INT32_MAX - 256)
/* Slots in the maps of pages: TMA gives zeros for loads beyond. */
#define SLOTS ((uint64_t)INT32_MAX)

/* The keys of heads that run at the same time fill a L2_PART-th of L2. */
#define L2_PART 8

/* As in plan.c: a thread block takes about BLOCK_NS, or computes one pair. */
#define BLOCK_NS 200000

static int32_t ceil_div(int64_t a, int64_t b)
{
	return (int32_t)((a + b - 1) / b);
}

static struct fa_cuda_map map_q(const struct fa_cuda_paged_kernel *kernel,
                                const struct fa_paged_attention *p)
{
	const uint64_t tokens = p->step->cu_new[p->step->batch];

	return (struct fa_cuda_map){
		.data = p->q.data,
		.dims = { (uint64_t)p->cache->head_dim, tokens, (uint64_t)p->heads, 1 },
		.strides = { tokens > 1 ? (uint64_t)p->q.stride_token * 2 : 16,
		             p->heads > 1 ? (uint64_t)p->q.stride_head * 2 : 16, 16 },
		.box = { 64, (uint32_t)kernel->rows_q, 1, 1 },
	};
}

static int32_t box_keys(const struct fa_cuda_paged_kernel *kernel, int32_t page_tokens)
{
	int32_t keys = kernel->keys;

	while (page_tokens % keys)
		keys /= 2;
	return keys;
}

static uint32_t loaders(const struct fa_cuda_paged_kernel *kernel, int32_t box)
{
	const int32_t boxes = kernel->keys / box;

	return boxes <= (kernel->dim <= 64 ? 2 : 1) ? 1 : boxes < 4 ? boxes : 4;
}

/* The map of K or V of one layer: (dim, token of the page, KV head, slot). Slots are 256 bytes
 * apart, and a page is a whole number of them. */
static struct fa_cuda_map map_pages(const struct fa_paged_cache *cache, int32_t box,
                                    const char *data, uint64_t row_bytes, int32_t dim)
{
	return (struct fa_cuda_map){
		.data = data,
		.dims = { (uint64_t)dim, (uint64_t)cache->page_tokens, (uint64_t)cache->kv_heads,
		          SLOTS },
		.strides = { row_bytes, row_bytes * (uint64_t)cache->page_tokens,
		             FA_PAGED_SLOT_BYTES },
		.box = { 64, (uint32_t)box, 1, 1 },
	};
}

/* TMA can always load the pool. */
static bool q_mapped(const struct fa_cuda_paged_kernel *kernel, const struct fa_paged_attention *p)
{
	const struct fa_cuda_map map = map_q(kernel, p);

	for (int i = 0; i < 4; i++)
		if (map.dims[i] == 0 || map.dims[i] > MAP_DIM_MAX)
			return false;
	for (int i = 0; i < 3; i++)
		if (map.strides[i] % 16 || map.strides[i] == 0 || map.strides[i] >> 40)
			return false;
	return (uintptr_t)map.data % 16 == 0;
}

static bool out_aligned(const struct fa_attention_tensor *out)
{
	return (uintptr_t)out->data % 16 == 0 && out->stride_token * 2 % 16 == 0 &&
	       out->stride_head * 2 % 16 == 0;
}

bool fa_cuda_paged_sm90_covers(const struct fa_cuda_paged_kernel *kernel,
                               const struct fa_paged_attention *p)
{
	const struct fa_paged_cache *cache = p->cache;

	if (!kernel->keys || kernel->dtype != cache->dtype || kernel->dim < cache->head_dim ||
	    !out_aligned(&p->out) || !q_mapped(kernel, p))
		return false;
	if ((int64_t)p->heads * ceil_div(cache->head_dim_v, kernel->dim_v) >
	    FA_CUDA_PAGED_HEAD_SLICES_MAX)
		return false;
	if (kernel->kind == FA_CUDA_PAGED_RICH || kernel->kind == FA_CUDA_PAGED_OWN_RICH)
		return true;
	if (p->sinks &&
	    (kernel->kind == FA_CUDA_PAGED_OWN_BAND || kernel->kind == FA_CUDA_PAGED_OWN_PACKED ||
	     !FA_SM90_PAGED_BAND_SINKS(kernel->dim)))
		return false;
	return !(p->softcap > 0) && !p->alibi_slopes && p->scale > 0;
}

const struct fa_cuda_paged_kernel *fa_cuda_paged_sm90_find(const struct fa_cuda_chip *chip,
                                                           const struct fa_paged_attention *p,
                                                           bool own, uint32_t longest)
{
	const struct fa_cuda_paged_kernel *best = NULL;
	int64_t least = INT64_MAX;

	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];
		const bool is_own = kernel->kind == FA_CUDA_PAGED_OWN_BAND ||
		                    kernel->kind == FA_CUDA_PAGED_OWN_RICH;
		int64_t cost;

		if (kernel->kind == FA_CUDA_PAGED_PACKED ||
		    kernel->kind == FA_CUDA_PAGED_OWN_PACKED || is_own != own ||
		    !fa_cuda_paged_kernel_runs(kernel, chip) ||
		    !fa_cuda_paged_sm90_covers(kernel, p))
			continue;
		/* Bits of a deterministic sequence must not depend on the others' lengths. */
		if ((p->deterministic ? INT32_MAX : longest) > (uint32_t)kernel->seqlen_k_max)
			continue;
		cost = (int64_t)ceil_div(p->cache->head_dim_v, kernel->dim_v) *
		       (kernel->dim + kernel->dim_v) *
		       (kernel->kind == FA_CUDA_PAGED_RICH || kernel->kind == FA_CUDA_PAGED_OWN_RICH
		                ? 24
		                : 21);
		if (cost < least) {
			least = cost;
			best = kernel;
		}
	}
	return best;
}

static uint32_t blocks_of(const struct fa_cuda_paged_plan *plan,
                          const struct fa_cuda_paged_item *item)
{
	return fa_cuda_paged_ceil_div(item->n_q, (uint64_t)plan->forward->rows);
}

static uint64_t seen(const struct fa_paged_attention *p, const struct fa_cuda_paged_plan *plan,
                     const struct fa_cuda_paged_item *item, uint32_t block)
{
	const uint32_t rows = (uint32_t)plan->forward->rows;

	return fa_cuda_paged_seen(p, item, block * rows, rows);
}

/* True if @key's block is the middle one of an odd number; returns its item. */
static bool is_middle(const struct fa_cuda_paged_plan *plan, const struct fa_cuda_paged_item *items,
                      uint64_t key, uint32_t *ret_item)
{
	const uint32_t number = UINT32_MAX - (uint32_t)key;
	const uint32_t i = fa_cuda_paged_block_item(items, plan->forward_items, number);
	const uint32_t blocks = blocks_of(plan, &items[i]);

	*ret_item = i;
	return blocks % 2 && number - items[i].tile == blocks / 2;
}

#define NO_ITEM UINT32_MAX

/* Pairs the middle blocks of items, the longest with the shortest. The item of the longer block
 * gets the other block's number as its tiles, or its own number if none is left. The item of the
 * other block gets NO_ITEM. */
static void pair_middles(const struct fa_cuda_paged_plan *plan, struct fa_cuda_paged_item *items,
                         const uint64_t *keys)
{
	uint32_t begin = 0, end = plan->forward_blocks, a = 0, b = 0;

	for (;; begin++, end--) {
		while (begin < end && !is_middle(plan, items, keys[begin], &a))
			begin++;
		while (begin < end && !is_middle(plan, items, keys[end - 1], &b))
			end--;
		if (begin == end)
			return;
		items[b].tiles = NO_ITEM;
		items[a].tiles = b;
		if (a == b)
			return;
	}
}

/* Marks the first block of a pair: the list is built backwards, and has all first blocks before the
 * second ones. */
#define FIRST ((uint64_t)1 << 63)
#define COST_MAX ((uint64_t)INT32_MAX)

/* Makes the keys of pairs of an item's blocks: last with first, and so on. Returns their number;
 * @longest: keys seen by the longest pair. */
static uint32_t pair_own(const struct fa_paged_attention *p, const struct fa_cuda_paged_plan *plan,
                         const struct fa_cuda_paged_item *items, uint32_t i, uint64_t *keys,
                         uint64_t *longest)
{
	const struct fa_cuda_paged_item *item = &items[i];
	const uint32_t blocks = blocks_of(plan, item);
	uint32_t n = 0;

	for (uint32_t j = 0; j < (blocks + 1) / 2; j++) {
		const bool middle = j == blocks - 1 - j;
		const uint32_t other = middle ? item->tiles : i;
		const bool alone = middle && other == i;
		uint64_t cost;

		if (other == NO_ITEM)
			continue;
		cost = seen(p, plan, item, blocks - 1 - j);
		if (!alone)
			cost += seen(p, plan, &items[other],
			             middle ? blocks_of(plan, &items[other]) / 2 : j);
		*longest = cost > *longest ? cost : *longest;
		/* A block without partner goes to the middle of the list. */
		cost = alone ? 0 : cost / 2 < COST_MAX ? cost / 2 : COST_MAX;
		if (keys)
			keys[n] = FIRST | cost << 32 | (UINT32_MAX - (item->tile + j));
		n++;
		if (!alone && keys)
			keys[n] = (COST_MAX - cost) << 32 | (item->tile + j);
		n += !alone;
	}
	return n;
}

static uint32_t block_of(const struct fa_cuda_paged_plan *plan,
                         const struct fa_cuda_paged_item *items, uint64_t key)
{
	const bool first = key & FIRST;
	const uint32_t number = first ? UINT32_MAX - (uint32_t)key : (uint32_t)key;
	const uint32_t i = fa_cuda_paged_block_item(items, plan->forward_items, number);
	const uint32_t j = number - items[i].tile, blocks = blocks_of(plan, &items[i]);
	const struct fa_cuda_paged_item *other;

	if (first)
		return items[i].tile + blocks - 1 - j;
	if (j != blocks - 1 - j)
		return number;
	other = &items[items[i].tiles];
	return other->tile + blocks_of(plan, other) / 2;
}

/* Pairs are about equally long, but mix sequences, whose keys then compete for L2. Pairs within
 * each sequence are preferred unless a pair gets much longer. */
void fa_cuda_paged_sm90_pair(const struct fa_paged_attention *p,
                             const struct fa_cuda_paged_plan *plan,
                             struct fa_cuda_paged_item *items, uint64_t *keys)
{
	const uint32_t n = plan->forward_blocks;
	uint64_t longest = 0, longest_own = 0;
	uint32_t at = 0;

	if (!plan->forward->keys || plan->forward_items < 2)
		return;
	for (uint32_t i = 0; i < (n + 1) / 2; i++) {
		const uint64_t cost = (keys[i] >> 32) +
		                      (i == n - 1 - i ? 0 : keys[n - 1 - i] >> 32);

		longest = cost > longest ? cost : longest;
	}
	pair_middles(plan, items, keys);
	for (uint32_t i = 0; i < plan->forward_items; i++)
		pair_own(p, plan, items, i, NULL, &longest_own);
	if (longest_own > longest + longest / 8)
		return;
	for (uint32_t i = 0; i < plan->forward_items; i++)
		at += pair_own(p, plan, items, i, &keys[at], &longest_own);
	qsort(keys, n, sizeof(*keys), fa_cuda_paged_compare_blocks);
	for (uint32_t i = 0; i < n; i++)
		keys[i] = UINT32_MAX - block_of(plan, items, keys[i]);
}

static double pairs_seen(const struct fa_paged_attention *p, int32_t b)
{
	const double n_q = p->step->cu_new[b + 1] - p->step->cu_new[b];
	double keys = p->step->lengths[b];

	if (p->causal)
		keys -= (n_q < keys ? n_q : keys) / 2;
	if (p->window_left >= 0 && (p->causal || p->window_right >= 0)) {
		const double window = 1 + (double)p->window_left +
		                      (p->causal ? 0 : (double)p->window_right);

		keys = window < keys ? window : keys;
	}
	return n_q * keys;
}

void fa_cuda_paged_sm90_partition(const struct fa_cuda_chip *chip,
                                  const struct fa_paged_attention *p,
                                  struct fa_cuda_paged_plan *plan)
{
	const struct fa_cuda_paged_kernel *kernel = plan->forward;
	const struct fa_paged_cache *cache = p->cache;
	const int32_t slices = ceil_div(cache->head_dim_v, kernel->dim_v);
	const int32_t group = p->heads / cache->kv_heads, parts = p->heads * slices;
	int64_t grid = (int64_t)plan->forward_blocks * parts, blocks;
	uint32_t longest = 0;
	double pairs = 0;

	if (!kernel->keys || plan->forward_blocks == 0)
		return;
	/* All blocks of rows run at once: a pair would take longer than its longer block. */
	plan->forward_pairs = grid > chip->sms;
	if (plan->forward_pairs)
		grid = (int64_t)ceil_div(plan->forward_blocks, 2) * parts;
	for (int32_t b = 0; b < p->step->batch; b++) {
		pairs += pairs_seen(p, b);
		longest = p->step->lengths[b] > longest ? p->step->lengths[b] : longest;
	}

	/* A section has the heads whose keys fit the part of L2; within it the longest pairs run
	 * first. */
	if (longest > 0) {
		const int64_t kv_bytes = (int64_t)longest * (kernel->dim + kernel->dim_v) * 2;
		const int64_t fit = chip->l2_bytes / L2_PART / kv_bytes;
		const int32_t sections = ceil_div(cache->kv_heads, fit < 1 ? 1 : fit);

		plan->forward_section = (uint32_t)(ceil_div(cache->kv_heads, sections) * group);
	} else {
		plan->forward_section = (uint32_t)parts;
	}

	/* Each thread block computes long enough, and they fill whole waves. */
	plan->forward_ns = (uint64_t)(pairs * 2 * (kernel->dim + kernel->dim_v) * parts /
	                              FA_CUDA_SM_FLOPS_PER_NS / (chip->sms > 0 ? chip->sms : 1));
	blocks = (int64_t)(plan->forward_ns / BLOCK_NS + 1);
	if (chip->sms > 0 && blocks * chip->sms < grid)
		grid = blocks * chip->sms;
	plan->forward_grid = (uint32_t)grid;
}

void fa_cuda_paged_sm90_maps(const struct fa_cuda_paged_plan *plan,
                             const struct fa_paged_attention *p,
                             struct fa_cuda_paged_launch *launch)
{
	const struct fa_cuda_paged_kernel *kernel = plan->forward;
	struct fa_cuda_paged_attention *args = &launch->args.attention;
	const struct fa_cuda_pages *pages = &args->pages;

	args->box_keys = box_keys(kernel, p->cache->page_tokens);
	args->loaders = loaders(kernel, args->box_keys);
	launch->n_maps = FA_CUDA_MAPS;
	launch->maps[FA_CUDA_MAP_Q] = map_q(kernel, p);
	launch->maps[FA_CUDA_MAP_K] = map_pages(p->cache, args->box_keys, pages->k, pages->k_row,
	                                        p->cache->head_dim);
	launch->maps[FA_CUDA_MAP_V] = map_pages(p->cache, args->box_keys, pages->v, pages->v_row,
	                                        p->cache->head_dim_v);
}

void fa_cuda_paged_sm90_map_latent(const struct fa_paged_attention *p,
                                   struct fa_cuda_paged_launch *launch)
{
	const struct fa_cuda_paged_attention *args = &launch->args.attention;

	launch->n_maps = FA_CUDA_MAPS;
	for (int i = 0; i < FA_CUDA_MAPS; i++) /* only that of K is used */
		launch->maps[i] = map_pages(p->cache, args->box_keys, args->pages.k,
		                            args->pages.k_row, p->cache->head_dim);
}

void fa_cuda_paged_sm90_launch(const struct fa_cuda_paged_plan *plan,
                               const struct fa_paged_attention *p,
                               struct fa_cuda_paged_launch *launch)
{
	const struct fa_cuda_paged_kernel *kernel = plan->forward;
	struct fa_cuda_paged_attention *args = &launch->args.attention;

	if (!kernel->keys)
		return;
	launch->grid_x = plan->forward_grid;
	args->attention.slices = args->slices;
	args->attention.triples = p->heads * args->slices;
	args->attention.blocks_m = (int32_t)plan->forward_blocks;
	args->attention.pairs = plan->forward_pairs;
	args->attention.units_m = ceil_div(plan->forward_blocks, plan->forward_pairs ? 2 : 1);
	args->attention.section = (int32_t)plan->forward_section;
	args->section_pairs = plan->forward_section * (uint32_t)args->attention.units_m;
	args->pairs = (uint32_t)args->attention.triples * (uint32_t)args->attention.units_m;
	fa_cuda_paged_sm90_maps(plan, p, launch);
}

/* ---- a client's own pages */

/* Strides of dims of size 1 do not matter. */
static struct fa_cuda_map map_own(const struct fa_cuda_paged_kernel *kernel,
                                  const struct fa_paged_own *own,
                                  const struct fa_attention_tensor *tensor, int32_t dim)
{
	return (struct fa_cuda_map){
		.data = tensor->data,
		.dims = { (uint64_t)dim, (uint64_t)own->page_tokens, (uint64_t)own->kv_heads,
		          (uint64_t)own->pages },
		.strides = { (uint64_t)(tensor->stride_token * 2),
		             own->kv_heads > 1 ? (uint64_t)(tensor->stride_head * 2) : 16,
		             own->pages > 1 ? (uint64_t)(tensor->stride_batch * 2) : 16 },
		.box = { 64, (uint32_t)box_keys(kernel, own->page_tokens), 1, 1 },
	};
}

/* The map's boxes are strips; @bytes: of a row. */
static struct fa_cuda_map map_rows(const struct fa_paged_own *own,
                                   const struct fa_attention_tensor *tensor, int64_t bytes,
                                   int64_t element_bytes)
{
	return (struct fa_cuda_map){
		.data = tensor->data,
		.dims = { (uint64_t)bytes / 2, (uint64_t)own->page_tokens, (uint64_t)own->kv_heads,
		          (uint64_t)own->pages },
		.strides = { (uint64_t)(tensor->stride_token * element_bytes),
		             own->kv_heads > 1 ? (uint64_t)(tensor->stride_head * element_bytes)
		                               : 16,
		             own->pages > 1 ? (uint64_t)(tensor->stride_batch * element_bytes)
		                            : 16 },
		.box = { (uint32_t)bytes / 2, FA_CUDA_PAGED_STRIP, 1, 1 },
		.in_rows = 1,
	};
}

void fa_cuda_paged_sm90_map_rows(const struct fa_paged_own *own,
                                 struct fa_cuda_paged_launch *launch)
{
	const int64_t bytes = own->store == FA_PAGED_PLAIN ? 2 : 1;

	launch->n_maps = FA_CUDA_MAPS;
	launch->maps[FA_CUDA_MAP_K] = map_rows(own, &own->k, own->head_dim * bytes, bytes);
	launch->maps[FA_CUDA_MAP_V] = map_rows(own, &own->v, own->head_dim_v * bytes, bytes);
	launch->maps[FA_CUDA_MAP_Q] = launch->maps[FA_CUDA_MAP_K]; /* unused */
}

bool fa_cuda_paged_sm90_can_map(const struct fa_paged_own *own)
{
	const int64_t bytes = own->store == FA_PAGED_PLAIN ? 2 : 1;
	const struct fa_attention_tensor *const tensors[] = { &own->k, &own->v };

	if (own->page_tokens % FA_CUDA_PAGED_STRIP != 0)
		return false;
	for (int i = 0; i < 2; i++) {
		const int64_t strides[] = { tensors[i]->stride_token,
			                    own->kv_heads > 1 ? tensors[i]->stride_head : 16,
			                    own->pages > 1 ? tensors[i]->stride_batch : 16 };

		if ((uintptr_t)tensors[i]->data % 16 != 0)
			return false;
		for (int j = 0; j < 3; j++)
			if (strides[j] <= 0 || strides[j] * bytes % 16 != 0 || strides[j] >> 39)
				return false;
	}
	return true;
}

void fa_cuda_paged_sm90_launch_own(const struct fa_cuda_paged_plan *plan,
                                   const struct fa_paged_attention *p,
                                   const struct fa_paged_own *own,
                                   struct fa_cuda_paged_launch *launch)
{
	fa_cuda_paged_sm90_launch(plan, p, launch);
	launch->maps[FA_CUDA_MAP_K] = map_own(plan->forward, own, &own->k, own->head_dim);
	launch->maps[FA_CUDA_MAP_V] = map_own(plan->forward, own, &own->v, own->head_dim_v);
}
