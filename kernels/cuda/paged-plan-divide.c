/*
 * Attention by few rows: how many blocks of threads, and which tiles they have. Blocks have equal
 * ranges of all parts' tiles. A block also has to end each part that it has tiles of, which takes
 * as long as a few tiles: where parts are short here and long there, each part is given so many
 * tiles more, without tokens, and ranges then take equally long.
 */
#include "kernels/cuda/paged-plan-parts.h"

/* Blocks that share a part, about, where there is no kernel for more; and from how many on that is
 * the one, where there is. */
#define SHARES_MAX 64
#define SHARES_OF_LEVELS 33

/* What one SM's share of an H200's memory brings while the end of a part takes 2.5 us, and where
 * pages hold codes, whose end three groups of warps have to come to; and the tiles that stand for
 * it at most. Too many cost 1 % each, too few seven times as much. Blocks of fewer than so many are
 * left as they are. */
#define END_BYTES 88000
#define END_BYTES_CODES 115000
#define END_TILES_MAX 8
#define RANGE_TILES_MIN 16

/* Where a range of tiles ends, as items are gone through. */
struct place {
	const struct fa_cuda_paged_item *item;
	uint32_t tile;         /* tiles before the item, with those of ends */
	uint32_t parts, tiles; /* and parts, and tiles with tokens */
	/* Of the tile behind the range that was looked for: */
	uint32_t part;       /* its part, of all */
	uint32_t before;     /* tiles with tokens before it */
	uint32_t parts_done; /* parts that have tiles with tokens before it */
};

/* @tile: the range's last, not before the one that was looked for before. */
static void find(struct place *place, uint32_t ends, uint32_t tile)
{
	uint32_t each = place->item->tiles + ends, part, in_part;

	while (tile - place->tile >= each * place->item->parts) {
		place->tile += each * place->item->parts;
		place->parts += place->item->parts;
		place->tiles += place->item->tiles * place->item->parts;
		place->item++;
		each = place->item->tiles + ends;
	}
	part = (tile - place->tile) / each;
	in_part = tile - place->tile - part * each + 1;
	place->part = place->parts + part + (in_part == each);
	place->before = place->tiles + part * place->item->tiles +
	                (in_part > ends ? in_part - ends : 0);
	/* A range does not have the part of which it has nothing with tokens. */
	place->parts_done = place->parts + part + (in_part > ends);
}

/* Equal ranges for as few blocks as do not take longer: where all sequences are as long, they then
 * often begin with a part, and fewer parts are shared. */
static void set_ranges(uint64_t tiles, uint32_t blocks, struct fa_cuda_paged_plan *plan)
{
	plan->decode_grid = fa_cuda_paged_ceil_div(tiles, fa_cuda_paged_ceil_div(tiles, blocks));
	plan->tiles_each = (uint32_t)(tiles / plan->decode_grid);
	plan->tiles_extra = (uint32_t)(tiles % plan->decode_grid);
}

/* How long the block takes that takes longest, in tiles; an end takes @end. @items do not have
 * plan->tiles_end yet. */
static uint32_t longest_of(const struct fa_cuda_paged_item *items,
                           const struct fa_cuda_paged_plan *plan, uint32_t end)
{
	struct place place = { .item = items };
	uint32_t at = 0, longest = 0;

	for (uint32_t block = 0; block < plan->decode_grid; block++) {
		const uint32_t part = place.part, before = place.before;
		uint32_t cost;

		at += plan->tiles_each + (block < plan->tiles_extra);
		find(&place, plan->tiles_end, at - 1);
		cost = place.before - before + (place.parts_done - part) * end;
		longest = cost > longest ? cost : longest;
	}
	return longest;
}

uint32_t fa_cuda_paged_end_tiles(const struct fa_cuda_chip *chip,
                                 const struct fa_paged_cache *cache)
{
	const uint32_t tile = (uint32_t)((cache->head_dim + cache->head_dim_v) *
	                                 fa_cuda_paged_stored_bytes(cache)) *
	                      FA_CUDA_PAGED_TILE;
	const uint32_t bytes = cache->store == FA_PAGED_PLAIN ? END_BYTES : END_BYTES_CODES;
	const uint32_t end = (bytes + tile / 2) / tile;

	/* Nobody has measured others. */
	if (chip->arch != 90)
		return 0;
	return end < END_TILES_MAX ? end : END_TILES_MAX;
}

bool fa_cuda_paged_divide(const struct fa_cuda_chip *chip, uint32_t end,
                          struct fa_cuda_paged_item *items, uint32_t n,
                          struct fa_cuda_paged_plan *plan, uint32_t *block_items)
{
	uint64_t tiles = 0, parts = 0;
	uint32_t blocks = (chip->sms > 0 ? (uint32_t)chip->sms : 1) *
	                  (uint32_t)plan->decode->blocks;
	const struct fa_cuda_paged_kernel *const levels = fa_cuda_paged_levels(plan->decode);
	uint32_t at = 0, longest, most = 0;
	bool alike = true, parted = false;

	for (uint32_t i = 0; i < n; i++) {
		tiles += (uint64_t)items[i].tiles * items[i].parts;
		parts += items[i].parts;
		alike &= items[i].tiles == items[0].tiles;
		most = items[i].tiles > most ? items[i].tiles : most;
	}
	if (blocks > FA_CUDA_PAGED_BLOCKS)
		blocks = FA_CUDA_PAGED_BLOCKS;
	/* One block adds up all shares of a part: more than these take longer to add up than
	 * they save. */
	if (!levels && parts * SHARES_MAX < blocks)
		blocks = (uint32_t)parts * SHARES_MAX;
	set_ranges(tiles, blocks, plan);
	if (end > 0 && !alike && plan->tiles_each >= RANGE_TILES_MIN &&
	    tiles + parts * end <= INT32_MAX) {
		longest = longest_of(items, plan, end);
		plan->tiles_end = end;
		set_ranges(tiles + parts * end, blocks, plan);
		if (longest_of(items, plan, end) >= longest) {
			plan->tiles_end = 0;
			set_ranges(tiles, blocks, plan);
		}
	}
	if (levels && most > (SHARES_OF_LEVELS - 1) * (plan->tiles_each + (plan->tiles_extra > 0)))
		plan->decode = levels;
	parts = 0;
	for (uint32_t i = 0; i < n && plan->tiles_end > 0; i++) {
		items[i].tile += (uint32_t)parts * plan->tiles_end;
		items[i].tiles += plan->tiles_end;
		parts += items[i].parts;
	}
	for (uint32_t block = 0; block < plan->decode_grid; block++) {
		const uint32_t extra = block < plan->tiles_extra ? block : plan->tiles_extra;
		const uint64_t tile = (uint64_t)block * plan->tiles_each + extra;

		while (at + 1 < n && items[at + 1].tile <= tile)
			at++;
		block_items[block] = at;
		parted = parted || (tile - items[at].tile) % items[at].tiles > 0;
	}
	return parted;
}
