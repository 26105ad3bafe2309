/*
 * The plan of sequences with few new tokens: items, shared prefixes, suffixes, and key tiles, which
 * paged-plan-partition.c divides over thread blocks.
 */
#include "kernels/cuda/common/packed-args.h"
#include "kernels/cuda/paged-plan-latent.h"
#include "kernels/cuda/paged-plan-prefix.h"
#include "kernels/cuda/paged-plan-private.h"

#include <string.h>

/* Fixed splits: least tiles of a split, and splits per part before splits grow. */
#define SPLIT_TILES_MIN 8
#define SPLITS_MAX 128

/* The same for all but very long parts. */
static uint32_t split_tiles_of(uint32_t tiles)
{
	uint32_t split_tiles = SPLIT_TILES_MIN;

	while (split_tiles < fa_cuda_paged_ceil_div(tiles, SPLITS_MAX))
		split_tiles *= 2;
	return split_tiles;
}

struct decode_build {
	const struct fa_paged_attention *p;
	struct fa_cuda_paged_plan *plan;
	struct fa_cuda_paged_item *items;
	struct fa_cuda_paged_split *splits; /* NULL: not FA_CUDA_PAGED_SPLIT */
	struct fa_cuda_paged_suffix *suffixes;
	uint32_t *tokens;
	uint32_t group, slices, n;
	uint64_t tiles, parts;
};

static int too_many_tiles(char *text, size_t text_bytes)
{
	return fa_cuda_paged_fail(text, text_bytes,
	                          "a step of more than %d tiles of %d tokens is not supported",
	                          INT32_MAX, FA_CUDA_PAGED_TILE);
}

/* Completes and appends the next item, whose tokens and rows are set. */
static int add_item(struct decode_build *build, char *text, size_t text_bytes)
{
	const struct fa_paged_attention *p = build->p;
	struct fa_cuda_paged_item *item = &build->items[build->n];
	const uint64_t rows = (uint64_t)item->n_q * build->group;
	uint32_t most = (uint32_t)build->plan->decode->rows, split_tiles = 0, tiles = 1;
	uint64_t parts;

	if (rows > (uint64_t)INT32_MAX * most)
		return too_many_tiles(text, text_bytes);
	/* A team computes so many at once. */
	item->row_blocks = fa_cuda_paged_ceil_div(rows, (uint64_t)most * build->plan->team);
	parts = (uint64_t)p->cache->kv_heads * item->row_blocks * build->slices;
	if (item->n_k > item->begin)
		tiles = fa_cuda_paged_ceil_div(item->n_k - item->begin / FA_CUDA_PAGED_STRIP *
		                                                   FA_CUDA_PAGED_STRIP,
		                               FA_CUDA_PAGED_TILE);
	if (p->deterministic) {
		split_tiles = split_tiles_of(tiles);
		tiles = fa_cuda_paged_ceil_div(tiles, split_tiles);
	}
	item->tile = (uint32_t)build->tiles;
	item->tiles = tiles;
	item->parts = (uint32_t)parts;
	if (build->splits) {
		build->splits[build->n] = (struct fa_cuda_paged_split){
			.split_tiles = split_tiles,
			.parts = (uint32_t)build->parts,
			.suffixes = FA_CUDA_PAGED_NO_SUFFIX,
		};
	}
	most = rows < most ? (uint32_t)rows : most;
	if (build->plan->part_rows < most)
		build->plan->part_rows = most;
	build->tiles += parts * tiles;
	build->parts += parts;
	if (parts > INT32_MAX || build->tiles > INT32_MAX)
		return too_many_tiles(text, text_bytes);
	build->n++;
	return 0;
}

static int add_sequences(struct decode_build *build, const struct fa_cuda_paged_groups *groups,
                         char *text, size_t text_bytes)
{
	const struct fa_paged_attention *p = build->p;
	const int64_t left = fa_cuda_paged_left(p);

	for (int32_t b = 0; b < p->step->batch; b++) {
		struct fa_cuda_paged_item *item = &build->items[build->n];
		int r;

		if (fa_cuda_paged_n_new(p->step, b) == 0 ||
		    fa_cuda_paged_is_prefill(p, build->plan->prefill_tokens, b))
			continue;
		fa_cuda_paged_item_of(p->step, b, item);
		if (left >= 0 && (int64_t)item->n_k - item->n_q - left > item->begin)
			item->begin = (uint32_t)((int64_t)item->n_k - item->n_q - left);
		if (groups->n > 0 && groups->group_of[b] != FA_CUDA_PAGED_NO_GROUP)
			item->begin = groups->groups[groups->group_of[b]].end;
		build->plan->appends &= item->append >= item->begin;
		if (fa_cuda_paged_has_tree(p, b))
			item->tree_start = p->tree_start[b];
		r = add_item(build, text, text_bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

static int add_prefixes(struct decode_build *build, const struct fa_cuda_paged_groups *groups,
                        char *text, size_t text_bytes)
{
	uint32_t first = 0;

	for (uint32_t i = 0; i < groups->n; i++) {
		const struct fa_cuda_paged_group *group = &groups->groups[i];
		struct fa_cuda_paged_item *item = &build->items[build->n];
		int r;

		fa_cuda_paged_item_of(build->p->step, (int32_t)group->any, item);
		item->first_q = first;
		item->n_q = group->n_tokens;
		item->n_k = item->append = group->end;
		first += group->n_tokens;
		r = add_item(build, text, text_bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

static void add_suffixes(struct decode_build *build, const struct fa_cuda_paged_groups *groups)
{
	const struct fa_paged_step *step = build->p->step;
	const uint32_t most = (uint32_t)build->plan->decode->rows;
	uint32_t n_suffixes = 0;

	for (uint32_t i = 0; i < groups->n; i++) {
		build->splits[i].suffixes = n_suffixes;
		n_suffixes += groups->groups[i].suffixes;
		build->items[i].n_q = 0;
	}
	for (int32_t b = 0, at = (int32_t)groups->n; b < step->batch; b++) {
		const uint32_t n_new = fa_cuda_paged_n_new(step, b), rows = n_new * build->group;
		const uint32_t prefix = groups->group_of[b];
		struct fa_cuda_paged_split *split;
		struct fa_cuda_paged_item *item;

		if (n_new == 0 ||
		    fa_cuda_paged_is_prefill(build->p, build->plan->prefill_tokens, b))
			continue;
		at++;
		if (prefix == FA_CUDA_PAGED_NO_GROUP)
			continue;
		item = &build->items[prefix];
		split = &build->splits[prefix];
		build->splits[at - 1].suffixes = split->suffixes + split->n_suffixes;
		for (uint32_t row = 0; row < rows; row += most)
			build->suffixes[split->suffixes + split->n_suffixes++] =
				(struct fa_cuda_paged_suffix){
					.item = (uint32_t)at - 1,
					.prefix_item = prefix,
					.row = item->n_q * build->group + row,
					.rows = rows - row < most ? rows - row : most,
					.first_q = step->cu_new[b],
					.first = row,
				};
		for (uint32_t i = 0; i < n_new; i++)
			build->tokens[item->first_q + item->n_q++] = step->cu_new[b] + i;
	}
}

static struct fa_cuda_paged_partial_range partials_of(const struct decode_build *build,
                                                      uint32_t item, uint32_t row_block)
{
	const struct fa_cuda_paged_item *i = &build->items[item];
	const uint32_t part = row_block * build->slices;

	return (struct fa_cuda_paged_partial_range){
		.tile = i->tile + part * i->tiles,
		.tiles = i->tiles,
		.parts = build->splits[item].parts + part,
		.row_blocks = i->row_blocks,
	};
}

static void finish_suffixes(const struct decode_build *build, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct fa_cuda_paged_suffix *suffix = &build->suffixes[i];

		suffix->own = partials_of(build, suffix->item,
		                          i - build->splits[suffix->item].suffixes);
		suffix->prefix = partials_of(build, suffix->prefix_item, 0);
	}
}

int fa_cuda_paged_plan_decode(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                              const struct fa_cuda_paged_groups *groups, char *blob, size_t *at,
                              struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const bool splits = plan->decode->kind == FA_CUDA_PAGED_SPLIT;
	const uint32_t n = plan->decode_items + groups->n;
	bool parted;
	struct decode_build build = {
		.p = p,
		.plan = plan,
		.group = (uint32_t)(p->heads / p->cache->kv_heads),
		.slices = fa_cuda_paged_slices(p, plan->decode),
	};
	const bool latent = plan->decode->kind == FA_CUDA_PAGED_LATENT;
	struct fa_cuda_chip teams = *chip;
	uint32_t n_suffixes = 0, n_tokens = 0, aligned;
	int r;

	plan->team = latent ? fa_cuda_paged_latent_team(plan, p) : 1;
	teams.sms = chip->sms > (int32_t)plan->team ? chip->sms / (int32_t)plan->team : 1;
	/* What the kernel can count (sm90/latent_join.h). */
	if (latent && teams.sms > (int32_t)FA_CUDA_SHARE_PARTS_MAX)
		teams.sms = (int32_t)FA_CUDA_SHARE_PARTS_MAX;

	for (uint32_t i = 0; i < groups->n; i++) {
		n_suffixes += groups->groups[i].suffixes;
		n_tokens += groups->groups[i].n_tokens;
	}
	plan->decode_items_at = *at;
	*at += fa_cuda_paged_align(n * sizeof(*build.items));
	if (splits) {
		plan->splits_at = *at;
		*at += n * sizeof(*build.splits);
		plan->suffixes_at = *at;
		*at += n_suffixes * sizeof(*build.suffixes);
		plan->tokens_at = *at;
		*at += fa_cuda_paged_align(n_tokens * sizeof(*build.tokens));
		build.splits = (void *)(blob + plan->splits_at);
		build.suffixes = (void *)(blob + plan->suffixes_at);
		build.tokens = (void *)(blob + plan->tokens_at);
	}
	build.items = (void *)(blob + plan->decode_items_at);
	r = add_prefixes(&build, groups, text, text_bytes);
	if (r == 0)
		r = add_sequences(&build, groups, text, text_bytes);
	if (r < 0)
		return r;
	if (groups->n > 0)
		add_suffixes(&build, groups);
	aligned = latent ? fa_cuda_paged_latent_align(build.items, n, (uint32_t)teams.sms) : 0;
	if (aligned > 0)
		teams.sms = (int32_t)aligned;
	plan->decode_items = n;
	plan->prefixes = groups->n;
	plan->block_items_at = *at;
	parted = fa_cuda_paged_partition(
		&teams,
		p->deterministic || aligned > 0 ? 0 : fa_cuda_paged_epilogue_tiles(chip, p->cache),
		build.items, n, plan, (void *)(blob + plan->block_items_at));
	finish_suffixes(&build, n_suffixes);
	*at += fa_cuda_paged_align(plan->decode_grid * sizeof(uint32_t));
	if (!splits && n <= FA_CUDA_PAGED_INLINE_ITEMS)
		memcpy(plan->first_items, build.items, n * sizeof(*build.items));
	if (latent) {
		plan->box_keys = fa_cuda_paged_latent_box(p, build.items, n);
		/* Unless all blocks run at once, those that wait would keep others from starting. */
		plan->join_wait_ns = plan->decode_grid * plan->team <= (uint32_t)chip->sms
		                             ? FA_CUDA_PACKED_WAIT_NS
		                             : 0;
	}
	plan->places = 2 * plan->decode_grid * plan->team;
	plan->partial_rows = splits ? plan->part_rows : (uint32_t)plan->decode->rows;
	if (!parted)
		plan->part_rows = 0;
	if (splits)
		plan->places = (uint32_t)(p->deterministic ? build.tiles
		                                           : build.parts + plan->decode_grid);
	plan->workspace_bytes += (size_t)plan->places * plan->partial_rows *
	                         ((size_t)plan->decode->dim_v + 2) * sizeof(float);
	return 0;
}
