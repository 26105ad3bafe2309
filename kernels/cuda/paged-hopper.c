#include "kernels/cuda/paged-hopper.h"

/* As in plan.c: kernels count in int32 where boxes begin, up to one past the last row's. */
#define MAP_DIM_MAX (INT32_MAX - 256)
/* Slots of the maps: those beyond give zeros. */
#define SLOTS ((uint64_t)INT32_MAX)

/* As in plan.c: a block of threads takes about BLOCK_NS, or one pair. */
#define BLOCK_NS 200000
#define SM_FLOPS_PER_NS 6000

static int32_t ceil_div(int64_t a, int64_t b)
{
	return (int32_t)((a + b - 1) / b);
}

static struct fa_cuda_map map_q(const struct fa_cuda_paged_kernel *kernel,
                                const struct fa_paged_attention *p)
{
	const uint64_t tokens = p->step->cu_new[p->step->batch];

	/* Strides of dims of size 1 are never used, but must be such as strides may be. */
	return (struct fa_cuda_map){
		.data = p->q.data,
		.dims = { (uint64_t)p->cache->head_dim, tokens, (uint64_t)p->heads, 1 },
		.strides = { tokens > 1 ? (uint64_t)p->q.stride_token * 2 : 16,
		             p->heads > 1 ? (uint64_t)p->q.stride_head * 2 : 16, 16 },
		.box = { 64, (uint32_t)kernel->rows_q, 1, 1 },
	};
}

/* The largest number of keys that divides a tile and a page. */
static int32_t box_keys(const struct fa_cuda_paged_kernel *kernel,
                        const struct fa_paged_cache *cache)
{
	int32_t keys = kernel->keys;

	while (cache->page_tokens % keys)
		keys /= 2;
	return keys;
}

/*
 * K or V of one layer: (dim, token of the page, KV head, slot). Slots are 256 bytes apart
 * and pages many of them, so that a page's number is a coordinate.
 */
static struct fa_cuda_map map_pages(const struct fa_cuda_paged_kernel *kernel,
                                    const struct fa_paged_attention *p, const char *data,
                                    uint64_t row_bytes, int32_t dim)
{
	const struct fa_paged_cache *cache = p->cache;

	return (struct fa_cuda_map){
		.data = data,
		.dims = { (uint64_t)dim, (uint64_t)cache->page_tokens, (uint64_t)cache->kv_heads,
		          SLOTS },
		.strides = { row_bytes, row_bytes * (uint64_t)cache->page_tokens,
		             FA_PAGED_SLOT_BYTES },
		.box = { 64, (uint32_t)box_keys(kernel, cache), 1, 1 },
	};
}

/* Whether TMA can move Q; a pool always is as it must be. */
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

/* Whether rows of O can be written in pieces of 16 bytes. */
static bool out_aligned(const struct fa_attention_tensor *out)
{
	return (uintptr_t)out->data % 16 == 0 && out->stride_token * 2 % 16 == 0 &&
	       out->stride_head * 2 % 16 == 0;
}

static bool covers(const struct fa_cuda_paged_kernel *kernel, const struct fa_paged_attention *p)
{
	const struct fa_paged_cache *cache = p->cache;

	/* Kernels that do not attend have no dims. */
	if (!kernel->keys || kernel->dtype != cache->dtype || kernel->dim < cache->head_dim ||
	    !out_aligned(&p->out) || !q_mapped(kernel, p))
		return false;
	if ((int64_t)p->heads * ceil_div(cache->head_dim_v, kernel->dim_v) >
	    FA_CUDA_PAGED_PARTS_MAX)
		return false;
	return kernel->kind == FA_CUDA_PAGED_RICH ||
	       (!(p->softcap > 0) && !p->alibi_slopes && !p->sinks && p->scale > 0);
}

const struct fa_cuda_paged_kernel *fa_cuda_paged_hopper_find(const struct fa_cuda_chip *chip,
                                                             const struct fa_paged_attention *p)
{
	const struct fa_cuda_paged_kernel *best = NULL;
	int64_t least = INT64_MAX;

	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];
		int64_t cost;

		if (!fa_cuda_paged_kernel_runs(kernel, chip) || !covers(kernel, p))
			continue;
		/* Every slice of V computes the dot products anew. */
		cost = (int64_t)ceil_div(p->cache->head_dim_v, kernel->dim_v) *
		       (kernel->dim + kernel->dim_v) *
		       (kernel->kind == FA_CUDA_PAGED_RICH ? 24 : 21);
		if (cost < least) {
			least = cost;
			best = kernel;
		}
	}
	return best;
}

/* Pairs of a row and a key that it sees, about. */
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

void fa_cuda_paged_hopper_divide(const struct fa_cuda_chip *chip,
                                 const struct fa_paged_attention *p,
                                 struct fa_cuda_paged_plan *plan)
{
	const struct fa_cuda_paged_kernel *kernel = plan->forward;
	const struct fa_paged_cache *cache = p->cache;
	const int32_t slices = ceil_div(cache->head_dim_v, kernel->dim_v);
	const int32_t group = p->heads / cache->kv_heads, parts = p->heads * slices;
	int64_t grid = (int64_t)ceil_div(plan->forward_blocks, 2) * parts, blocks;
	uint32_t longest = 0;
	double pairs = 0;

	if (!kernel->keys || plan->forward_blocks == 0)
		return;
	for (int32_t b = 0; b < p->step->batch; b++) {
		/* Those that decode count here, too; they are little beside the others. */
		pairs += pairs_seen(p, b);
		longest = p->step->lengths[b] > longest ? p->step->lengths[b] : longest;
	}

	/* Heads whose keys fit half of L2 together run together, the longest pairs of all of
	 * them first; sections are about as large as each other. */
	if (longest > 0) {
		const int64_t kv_bytes = (int64_t)longest * (kernel->dim + kernel->dim_v) * 2;
		const int64_t fit = chip->l2_bytes / 2 / kv_bytes;
		const int32_t sections = ceil_div(cache->kv_heads, fit < 1 ? 1 : fit);

		plan->forward_section = (uint32_t)(ceil_div(cache->kv_heads, sections) * group);
	} else {
		plan->forward_section = (uint32_t)parts;
	}

	/* As many blocks of threads as make each compute long enough, in whole waves. */
	plan->forward_ns = (uint64_t)(pairs * 2 * (kernel->dim + kernel->dim_v) * parts /
	                              SM_FLOPS_PER_NS / (chip->sms > 0 ? chip->sms : 1));
	blocks = (int64_t)(plan->forward_ns / BLOCK_NS + 1);
	if (chip->sms > 0 && blocks * chip->sms < grid)
		grid = blocks * chip->sms;
	plan->forward_grid = (uint32_t)grid;
}

void fa_cuda_paged_hopper_launch(const struct fa_cuda_paged_plan *plan,
                                 const struct fa_paged_attention *p,
                                 struct fa_cuda_paged_launch *launch)
{
	const struct fa_cuda_paged_kernel *kernel = plan->forward;
	struct fa_cuda_paged_attention *args = &launch->args.attention;
	const struct fa_cuda_pages *pages = &args->pages;

	if (!kernel->keys)
		return;
	launch->grid_x = plan->forward_grid;
	args->attention.slices = args->slices;
	args->attention.triples = p->heads * args->slices;
	args->attention.blocks_m = (int32_t)plan->forward_blocks;
	args->attention.units_m = ceil_div(plan->forward_blocks, 2);
	args->attention.section = (int32_t)plan->forward_section;
	args->box_keys = box_keys(kernel, p->cache);
	launch->n_maps = FA_CUDA_MAPS;
	launch->maps[FA_CUDA_MAP_Q] = map_q(kernel, p);
	launch->maps[FA_CUDA_MAP_K] = map_pages(kernel, p, pages->k, pages->k_row,
	                                        p->cache->head_dim);
	launch->maps[FA_CUDA_MAP_V] = map_pages(kernel, p, pages->v, pages->v_row,
	                                        p->cache->head_dim_v);
}
