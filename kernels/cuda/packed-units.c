#include "kernels/cuda/packed-units.h"

#include "kernels/cuda/packed-cost.h"
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/sm90/kernels.h"

#include <stdlib.h>

_Static_assert(FA_CUDA_PAGED_UNITS < FA_CUDA_PAGED_UNIT_PARTS, "a block has no more parts");

/* How rows are packed (struct fa_cuda_packed_units). */
struct packing {
	int32_t shift;
	int32_t sets;
};

static uint32_t blocks_of(const struct fa_cuda_packed_batch *batch, struct packing packing,
                          uint32_t n_q)
{
	const uint32_t tokens = 1u << packing.shift;
	const uint64_t groups = (uint64_t)fa_cuda_paged_ceil_div(n_q, tokens) *
	                        (uint64_t)packing.sets;

	return fa_cuda_paged_ceil_div(groups, batch->rows / FA_SM90_GROUP_ROWS);
}

static void tiles_of(const struct fa_cuda_packed_batch *batch, struct packing packing,
                     const struct fa_cuda_paged_item *item, uint32_t block, uint32_t *ret_first,
                     uint32_t *ret_count)
{
	const uint32_t groups = batch->rows / FA_SM90_GROUP_ROWS;
	const uint32_t keys = batch->keys, sets = (uint32_t)packing.sets;
	const int64_t diagonal = (int64_t)item->n_k - item->n_q;
	const int64_t first_token = (int64_t)(block * groups / sets) << packing.shift;
	int64_t last_token = (int64_t)((block * groups + groups - 1) / sets + 1) << packing.shift;
	int64_t begin = first_token + diagonal - batch->left, end;

	last_token = (last_token < item->n_q ? last_token : (int64_t)item->n_q) - 1;
	begin = begin > item->first ? begin : (int64_t)item->first;
	end = last_token + diagonal + batch->right + 1;
	end = end < item->n_k ? end : (int64_t)item->n_k;
	*ret_first = (uint32_t)begin / keys;
	*ret_count = (uint32_t)(end - 1) / keys - *ret_first + 1;
}

static bool item_of(const struct fa_cuda_packed_batch *batch, int32_t b,
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
			if (item_of(batch, b, &item))
				blocks += blocks_of(batch, packing, item.n_q);
		if (blocks < least) {
			least = blocks;
			*ret_packing = packing;
		}
	}
	return least < UINT64_MAX;
}

/* What units need, if none has more than a number of tiles. */
struct division {
	uint64_t units, counters, partials;
};

static struct division divide(const struct fa_cuda_packed_batch *batch, struct packing packing,
                              uint32_t most)
{
	const uint64_t kv_heads = batch->kv_heads;
	struct division sum = { 0 };

	for (int32_t b = 0; b < batch->batch; b++) {
		struct fa_cuda_paged_item item;
		uint32_t blocks, first, count;

		if (!item_of(batch, b, &item))
			continue;
		blocks = blocks_of(batch, packing, item.n_q);
		for (uint32_t block = 0; block < blocks; block++) {
			uint64_t parts;

			tiles_of(batch, packing, &item, block, &first, &count);
			parts = fa_cuda_paged_ceil_div(count, most);
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
	} items[FA_CUDA_PAGED_UNITS];
	uint32_t n;
	uint64_t blocks, tiles; /* of all items and KV heads */
};

/* False: there are more items than units. */
static bool rough_init(struct rough *rough, const struct fa_cuda_packed_batch *batch,
                       struct packing packing)
{
	const uint64_t kv_heads = batch->kv_heads;

	rough->n = 0;
	rough->blocks = rough->tiles = 0;
	for (int32_t b = 0; b < batch->batch; b++) {
		struct fa_cuda_paged_item item;
		uint32_t blocks, first, counts[2];

		if (!item_of(batch, b, &item))
			continue;
		if (rough->n == FA_CUDA_PAGED_UNITS)
			return false;
		blocks = blocks_of(batch, packing, item.n_q);
		tiles_of(batch, packing, &item, 0, &first, &counts[0]);
		tiles_of(batch, packing, &item, blocks - 1, &first, &counts[1]);
		rough->items[rough->n].blocks = blocks;
		rough->items[rough->n].counts[0] = counts[0];
		rough->items[rough->n++].counts[1] = counts[1];
		rough->blocks += blocks * kv_heads;
		rough->tiles += ((uint64_t)(counts[0] + counts[1]) * blocks + 1) / 2 * kv_heads;
	}
	return rough->n > 0;
}

static struct division divide_roughly(const struct rough *rough, uint64_t kv_heads, uint32_t most)
{
	struct division sum = { 0 };

	for (uint32_t i = 0; i < rough->n; i++) {
		const uint32_t blocks = rough->items[i].blocks;
		const uint64_t parts = fa_cuda_paged_ceil_div(rough->items[i].counts[0], most) +
		                       fa_cuda_paged_ceil_div(rough->items[i].counts[1], most);

		sum.units += (parts * blocks + 1) / 2 * kv_heads;
		sum.counters += parts > 2 ? FA_CUDA_PACKED_COUNTERS(parts / 2) * blocks * kv_heads
		                          : 0;
	}
	return sum;
}

static bool fits(const struct fa_cuda_packed_batch *batch, struct division division)
{
	return division.units <= FA_CUDA_PAGED_UNITS &&
	       division.counters * (batch->rows / 16) <= FA_CUDA_PAGED_UNIT_COUNTERS;
}

/* The smallest limit of tiles per unit for which @slots units suffice; 0: there is none. */
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

/* Chooses the most tiles of a unit. Returns the launch's time in keys; negative: it does not fit. */
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

/* As choose(), where units go to thread blocks longest first: then what counts is their sum. */
static double choose_longest_first(const struct fa_cuda_chip *chip,
                                   const struct fa_cuda_packed_batch *batch, struct packing packing,
                                   uint32_t longest, uint32_t *ret_most)
{
	struct rough rough;
	double best = -1;

	if (!rough_init(&rough, batch, packing))
		return -1;
	for (uint32_t most = longest; most > 0; most -= most / 5 + 1) {
		const double join = fa_cuda_join_keys(fa_cuda_paged_ceil_div(longest, most), false);
		struct division division = divide_roughly(&rough, batch->kv_heads, most);
		double all, each;

		if (!fits(batch, division))
			break;
		all = (double)rough.tiles * batch->keys +
		      (double)division.units * FA_CUDA_UNIT_KEYS + (double)rough.blocks * join;
		each = (double)most * batch->keys + FA_CUDA_UNIT_KEYS;
		/* At the end half of the multiprocessors have nothing left, on average. */
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

		if (!item_of(batch, b, &item))
			continue;
		blocks += blocks_of(batch, packing, item.n_q);
		tiles = fa_cuda_paged_ceil_div(item.n_k, batch->keys) + 1;
		longest = tiles > longest ? tiles : longest;
	}
	/* This many blocks of rows fill the GPU without being divided. */
	full = blocks * batch->kv_heads > (uint64_t)chip->sms * FA_CUDA_PACKED_WAVES_MAX;
	if (chip->pack <= 0 && full && !batch->longest_first)
		return false;
	keys = choose(chip, batch, packing, longest, &most);
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

/* Units of the same part of the keys are neighbours, because they read the same keys at about the
 * same time. */
static void write_units(const struct fa_cuda_packed_batch *batch,
                        const struct fa_cuda_packed_units *units,
                        const struct fa_cuda_paged_item *item, uint32_t at, uint32_t kv_head,
                        struct fa_cuda_paged_unit *ret_units, struct division *sum)
{
	const struct packing packing = { (int32_t)units->pack_shift, units->pack_sets };
	const uint32_t groups = batch->rows / FA_SM90_GROUP_ROWS;
	const uint32_t blocks = blocks_of(batch, packing, item->n_q), sets = (uint32_t)packing.sets;
	uint32_t parts_max = 1;

	for (uint32_t part = 0; part < parts_max; part++) {
		uint64_t counters = sum->counters, partials = sum->partials;

		for (uint32_t block = 0; block < blocks; block++) {
			const uint32_t set = block * groups % sets;
			uint32_t first, count, parts, begin, end;

			tiles_of(batch, packing, item, block, &first, &count);
			parts = fa_cuda_paged_ceil_div(count, units->tiles);
			parts_max = parts > parts_max ? parts : parts_max;
			begin = (uint32_t)((uint64_t)count * part / parts);
			end = (uint32_t)((uint64_t)count * (part + 1) / parts);
			if (part < parts)
				ret_units[sum->units++] = (struct fa_cuda_paged_unit){
					.item = at,
					.head = kv_head * (batch->heads / batch->kv_heads) +
					        set * (64u >> packing.shift),
					.token = block * groups / sets << packing.shift,
					.last = first + end - 1,
					.count = end - begin,
					.parts_set = part + parts * FA_CUDA_PAGED_UNIT_PARTS +
					             (set << FA_CUDA_PAGED_UNIT_SET_SHIFT),
					.partial = (uint32_t)partials,
					.counter = (uint32_t)counters,
				};
			if (parts > 1) {
				counters += FA_CUDA_PACKED_COUNTERS(parts);
				partials += parts;
			}
		}
		if (part == parts_max - 1) {
			sum->counters = counters;
			sum->partials = partials;
		}
	}
}

static int compare_items(const void *a, const void *b)
{
	const struct fa_cuda_paged_item *x = a, *y = b;

	if (x->n_k != y->n_k)
		return x->n_k < y->n_k ? 1 : -1;
	return x->first_q < y->first_q ? -1 : 1;
}

void fa_cuda_packed_units_write(const struct fa_cuda_packed_batch *batch,
                                const struct fa_cuda_packed_units *units,
                                struct fa_cuda_paged_item *ret_items,
                                struct fa_cuda_paged_unit *ret_units)
{
	struct division sum = { 0 };
	uint32_t n = 0;

	for (int32_t b = 0; b < batch->batch; b++) {
		struct fa_cuda_paged_item item;

		if (item_of(batch, b, &item))
			ret_items[n++] = item;
	}
	if (batch->longest_first)
		qsort(ret_items, n, sizeof(*ret_items), compare_items);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t kv_head = 0; kv_head < batch->kv_heads; kv_head++)
			write_units(batch, units, &ret_items[i], i, kv_head, ret_units, &sum);
}
