/*
 * The plan of packed rows (sm90/packed_source.h), for few new tokens on many keys: blocks of rows
 * of several heads, whose keys are divided over blocks of threads.
 */
#include "kernels/cuda/paged-plan-packed.h"

#include "kernels/cuda/packed-cost.h"
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/paged-plan-sm90.h"
#include "kernels/cuda/sm90/kernels.h"

#include <string.h>

/* Decode reads all keys once per DECODE_ROWS rows, in DECODE_COST times the time of a block of
 * packed rows. */
#define DECODE_ROWS 32
#define DECODE_COST 1.6

_Static_assert(FA_CUDA_PAGED_UNITS < FA_CUDA_PAGED_UNIT_PARTS, "a block has no more parts");

/* How rows are packed, and how many blocks of rows an item has per KV head. */
struct packing {
	int32_t shift; /* a group has 2^shift tokens of 64 >> shift heads */
	int32_t sets;  /* sets of 64 >> shift heads per KV head */
};

static uint32_t blocks_of(const struct fa_cuda_paged_kernel *kernel, struct packing packing,
                          uint32_t n_q)
{
	const uint32_t tokens = 1u << packing.shift;
	const uint64_t groups = (uint64_t)fa_cuda_paged_ceil_div(n_q, tokens) *
	                        (uint64_t)packing.sets;

	return fa_cuda_paged_ceil_div(groups, (uint64_t)(kernel->rows / FA_SM90_GROUP_ROWS));
}

static void tiles_of(const struct fa_paged_attention *p, const struct fa_cuda_paged_kernel *kernel,
                     struct packing packing, const struct fa_cuda_paged_item *item, uint32_t block,
                     uint32_t *ret_first, uint32_t *ret_count)
{
	const uint32_t groups = (uint32_t)kernel->rows / FA_SM90_GROUP_ROWS;
	const uint32_t keys = (uint32_t)kernel->keys, sets = (uint32_t)packing.sets;
	const int64_t diagonal = (int64_t)item->n_k - item->n_q, left = fa_cuda_paged_left(p);
	const int64_t first_token = (int64_t)(block * groups / sets) << packing.shift;
	int64_t last_token = (int64_t)((block * groups + groups - 1) / sets + 1) << packing.shift;
	int64_t begin = item->first, end = item->n_k;

	last_token = (last_token < item->n_q ? last_token : (int64_t)item->n_q) - 1;
	if (p->causal || (p->window_right >= 0 && p->window_right < end)) {
		const int64_t right = p->causal ? 0 : p->window_right;

		end = last_token + diagonal + right + 1 < end ? last_token + diagonal + right + 1
		                                              : end;
	}
	if (left >= 0 && first_token + diagonal - left > begin)
		begin = first_token + diagonal - left;
	*ret_first = (uint32_t)begin / keys;
	*ret_count = (uint32_t)(end - 1) / keys - *ret_first + 1;
}

static bool sees_keys(const struct fa_paged_attention *p, int32_t b)
{
	const struct fa_paged_step *step = p->step;
	const uint32_t first = step->first ? step->first[b] : 0,
		       n_new = fa_cuda_paged_n_new(step, b);

	return step->lengths[b] >= n_new && first <= step->lengths[b] - n_new;
}

static bool pack(const struct fa_paged_attention *p, const struct fa_cuda_paged_kernel *kernel,
                 uint32_t from, struct packing *ret_packing)
{
	const int32_t group = p->heads / p->cache->kv_heads;
	uint64_t least = UINT64_MAX;

	for (int32_t shift = 6; shift >= 4; shift--) {
		const struct packing packing = { shift, group / (64 >> shift) };
		uint64_t blocks = 0;

		if (group % (64 >> shift) || packing.sets > FA_CUDA_PAGED_UNIT_SETS_MAX)
			continue;
		for (int32_t b = 0; b < p->step->batch; b++)
			if (fa_cuda_paged_is_prefill(p, from, b))
				blocks += blocks_of(kernel, packing,
				                    fa_cuda_paged_n_new(p->step, b));
		if (blocks < least) {
			least = blocks;
			*ret_packing = packing;
		}
	}
	return least < UINT64_MAX;
}

static const struct fa_cuda_paged_kernel *find(const struct fa_cuda_chip *chip,
                                               const struct fa_paged_attention *p)
{
	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];

		if (kernel->kind == FA_CUDA_PAGED_PACKED &&
		    fa_cuda_paged_kernel_runs(kernel, chip) && kernel->dim == p->cache->head_dim &&
		    kernel->dim_v == p->cache->head_dim_v && fa_cuda_paged_sm90_covers(kernel, p))
			return kernel;
	}
	return NULL;
}

/* Divides all blocks of rows into units of at most @most tiles. */
struct division {
	uint64_t units, counters, partials;
};

static struct division divide(const struct fa_paged_attention *p,
                              const struct fa_cuda_paged_kernel *kernel, struct packing packing,
                              uint32_t from, uint32_t most)
{
	const uint64_t kv_heads = (uint64_t)p->cache->kv_heads;
	struct division sum = { 0 };

	for (int32_t b = 0; b < p->step->batch; b++) {
		struct fa_cuda_paged_item item;
		uint32_t blocks, first, count;

		if (!fa_cuda_paged_is_prefill(p, from, b))
			continue;
		fa_cuda_paged_item_of(p->step, b, &item);
		blocks = blocks_of(kernel, packing, item.n_q);
		for (uint32_t block = 0; block < blocks; block++) {
			uint64_t parts;

			tiles_of(p, kernel, packing, &item, block, &first, &count);
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
static bool rough_init(struct rough *rough, const struct fa_paged_attention *p,
                       const struct fa_cuda_paged_kernel *kernel, struct packing packing,
                       uint32_t from)
{
	const uint64_t kv_heads = (uint64_t)p->cache->kv_heads;

	rough->n = 0;
	rough->blocks = rough->tiles = 0;
	for (int32_t b = 0; b < p->step->batch; b++) {
		struct fa_cuda_paged_item item;
		uint32_t blocks, first, counts[2];

		if (!fa_cuda_paged_is_prefill(p, from, b))
			continue;
		if (rough->n == FA_CUDA_PAGED_UNITS)
			return false;
		fa_cuda_paged_item_of(p->step, b, &item);
		blocks = blocks_of(kernel, packing, item.n_q);
		tiles_of(p, kernel, packing, &item, 0, &first, &counts[0]);
		tiles_of(p, kernel, packing, &item, blocks - 1, &first, &counts[1]);
		rough->items[rough->n].blocks = blocks;
		rough->items[rough->n].counts[0] = counts[0];
		rough->items[rough->n++].counts[1] = counts[1];
		rough->blocks += blocks * kv_heads;
		rough->tiles += ((uint64_t)(counts[0] + counts[1]) * blocks + 1) / 2 * kv_heads;
	}
	return true;
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

static bool fits(const struct fa_cuda_paged_kernel *kernel, struct division division)
{
	return division.units <= FA_CUDA_PAGED_UNITS &&
	       division.counters * (uint64_t)(kernel->rows / 16) <= FA_CUDA_PAGED_UNIT_COUNTERS;
}

/* Time of kernels without packed rows, in keys of a block of @rows rows. They compute blocks of one
 * head's rows, in pairs. */
static double unpacked_keys(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                            uint32_t from, uint32_t rows)
{
	const uint32_t group = (uint32_t)(p->heads / p->cache->kv_heads);
	double longest = 0, sum = 0, waves;

	for (int32_t b = 0; b < p->step->batch; b++) {
		struct fa_cuda_paged_item item;
		uint32_t blocks;

		if (!fa_cuda_paged_is_prefill(p, from, b))
			continue;
		fa_cuda_paged_item_of(p->step, b, &item);
		if (item.n_q < FA_CUDA_PAGED_PREFILL_TOKENS) {
			sum += DECODE_COST * item.n_k * p->cache->kv_heads *
			       fa_cuda_paged_ceil_div(item.n_q * group, DECODE_ROWS);
			continue;
		}
		blocks = fa_cuda_paged_ceil_div(item.n_q, rows);
		for (uint32_t i = 0; i < (blocks + 1) / 2; i++) {
			double pair = (double)fa_cuda_paged_seen(p, &item, i * rows, rows);

			if (blocks - 1 - i != i)
				pair += (double)fa_cuda_paged_seen(p, &item,
				                                   (blocks - 1 - i) * rows, rows);
			longest = pair > longest ? pair : longest;
			sum += pair * p->heads;
		}
	}
	waves = sum / chip->sms;
	return (waves > longest ? waves : longest) + FA_CUDA_UNIT_KEYS;
}

/* The smallest limit of tiles per unit for which @slots units suffice; 0: there is none. */
static uint32_t least_tiles(const struct rough *rough, const struct fa_cuda_paged_kernel *kernel,
                            uint64_t kv_heads, uint64_t slots, uint32_t longest)
{
	uint32_t low = (uint32_t)((rough->tiles + slots - 1) / slots) - 1, high = longest;
	struct division division;

	if (rough->blocks > slots)
		return 0;
	/* A block of rows has less than one unit more than its tiles would fill. */
	if (rough->blocks < slots) {
		const uint64_t enough = rough->tiles / (slots - rough->blocks) + 1;

		if (enough < high) {
			division = divide_roughly(rough, kv_heads, (uint32_t)enough);
			if (division.units <= slots && fits(kernel, division))
				high = (uint32_t)enough;
		}
	}
	if (high == longest) {
		division = divide_roughly(rough, kv_heads, high);
		if (division.units > slots || !fits(kernel, division))
			return 0;
	}
	low = low < high ? low : high - 1; /* a limit of low tiles gives too many units */
	while (high - low > 1) {
		const uint32_t middle = low + (high - low) / 2;

		division = divide_roughly(rough, kv_heads, middle);
		if (division.units <= slots && fits(kernel, division))
			high = middle;
		else
			low = middle;
	}
	return high;
}

/* Chooses the most tiles of a unit. Returns the launch's time in keys; negative: it does not
 * fit. */
static double choose(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                     const struct fa_cuda_paged_kernel *kernel, struct packing packing,
                     uint32_t from, uint32_t longest, uint32_t *ret_most)
{
	struct rough rough;
	double best = -1;

	if (!rough_init(&rough, p, kernel, packing, from))
		return -1;
	for (uint32_t waves = 1; waves <= FA_CUDA_PACKED_WAVES_MAX; waves++) {
		uint32_t most = least_tiles(&rough, kernel, (uint64_t)p->cache->kv_heads,
		                            (uint64_t)chip->sms * waves, longest);

		/* With fewer parts, joining takes less time. */
		for (; most > 0 && most < 2 * longest; most += most / 4 + 1) {
			const double keys = waves * ((double)most * kernel->keys +
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

bool fa_cuda_paged_packed_find(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                               struct fa_cuda_paged_plan *plan)
{
	const uint32_t from = plan->prefill_tokens;
	const struct fa_cuda_paged_kernel *kernel;
	struct packing packing;
	struct division division;
	uint64_t blocks = 0;
	uint32_t longest = 1, most = 0;
	double keys;

	/* A sequence's bits must not depend on the others. */
	if (p->deterministic || chip->sms <= 0 || chip->pack < 0)
		return false;
	kernel = find(chip, p);
	if (!kernel || !pack(p, kernel, from, &packing))
		return false;
	for (int32_t b = 0; b < p->step->batch; b++) {
		uint32_t tiles;

		if (!fa_cuda_paged_is_prefill(p, from, b))
			continue;
		if (!sees_keys(p, b))
			return false;
		blocks += blocks_of(kernel, packing, fa_cuda_paged_n_new(p->step, b));
		tiles = fa_cuda_paged_ceil_div(p->step->lengths[b], (uint64_t)kernel->keys) + 1;
		longest = tiles > longest ? tiles : longest;
	}
	/* This many blocks of rows fill the GPU without being divided. */
	if (chip->pack <= 0 &&
	    blocks * (uint64_t)p->cache->kv_heads > (uint64_t)chip->sms * FA_CUDA_PACKED_WAVES_MAX)
		return false;
	keys = choose(chip, p, kernel, packing, from, longest, &most);
	if (chip->pack > 0)
		most = (uint32_t)chip->pack;
	else if (keys < 0 || keys >= unpacked_keys(chip, p, from, (uint32_t)kernel->rows))
		return false;
	division = divide(p, kernel, packing, from, most);
	if (!fits(kernel, division))
		return false;
	plan->forward = kernel;
	plan->pack_shift = (uint32_t)packing.shift;
	plan->pack_sets = packing.sets;
	plan->unit_tiles = most;
	plan->forward_blocks = (uint32_t)division.units;
	/* Unless all units run at once, units that wait would keep others from starting. */
	plan->join_wait_ns = division.units <= (uint64_t)chip->sms &&
	                                     division.units <= FA_CUDA_SHARE_PARTS_MAX
	                             ? FA_CUDA_PACKED_WAIT_NS
	                             : 0;
	plan->unit_partials = (uint32_t)division.partials;
	plan->forward_ns = (uint64_t)(keys * 2 * (kernel->dim + kernel->dim_v) * kernel->rows /
	                              FA_CUDA_SM_FLOPS_PER_NS);
	return true;
}

size_t fa_cuda_paged_packed_bytes(const struct fa_cuda_paged_plan *plan)
{
	return (size_t)plan->unit_partials * (size_t)plan->forward->state_bytes;
}

/* Units of the same part of the keys are neighbours, because they read the same keys at about the
 * same time. */
static void write_units(const struct fa_paged_attention *p, const struct fa_cuda_paged_plan *plan,
                        const struct fa_cuda_paged_item *item, uint32_t at, int32_t kv_head,
                        struct fa_cuda_paged_unit *units, struct division *sum)
{
	const struct fa_cuda_paged_kernel *kernel = plan->forward;
	const struct packing packing = { (int32_t)plan->pack_shift, plan->pack_sets };
	const uint32_t groups = (uint32_t)kernel->rows / FA_SM90_GROUP_ROWS;
	const uint32_t blocks = blocks_of(kernel, packing, item->n_q),
		       sets = (uint32_t)packing.sets;
	uint32_t parts_max = 1;

	for (uint32_t part = 0; part < parts_max; part++) {
		uint64_t counters = sum->counters, partials = sum->partials;

		for (uint32_t block = 0; block < blocks; block++) {
			const uint32_t set = block * groups % sets;
			uint32_t first, count, parts, begin, end;

			tiles_of(p, kernel, packing, item, block, &first, &count);
			parts = fa_cuda_paged_ceil_div(count, plan->unit_tiles);
			parts_max = parts > parts_max ? parts : parts_max;
			begin = (uint32_t)((uint64_t)count * part / parts);
			end = (uint32_t)((uint64_t)count * (part + 1) / parts);
			if (part < parts)
				units[sum->units++] = (struct fa_cuda_paged_unit){
					.item = at,
					.head = (uint32_t)(kv_head *
					                   (p->heads / p->cache->kv_heads)) +
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

void fa_cuda_paged_packed_plan(const struct fa_paged_attention *p, char *blob,
                               const struct fa_cuda_paged_plan *plan)
{
	struct fa_cuda_paged_item *items = (void *)(blob + plan->forward_items_at);
	struct fa_cuda_paged_unit *units = (void *)(blob + plan->forward_blocks_at);
	struct division sum = { 0 };
	uint32_t n = 0;

	for (int32_t b = 0; b < p->step->batch; b++) {
		if (!fa_cuda_paged_is_prefill(p, plan->prefill_tokens, b))
			continue;
		fa_cuda_paged_item_of(p->step, b, &items[n]);
		for (int32_t kv_head = 0; kv_head < p->cache->kv_heads; kv_head++)
			write_units(p, plan, &items[n], n, kv_head, units, &sum);
		n++;
	}
}

void fa_cuda_paged_packed_launch(const struct fa_cuda_paged_plan *plan,
                                 const struct fa_paged_attention *p, uint64_t blob,
                                 uint64_t workspace, struct fa_cuda_paged_launch *launch)
{
	struct fa_cuda_paged_attention *args = &launch->args.attention;
	uint64_t *const counters = (void *)(uintptr_t)workspace;

	launch->grid_x = plan->forward_blocks;
	fa_cuda_paged_sm90_maps(plan, p, launch);
	launch->maps[FA_CUDA_MAP_Q].box[1] = 1u << plan->pack_shift;
	launch->maps[FA_CUDA_MAP_Q].box[2] = 64u >> plan->pack_shift;
	args->units = (const void *)(uintptr_t)(blob + plan->forward_blocks_at);
	args->n_units = plan->forward_blocks;
	args->pack_shift = plan->pack_shift;
	args->pack_sets = plan->pack_sets;
	args->join_wait_ns = plan->join_wait_ns;
	args->unit_counters = counters + FA_CUDA_PAGED_BLOCKS + FA_CUDA_PAGED_SUFFIX_COUNTERS;
	args->unit_partials = (void *)(uintptr_t)(workspace + plan->unit_partials_at);
}
