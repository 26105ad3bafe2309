#include "kernels/cuda/paged-plan-latent.h"

#include "kernels/cuda/common/packed-args.h"
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/paged-plan-sm90.h"
#include "kernels/cuda/sm90/latent_kernels.h"

/* Times of a tile of keys on the whole chip: to compute it for 64 rows, and to load it (ns, H100). */
#define COMPUTE_NS 10
#define LOAD_NS 25

/* Tiles that a block could compute while a segment begins and ends; the least of a range. */
#define SEGMENT_TILES 6
#define RANGE_TILES_MIN 2

const struct fa_cuda_paged_kernel *fa_cuda_paged_latent_find(const struct fa_cuda_chip *chip,
                                                             const struct fa_paged_attention *p,
                                                             uint32_t prefill_tokens)
{
	const struct fa_paged_cache *cache = p->cache;
	const uint64_t group = (uint64_t)(p->heads / cache->kv_heads);

	if (cache->v_offset != 0 || p->softcap > 0 || p->alibi_slopes || !(p->scale > 0) ||
	    p->deterministic || !fa_cuda_paged_tensor_aligned(&p->q, 2) ||
	    !fa_cuda_paged_tensor_aligned(&p->out, 2) || group > FA_SM90_LATENT_HEADS_MAX)
		return NULL;
	for (int32_t b = 0; b < p->step->batch; b++)
		if (fa_cuda_paged_has_tree(p, b) ||
		    (!fa_cuda_paged_is_prefill(p, prefill_tokens, b) &&
		     fa_cuda_paged_n_new(p->step, b) * group > FA_SM90_LATENT_ROWS_MAX))
			return NULL;
	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];

		const uint32_t stores = kernel->stores ? kernel->stores : 1u << FA_PAGED_PLAIN;

		if (kernel->kind == FA_CUDA_PAGED_LATENT && kernel->dtype == cache->dtype &&
		    (stores >> cache->store & 1) != 0 && kernel->dim == cache->head_dim &&
		    kernel->dim_v == cache->head_dim_v && fa_cuda_paged_kernel_runs(kernel, chip))
			return kernel;
	}
	return NULL;
}

uint32_t fa_cuda_paged_latent_team(const struct fa_cuda_paged_plan *plan,
                                   const struct fa_paged_attention *p)
{
	const uint64_t group = (uint64_t)(p->heads / p->cache->kv_heads);
	double least = 0;
	uint32_t best = 1;

	for (uint32_t team = 1; team <= FA_SM90_LATENT_TEAM_MAX; team++) {
		const uint32_t each = team * COMPUTE_NS > LOAD_NS ? team * COMPUTE_NS : LOAD_NS;
		double ns = 0;

		for (int32_t b = 0; b < p->step->batch; b++) {
			const uint32_t n_new = fa_cuda_paged_n_new(p->step, b);

			if (!fa_cuda_paged_is_prefill(p, plan->prefill_tokens, b))
				ns += (double)fa_cuda_paged_ceil_div(
					      n_new * group,
					      (uint64_t)team * (uint32_t)plan->decode->rows) *
				      p->step->lengths[b] * each;
		}
		if (team == 1 || ns < least) {
			least = ns;
			best = team;
		}
	}
	return best;
}

/* Range size, in tiles, with the time of a segment's ends. */
static uint64_t cost_of(uint64_t tiles, uint64_t segments)
{
	return tiles + segments * SEGMENT_TILES;
}

static uint64_t ranges_of(const struct fa_cuda_paged_item *items, uint32_t n, uint64_t size)
{
	uint64_t ranges = 0;

	for (uint32_t i = 0; i < n; i++)
		ranges += items[i].parts * fa_cuda_paged_ceil_div(items[i].tiles, size);
	return ranges;
}

/* Returns the smallest size of ranges that begin anew with each part; there are at most @teams. */
static uint64_t smallest_range(const struct fa_cuda_paged_item *items, uint32_t n, uint32_t teams,
                               uint64_t low, uint64_t high)
{
	while (low < high) {
		const uint64_t middle = low + (high - low) / 2;

		if (ranges_of(items, n, middle) <= teams)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

uint32_t fa_cuda_paged_latent_align(struct fa_cuda_paged_item *items, uint32_t n, uint32_t teams)
{
	uint64_t tiles = 0, parts = 0, longest = 0, even, size, at = 0;
	bool alike = true;

	for (uint32_t i = 0; i < n; i++) {
		tiles += (uint64_t)items[i].tiles * items[i].parts;
		parts += items[i].parts;
		longest = items[i].tiles > longest ? items[i].tiles : longest;
		alike &= items[i].tiles == items[0].tiles;
	}
	even = fa_cuda_paged_ceil_div(tiles, teams);
	if (parts > teams) {
		const uint64_t each = (parts + teams - 1) / teams;

		return alike && parts % each == 0 &&
		                       cost_of(each * longest, each) <= cost_of(even, each + 1)
		               ? (uint32_t)(parts / each)
		               : 0;
	}
	even = even > RANGE_TILES_MIN ? even : RANGE_TILES_MIN;
	size = smallest_range(items, n, teams, even, longest > even ? longest : even);
	if (cost_of(size, 1) > cost_of(even, 2) || ranges_of(items, n, size) * size > INT32_MAX)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		items[i].tiles = fa_cuda_paged_ceil_div(items[i].tiles, size) * (uint32_t)size;
		items[i].tile = (uint32_t)at;
		at += (uint64_t)items[i].tiles * items[i].parts;
	}
	return (uint32_t)(at / size);
}

int32_t fa_cuda_paged_latent_box(const struct fa_paged_attention *p,
                                 const struct fa_cuda_paged_item *items, uint32_t n)
{
	uint32_t keys = FA_CUDA_PAGED_TILE;

	while ((uint32_t)p->cache->page_tokens % keys)
		keys /= 2;
	/* Tiles start at their sequence's first strip. */
	for (uint32_t i = 0; i < n; i++)
		while (items[i].begin / FA_CUDA_PAGED_STRIP * FA_CUDA_PAGED_STRIP % keys)
			keys /= 2;
	return (int32_t)keys;
}

void fa_cuda_paged_latent_launch(const struct fa_cuda_paged_plan *plan,
                                 const struct fa_paged_attention *p,
                                 struct fa_cuda_paged_launch *launch)
{
	struct fa_cuda_paged_attention *args = &launch->args.attention;

	args->loaders = plan->team;
	args->box_keys = plan->box_keys;
	args->join_wait_ns = plan->join_wait_ns;
	launch->grid_x = plan->decode_grid * plan->team;
	if (plan->decode->maps)
		fa_cuda_paged_sm90_map_latent(p, launch);
}
