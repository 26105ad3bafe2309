#include "kernels/cuda/packed-units.h"

#include "kernels/cuda/packed-cost.h"
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/sm90/kernels.h"

#include <stdlib.h>

_Static_assert(FA_CUDA_PAGED_UNITS < FA_CUDA_PAGED_UNIT_PARTS, "a block has no more parts");

struct packing {
	int32_t shift;
	int32_t sets;
};

struct range {
	uint32_t begin, end;
};

/* Returns the item's blocks of rows that see its keys. */
static struct range blocks_of(const struct fa_cuda_packed_batch *batch, struct packing packing,
                              const struct fa_cuda_paged_item *item)
{
	const uint64_t groups = batch->rows / FA_SM90_GROUP_ROWS, sets = (uint64_t)packing.sets;
	const uint32_t first = item->packed.begin_row >> packing.shift;
	const uint32_t last = (item->packed.end_row - 1) >> packing.shift;

	return (struct range){ (uint32_t)(first * sets / groups),
		               fa_cuda_paged_ceil_div((last + 1) * sets, groups) };
}

static uint32_t count_blocks(const struct fa_cuda_packed_batch *batch, struct packing packing,
                             const struct fa_cuda_paged_item *item)
{
	const struct range blocks = blocks_of(batch, packing, item);

	return blocks.end - blocks.begin;
}

static void tiles_of(const struct fa_cuda_packed_batch *batch, struct packing packing,
                     const struct fa_cuda_paged_item *item, uint32_t block, uint32_t *ret_first,
                     uint32_t *ret_count)
{
	const uint32_t groups = batch->rows / FA_SM90_GROUP_ROWS;
	const uint32_t keys = batch->keys, sets = (uint32_t)packing.sets;
	const int64_t diagonal = item->packed.diagonal, end_row = item->packed.end_row;
	int64_t first_token = (int64_t)(block * groups / sets) << packing.shift;
	int64_t last_token = (int64_t)((block * groups + groups - 1) / sets + 1) << packing.shift;
	int64_t begin, end;

	if (first_token < item->packed.begin_row)
		first_token = item->packed.begin_row;
	last_token = (last_token < end_row ? last_token : end_row) - 1;
	begin = first_token + diagonal - batch->left;
	begin = begin > item->first ? begin : (int64_t)item->first;
	end = last_token + diagonal + batch->right + 1;
	end = end < item->n_k ? end : (int64_t)item->n_k;
	*ret_first = (uint32_t)begin / keys;
	*ret_count = (uint32_t)(end - 1) / keys - *ret_first + 1;
}

static uint32_t count_tiles(const struct fa_cuda_packed_batch *batch, struct packing packing,
                            const struct fa_cuda_paged_item *item, uint32_t block)
{
	uint32_t first, count;

	tiles_of(batch, packing, item, block, &first, &count);
	return count;
}

static enum fa_cuda_packed_kind item_of(const struct fa_cuda_packed_batch *batch, int32_t b,
                                        struct fa_cuda_paged_item *ret_item)
{
	return batch->item_of(batch->userdata, b, ret_item);
}

static bool pack(const struct fa_cuda_packed_batch *batch, struct packing *ret_packing)
{
	const int32_t group = (int32_t)(batch->heads / batch->kv_heads);
	uint64_t least = UINT64_MAX;

	for (int32_t shift = 6; shift >= 4; shift--) {
		const struct packing packing = { shift, group / (64 >> shift) };
		struct fa_cuda_paged_item item;
		uint64_t blocks = 0;

		if (group % (64 >> shift) || packing.sets > FA_CUDA_PAGED_UNIT_SETS_MAX)
			continue;
		for (int32_t b = 0; b < batch->batch; b++)
			if (item_of(batch, b, &item) == FA_CUDA_PACKED_ROWS)
				blocks += count_blocks(batch, packing, &item);
		if (blocks < least) {
			least = blocks;
			*ret_packing = packing;
		}
	}
	return least < UINT64_MAX;
}

/* What a division into units needs. */
struct division {
	uint64_t units, counters, partials;
};

/* Returns the parts of a block of rows over the suffixes from @first on. Blocks come in order:
 * suffixes that end before this one are skipped for those behind it, too. */
static uint32_t suffix_parts(const struct fa_cuda_packed_batch *batch, struct packing packing,
                             uint32_t most, int32_t *first, uint32_t block)
{
	uint32_t parts = 0;

	for (int32_t b = *first; batch->suffixes && b < batch->batch; b++) {
		struct fa_cuda_paged_item item;
		struct range blocks;

		if (item_of(batch, b, &item) != FA_CUDA_PACKED_SUFFIX)
			break;
		blocks = blocks_of(batch, packing, &item);
		if (blocks.begin > block)
			break;
		if (blocks.end <= block && b == *first)
			*first = b + 1;
		else if (block < blocks.end)
			parts += fa_cuda_paged_ceil_div(count_tiles(batch, packing, &item, block),
			                                most);
	}
	return parts;
}

static struct division divide(const struct fa_cuda_packed_batch *batch, struct packing packing,
                              uint32_t most)
{
	const uint64_t kv_heads = batch->kv_heads;
	struct division sum = { 0 };

	for (int32_t b = 0; b < batch->batch; b++) {
		struct fa_cuda_paged_item item;
		int32_t first = b + 1;
		uint32_t blocks;

		if (item_of(batch, b, &item) != FA_CUDA_PACKED_ROWS)
			continue;
		blocks = count_blocks(batch, packing, &item);
		for (uint32_t block = 0; block < blocks; block++) {
			const uint64_t parts = fa_cuda_paged_ceil_div(
						       count_tiles(batch, packing, &item, block),
						       most) +
			                       suffix_parts(batch, packing, most, &first, block);

			sum.units += parts * kv_heads;
			sum.counters += parts > 1 ? FA_CUDA_PACKED_COUNTERS(parts) * kv_heads : 0;
			sum.partials += parts > 1 ? parts * kv_heads : 0;
		}
	}
	return sum;
}

/* A quick estimate: an item's blocks lie evenly between its first and its last. */
struct rough {
	struct {
		uint32_t blocks, counts[2];
		bool suffix;
	} items[FA_CUDA_PAGED_UNITS];
	uint32_t n;
	uint64_t blocks, tiles; /* of all KV heads; a suffix has no blocks of its own */
	uint32_t more;          /* parts of a block over suffixes */
};

/* False: there are more items than units. */
static bool rough_init(struct rough *rough, const struct fa_cuda_packed_batch *batch,
                       struct packing packing)
{
	const uint64_t kv_heads = batch->kv_heads;

	uint64_t own = 0, suffixes = 0;

	rough->n = 0;
	rough->blocks = rough->tiles = 0;
	for (int32_t b = 0; b < batch->batch; b++) {
		struct fa_cuda_paged_item item;
		const enum fa_cuda_packed_kind kind = item_of(batch, b, &item);
		struct range blocks;
		uint32_t n, counts[2];

		if (kind == FA_CUDA_PACKED_NOTHING)
			continue;
		if (rough->n == FA_CUDA_PAGED_UNITS)
			return false;
		blocks = blocks_of(batch, packing, &item);
		n = blocks.end - blocks.begin;
		counts[0] = count_tiles(batch, packing, &item, blocks.begin);
		counts[1] = count_tiles(batch, packing, &item, blocks.end - 1);
		rough->items[rough->n].blocks = n;
		rough->items[rough->n].suffix = kind == FA_CUDA_PACKED_SUFFIX;
		rough->items[rough->n].counts[0] = counts[0];
		rough->items[rough->n++].counts[1] = counts[1];
		*(kind == FA_CUDA_PACKED_SUFFIX ? &suffixes : &own) += n;
		rough->tiles += ((uint64_t)(counts[0] + counts[1]) * n + 1) / 2 * kv_heads;
	}
	rough->blocks = own * kv_heads;
	rough->more = own > 0 ? fa_cuda_paged_ceil_div(suffixes, own) : 0;
	return rough->n > 0;
}

static struct division divide_roughly(const struct rough *rough, uint64_t kv_heads, uint32_t most)
{
	struct division sum = { 0 };

	for (uint32_t i = 0; i < rough->n; i++) {
		const uint32_t blocks = rough->items[i].blocks, more = rough->more;
		const uint64_t parts = fa_cuda_paged_ceil_div(rough->items[i].counts[0], most) +
		                       fa_cuda_paged_ceil_div(rough->items[i].counts[1], most);

		sum.units += (parts * blocks + 1) / 2 * kv_heads;
		if ((parts > 2 || more > 0) && !rough->items[i].suffix)
			sum.counters += FA_CUDA_PACKED_COUNTERS(parts / 2 + more) * blocks *
			                kv_heads;
	}
	return sum;
}

static bool fits(const struct fa_cuda_packed_batch *batch, struct division division)
{
	return division.units <= FA_CUDA_PAGED_UNITS &&
	       division.counters * (batch->rows / 16) <= FA_CUDA_PAGED_UNIT_COUNTERS;
}

/* Returns the least tiles per unit for which @slots units suffice; 0: none. */
static uint32_t least_tiles(const struct rough *rough, const struct fa_cuda_packed_batch *batch,
                            uint64_t slots, uint32_t longest)
{
	const uint64_t kv_heads = batch->kv_heads;
	uint32_t low = (uint32_t)((rough->tiles + slots - 1) / slots) - 1, high = longest;
	struct division division;

	if (rough->blocks > slots)
		return 0;
	/* A block of rows has less than one unit more than its tiles would fill. */
	if (rough->blocks < slots) {
		const uint64_t enough = rough->tiles / (slots - rough->blocks) + 1;

		if (enough < high) {
			division = divide_roughly(rough, kv_heads, (uint32_t)enough);
			if (division.units <= slots && fits(batch, division))
				high = (uint32_t)enough;
		}
	}
	if (high == longest) {
		division = divide_roughly(rough, kv_heads, high);
		if (division.units > slots || !fits(batch, division))
			return 0;
	}
	low = low < high ? low : high - 1; /* a limit of low tiles gives too many units */
	while (high - low > 1) {
		const uint32_t middle = low + (high - low) / 2;

		division = divide_roughly(rough, kv_heads, middle);
		if (division.units <= slots && fits(batch, division))
			high = middle;
		else
			low = middle;
	}
	return high;
}

/* Returns the launch's time in keys; negative: it does not fit. */
static double choose(const struct fa_cuda_chip *chip, const struct fa_cuda_packed_batch *batch,
                     struct packing packing, uint32_t longest, uint32_t *ret_most)
{
	struct rough rough;
	double best = -1;

	if (!rough_init(&rough, batch, packing))
		return -1;
	for (uint32_t waves = 1; waves <= FA_CUDA_PACKED_WAVES_MAX; waves++) {
		uint32_t most = least_tiles(&rough, batch, (uint64_t)chip->sms * waves, longest);

		/* With fewer parts, joining takes less time. */
		for (; most > 0 && most < 2 * longest; most += most / 4 + 1) {
			const double keys = waves * ((double)most * batch->keys +
			                             FA_CUDA_UNIT_KEYS) +
			                    fa_cuda_join_keys(fa_cuda_paged_ceil_div(longest, most),
			                                      waves == 1);

			if (best < 0 || keys < best) {
				best = keys;
				*ret_most = most;
			}
		}
	}
	return best;
}

/* As choose(), where units go to thread blocks longest first: their sum counts. */
static double choose_longest_first(const struct fa_cuda_chip *chip,
                                   const struct fa_cuda_packed_batch *batch, struct packing packing,
                                   uint32_t longest, uint32_t *ret_most)
{
	struct rough rough;
	double best = -1;

	if (!rough_init(&rough, batch, packing))
		return -1;
	for (uint32_t most = longest; most > 0; most -= most / 5 + 1) {
		const double join = fa_cuda_join_keys(
			fa_cuda_paged_ceil_div(longest, most) + rough.more, false);
		struct division division = divide_roughly(&rough, batch->kv_heads, most);
		double all, each;

		if (!fits(batch, division))
			break;
		all = (double)rough.tiles * batch->keys +
		      (double)division.units * FA_CUDA_UNIT_KEYS + (double)rough.blocks * join;
		each = (double)most * batch->keys + FA_CUDA_UNIT_KEYS;
		/* On average half of the multiprocessors have nothing left at the end. */
		all = all / chip->sms + all / (double)division.units / 2;
		all = (all > each ? all : each) + join;
		if (best < 0 || all < best) {
			best = all;
			*ret_most = most;
		}
	}
	return best;
}

bool fa_cuda_packed_units_choose(const struct fa_cuda_chip *chip,
                                 const struct fa_cuda_packed_batch *batch,
                                 struct fa_cuda_packed_units *ret_units)
{
	struct packing packing;
	struct division division;
	uint64_t blocks = 0;
	uint32_t longest = 1, most = 0;
	double keys;
	bool full;

	if (chip->sms <= 0 || chip->pack < 0 || !pack(batch, &packing))
		return false;
	for (int32_t b = 0; b < batch->batch; b++) {
		struct fa_cuda_paged_item item;
		uint32_t tiles;

		if (item_of(batch, b, &item) != FA_CUDA_PACKED_ROWS)
			continue;
		blocks += count_blocks(batch, packing, &item);
		tiles = fa_cuda_paged_ceil_div(item.n_k, batch->keys) + 1;
		longest = tiles > longest ? tiles : longest;
	}
	/* This many blocks of rows fill the GPU without being divided. */
	full = blocks * batch->kv_heads > (uint64_t)chip->sms * FA_CUDA_PACKED_WAVES_MAX;
	if (chip->pack <= 0 && full && !batch->longest_first)
		return false;
	keys = batch->suffixes ? -1 : choose(chip, batch, packing, longest, &most);
	if (batch->longest_first) {
		uint32_t most_listed = 0;
		const double listed = choose_longest_first(chip, batch, packing, longest,
		                                           &most_listed);

		if (keys < 0 || (listed >= 0 && listed < keys)) {
			keys = listed;
			most = most_listed;
		}
	}
	if (chip->pack > 0)
		most = (uint32_t)chip->pack;
	else if (keys < 0)
		return false;
	division = divide(batch, packing, most);
	if (!division.units || !fits(batch, division))
		return false;
	*ret_units = (struct fa_cuda_packed_units){
		.pack_shift = (uint32_t)packing.shift,
		.pack_sets = packing.sets,
		.tiles = most,
		.units = (uint32_t)division.units,
		.partials = (uint32_t)division.partials,
		/* Unless all units run at once, units that wait would keep others from starting. */
		.join_wait_ns = division.units <= (uint64_t)chip->sms &&
		                                division.units <= FA_CUDA_SHARE_PARTS_MAX
		                        ? FA_CUDA_PACKED_WAIT_NS
		                        : 0,
		.keys = keys > 0 ? keys : 0,
	};
	return true;
}

/* Units of an item, and of the suffixes behind it, are written here. */
struct writing {
	const struct fa_cuda_packed_batch *batch;
	struct packing packing;
	uint32_t most;
	const struct fa_cuda_paged_item *items; /* all */
	uint32_t at, n_suffixes;
	uint32_t seen; /* the first suffix, of 1 to n_suffixes, that a block at hand may see */
	struct fa_cuda_paged_unit *ret_units;
	struct division sum;
};

/* A block of rows of a KV head. */
struct block {
	uint32_t kv_head, number;
	uint32_t parts; /* over all items */
	uint64_t counter, partial;
};

/* Return the parts over the item, and over the suffixes that the block sees. */
static uint32_t own_parts(const struct writing *writing, uint32_t item, uint32_t block)
{
	const uint32_t count = count_tiles(writing->batch, writing->packing, &writing->items[item],
	                                   block);

	return fa_cuda_paged_ceil_div(count, writing->most);
}

static struct range blocks_of_suffix(const struct writing *writing, uint32_t i)
{
	return blocks_of(writing->batch, writing->packing, &writing->items[writing->at + i]);
}

/* True: there is a suffix @i that the block may see, as their blocks ascend. */
static bool may_see(const struct writing *writing, uint32_t i, uint32_t block)
{
	return i <= writing->n_suffixes && blocks_of_suffix(writing, i).begin <= block;
}

static uint32_t all_parts(struct writing *writing, uint32_t block)
{
	uint32_t parts = own_parts(writing, writing->at, block);

	if (block == 0)
		writing->seen = 1;
	while (may_see(writing, writing->seen, block) &&
	       blocks_of_suffix(writing, writing->seen).end <= block)
		writing->seen++;
	for (uint32_t i = writing->seen; may_see(writing, i, block); i++)
		if (block < blocks_of_suffix(writing, i).end)
			parts += own_parts(writing, writing->at + i, block);
	return parts;
}

static void pass_block(struct block *block)
{
	if (block->parts > 1) {
		block->counter += FA_CUDA_PACKED_COUNTERS(block->parts);
		block->partial += block->parts;
	}
	block->number++;
}

/* @part of @parts over @item, of which the first is @before among the block's parts. */
static void write_unit(struct writing *writing, const struct block *block, uint32_t item,
                       uint32_t part, uint32_t parts, uint32_t before)
{
	const struct fa_cuda_packed_batch *batch = writing->batch;
	const uint32_t groups = batch->rows / FA_SM90_GROUP_ROWS;
	const uint32_t sets = (uint32_t)writing->packing.sets,
		       shift = (uint32_t)writing->packing.shift;
	const uint32_t set = block->number * groups % sets;
	uint32_t first, count, begin, end;

	tiles_of(batch, writing->packing, &writing->items[item], block->number, &first, &count);
	begin = (uint32_t)((uint64_t)count * part / parts);
	end = (uint32_t)((uint64_t)count * (part + 1) / parts);
	writing->ret_units[writing->sum.units++] = (struct fa_cuda_paged_unit){
		.item = item,
		.head = block->kv_head * (batch->heads / batch->kv_heads) + set * (64u >> shift),
		.token = block->number * groups / sets << shift,
		.last = first + end - 1,
		.count = end - begin,
		.parts_set = before + part + block->parts * FA_CUDA_PAGED_UNIT_PARTS +
		             (set << FA_CUDA_PAGED_UNIT_SET_SHIFT),
		.partial = (uint32_t)block->partial,
		.counter = (uint32_t)block->counter,
	};
}

/* Units of the same part of the keys are neighbours, which read at about the same time. Returns the
 * first block behind those of the KV head. */
static struct block write_head(struct writing *writing, struct block first)
{
	const uint32_t blocks = count_blocks(writing->batch, writing->packing,
	                                     &writing->items[writing->at]);
	struct block block = first;
	uint32_t parts_max = 1;

	for (uint32_t part = 0; part < parts_max; part++) {
		block = first;
		while (block.number < blocks) {
			const uint32_t parts = own_parts(writing, writing->at, block.number);

			block.parts = all_parts(writing, block.number);
			parts_max = parts > parts_max ? parts : parts_max;
			if (part < parts)
				write_unit(writing, &block, writing->at, part, parts, 0);
			pass_block(&block);
		}
	}
	block.number = 0;
	block.kv_head++;
	return block;
}

/* As write_head(), over the suffixes. */
static struct block write_suffixes(struct writing *writing, struct block block)
{
	const uint32_t blocks = count_blocks(writing->batch, writing->packing,
	                                     &writing->items[writing->at]);

	while (block.number < blocks) {
		uint32_t before = own_parts(writing, writing->at, block.number);

		block.parts = all_parts(writing, block.number);
		for (uint32_t i = writing->seen; may_see(writing, i, block.number); i++) {
			const uint32_t item = writing->at + i;
			uint32_t parts;

			if (blocks_of_suffix(writing, i).end <= block.number)
				continue;
			parts = own_parts(writing, item, block.number);
			for (uint32_t part = 0; part < parts; part++)
				write_unit(writing, &block, item, part, parts, before);
			before += parts;
		}
		pass_block(&block);
	}
	block.number = 0;
	block.kv_head++;
	return block;
}

static int compare_items(const void *a, const void *b)
{
	const struct fa_cuda_paged_item *x = a, *y = b;

	if (x->n_k != y->n_k)
		return x->n_k < y->n_k ? 1 : -1;
	return x->first_q < y->first_q ? -1 : 1;
}

static uint32_t write_items(const struct fa_cuda_packed_batch *batch,
                            struct fa_cuda_paged_item *ret_items)
{
	uint32_t n = 0, rows = 0;

	for (int32_t b = 0; b < batch->batch; b++) {
		struct fa_cuda_paged_item item;
		const enum fa_cuda_packed_kind kind = item_of(batch, b, &item);

		if (kind == FA_CUDA_PACKED_NOTHING)
			continue;
		item.packed.suffix = FA_CUDA_PACKED_ALONE;
		if (kind == FA_CUDA_PACKED_SUFFIX)
			item.packed.suffix = ret_items[rows].packed.suffix = rows + 1;
		else
			rows = n;
		ret_items[n++] = item;
	}
	if (batch->longest_first && !batch->suffixes)
		qsort(ret_items, n, sizeof(*ret_items), compare_items);
	return n;
}

void fa_cuda_packed_units_write(const struct fa_cuda_packed_batch *batch,
                                const struct fa_cuda_packed_units *units,
                                struct fa_cuda_paged_item *ret_items,
                                struct fa_cuda_paged_unit *ret_units)
{
	const uint32_t n = write_items(batch, ret_items);
	struct writing writing = {
		.batch = batch,
		.packing = { (int32_t)units->pack_shift, units->pack_sets },
		.most = units->tiles,
		.items = ret_items,
		.ret_units = ret_units,
	};

	while (writing.at < n) {
		const struct block first = {
			.counter = writing.sum.counters,
			.partial = writing.sum.partials,
		};
		const uint32_t suffix = ret_items[writing.at].packed.suffix;
		struct block block = first;

		writing.n_suffixes = 0;
		for (uint32_t i = writing.at + 1; i < n && suffix != FA_CUDA_PACKED_ALONE &&
		                                  ret_items[i].packed.suffix == suffix;
		     i++)
			writing.n_suffixes++;
		while (block.kv_head < batch->kv_heads)
			block = write_head(&writing, block);
		writing.sum.counters = block.counter;
		writing.sum.partials = block.partial;
		for (block = first; writing.n_suffixes > 0 && block.kv_head < batch->kv_heads;)
			block = write_suffixes(&writing, block);
		writing.at += 1 + writing.n_suffixes;
	}
}
