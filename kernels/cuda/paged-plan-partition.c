/*
 * Decode: thread blocks get equal ranges of all key tiles. Finishing a part takes as long as a few
 * tiles: where part lengths differ, each part gets that many more, without tokens.
 */
#include "kernels/cuda/paged-plan-private.h"

/* Most thread blocks per part for kernels that do not reduce in levels; from this number on a
 * kernel that does is used. */
#define SHARES_MAX 64
#define SHARES_OF_LEVELS 33

/* END_BYTES: bytes of keys that an SM could load while a part is finished (more for quantised
 * pages). The others: the most tiles that this time may count for; ranges shorter than
 * RANGE_TILES_MIN stay unchanged (docs/kernels.md). */
#define END_BYTES 88000
#define END_BYTES_CODES 115000
#define END_TILES_MAX 8
#define RANGE_TILES_MIN 16

struct place {
	const struct fa_cuda_paged_item *item;
	uint32_t tile;         /* tiles of earlier items, epilogues included */
	uint32_t parts, tiles; /* parts of earlier items, and their tiles with tokens */
	/* Of the tile that follows the range: */
	uint32_t part;       /* counted over all items */
	uint32_t before;     /* tiles with tokens before it */
	uint32_t parts_done; /* parts whose tiles with tokens all lie before it */
};

/* Ascends from call to call. */
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
	/* A range without tokens of a part does not finish that part. */
	place->parts_done = place->parts + part + (in_part > ends);
}

/* Equal ranges for the fewest thread blocks that take no longer: they often begin where a sequence
 * of equal length does, so fewer parts are divided. */
static void set_ranges(uint64_t tiles, uint32_t blocks, struct fa_cuda_paged_plan *plan)
{
	plan->decode_grid = fa_cuda_paged_ceil_div(tiles, fa_cuda_paged_ceil_div(tiles, blocks));
	plan->tiles_each = (uint32_t)(tiles / plan->decode_grid);
	plan->tiles_extra = (uint32_t)(tiles % plan->decode_grid);
}

/* Returns the slowest block's tiles; finishing a part takes @end. Called before
 * plan->epilogue_tiles is applied. */
static uint32_t longest_of(const struct fa_cuda_paged_item *items,
                           const struct fa_cuda_paged_plan *plan, uint32_t end)
{
	struct place place = { .item = items };
	uint32_t at = 0, longest = 0;

	for (uint32_t block = 0; block < plan->decode_grid; block++) {
		const uint32_t part = place.part, before = place.before;
		uint32_t cost;

		at += plan->tiles_each + (block < plan->tiles_extra);
		find(&place, plan->epilogue_tiles, at - 1);
		cost = place.before - before + (place.parts_done - part) * end;
		longest = cost > longest ? cost : longest;
	}
	return longest;
}

uint32_t fa_cuda_paged_epilogue_tiles(const struct fa_cuda_chip *chip,
                                      const struct fa_paged_cache *cache)
{
	const uint32_t tile = (uint32_t)((cache->head_dim + cache->head_dim_v) *
	                                 fa_cuda_paged_stored_bytes(cache)) *
	                      FA_CUDA_PAGED_TILE;
	const uint32_t bytes = cache->store == FA_PAGED_PLAIN ? END_BYTES : END_BYTES_CODES;
	const uint32_t end = (bytes + tile / 2) / tile;

	/* Measured on compute capability 9.0 only. */
	if (chip->arch != 90)
		return 0;
	return end < END_TILES_MAX ? end : END_TILES_MAX;
}

bool fa_cuda_paged_partition(const struct fa_cuda_chip *chip, uint32_t end,
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
	/* More than SHARES_MAX results of a part take one thread block longer than they save. */
	if (!levels && plan->decode->kind != FA_CUDA_PAGED_LATENT && parts * SHARES_MAX < blocks)
		blocks = (uint32_t)parts * SHARES_MAX;
	set_ranges(tiles, blocks, plan);
	if (end > 0 && !alike && plan->tiles_each >= RANGE_TILES_MIN &&
	    tiles + parts * end <= INT32_MAX) {
		longest = longest_of(items, plan, end);
		plan->epilogue_tiles = end;
		set_ranges(tiles + parts * end, blocks, plan);
		if (longest_of(items, plan, end) >= longest) {
			plan->epilogue_tiles = 0;
			set_ranges(tiles, blocks, plan);
		}
	}
	if (levels && most > (SHARES_OF_LEVELS - 1) * (plan->tiles_each + (plan->tiles_extra > 0)))
		plan->decode = levels;
	parts = 0;
	for (uint32_t i = 0; i < n && plan->epilogue_tiles > 0; i++) {
		items[i].tile += (uint32_t)parts * plan->epilogue_tiles;
		items[i].tiles += plan->epilogue_tiles;
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
