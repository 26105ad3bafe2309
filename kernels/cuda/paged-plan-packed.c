/*
 * The plan of packed rows (sm90/packed_source.h), for few new tokens on many keys: blocks of rows
 * of several heads, whose keys are divided over blocks of threads.
 */
#include "kernels/cuda/paged-plan-packed.h"

#include "kernels/cuda/packed-cost.h"
#include "kernels/cuda/packed-units.h"
#include "kernels/cuda/paged-plan-packed-prefix.h"
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/paged-plan-sm90.h"
#include "kernels/cuda/sm90/kernels.h"

#include <errno.h>
#include <string.h>

/* A sequence costs a run that shares a prefix a thread block, with a tile that is half empty. */
#define SUFFIX_KEYS (FA_CUDA_UNIT_KEYS + 64)

/* As in paged-plan-own-packed.c. */
#define DECODE_ROWS 32
#define DECODE_COST 1.6

/* Returns true if every new token sees a key. */
static bool sees_keys(const struct fa_paged_attention *p, int32_t b)
{
	const struct fa_paged_step *step = p->step;
	const uint32_t first = step->first ? step->first[b] : 0,
		       n_new = fa_cuda_paged_n_new(step, b);

	return step->lengths[b] >= n_new && first <= step->lengths[b] - n_new;
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

/* Given to fa_cuda_packed_batch.item_of(). */
struct source {
	const struct fa_paged_attention *p;
	uint32_t from;                                  /* sequences with fewer new tokens decode */
	const struct fa_cuda_packed_prefixes *prefixes; /* or NULL */
};

static enum fa_cuda_packed_kind item_of(const void *userdata, int32_t b,
                                        struct fa_cuda_paged_item *ret_item)
{
	const struct source *source = userdata;

	if (source->prefixes) {
		*ret_item = source->prefixes->items[b];
		return source->prefixes->suffixes[b] ? FA_CUDA_PACKED_SUFFIX : FA_CUDA_PACKED_ROWS;
	}
	if (!fa_cuda_paged_is_prefill(source->p, source->from, b))
		return FA_CUDA_PACKED_NOTHING;
	fa_cuda_paged_item_of(source->p->step, b, ret_item);
	fa_cuda_packed_alone(ret_item);
	return FA_CUDA_PACKED_ROWS;
}

static struct fa_cuda_packed_batch batch_of(const struct source *source,
                                            const struct fa_cuda_paged_kernel *kernel)
{
	const struct fa_paged_attention *p = source->p;
	const int64_t left = fa_cuda_paged_left(p), right = p->causal ? 0 : p->window_right;

	return (struct fa_cuda_packed_batch){
		.rows = (uint32_t)kernel->rows,
		.keys = (uint32_t)kernel->keys,
		.heads = (uint32_t)p->heads,
		.kv_heads = (uint32_t)p->cache->kv_heads,
		.left = left < 0 ? FA_CUDA_PACKED_UNBOUNDED : left,
		.right = right < 0 || right > FA_CUDA_PACKED_UNBOUNDED ? FA_CUDA_PACKED_UNBOUNDED
		                                                       : right,
		.batch = source->prefixes ? (int32_t)source->prefixes->n : p->step->batch,
		.item_of = item_of,
		.userdata = source,
		.longest_first = source->prefixes,
		.suffixes = source->prefixes,
	};
}

/* Returns the time of kernels without packed rows, in keys of a block of @rows rows, for sequences
 * of @from to @below - 1 new tokens. They compute blocks of one head's rows, in pairs. */
static double unpacked_keys(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                            uint32_t from, uint32_t below, uint32_t rows)
{
	const uint32_t group = (uint32_t)(p->heads / p->cache->kv_heads);
	double longest = 0, sum = 0, waves;

	for (int32_t b = 0; b < p->step->batch; b++) {
		struct fa_cuda_paged_item item;
		uint32_t blocks;

		if (!fa_cuda_paged_is_prefill(p, from, b) ||
		    fa_cuda_paged_n_new(p->step, b) >= below)
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

/* Returns NULL if rows cannot be packed. */
static const struct fa_cuda_paged_kernel *
find_for(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p, uint32_t from)
{
	if (p->deterministic || chip->sms <= 0 || chip->pack < 0)
		return NULL;
	for (int32_t b = 0; b < p->step->batch; b++)
		if (fa_cuda_paged_is_prefill(p, from, b) && !sees_keys(p, b))
			return NULL;
	return find(chip, p);
}

static void set_plan(const struct fa_cuda_paged_kernel *kernel,
                     const struct fa_cuda_packed_units *units, struct fa_cuda_paged_plan *plan)
{
	plan->forward = kernel;
	plan->pack_shift = units->pack_shift;
	plan->pack_sets = units->pack_sets;
	plan->unit_tiles = units->tiles;
	plan->forward_blocks = units->units;
	plan->join_wait_ns = units->join_wait_ns;
	plan->unit_partials = units->partials;
	plan->forward_ns = (uint64_t)(units->keys * 2 * (kernel->dim + kernel->dim_v) *
	                              kernel->rows / FA_CUDA_SM_FLOPS_PER_NS);
}

bool fa_cuda_paged_packed_find(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                               struct fa_cuda_paged_plan *plan)
{
	const struct source source = { .p = p, .from = plan->prefill_tokens };
	const struct fa_cuda_paged_kernel *kernel = find_for(chip, p, source.from);
	struct fa_cuda_packed_batch batch;
	struct fa_cuda_packed_units units;

	if (!kernel)
		return false;
	batch = batch_of(&source, kernel);
	if (!fa_cuda_packed_units_choose(chip, &batch, &units))
		return false;
	if (chip->pack == 0 &&
	    units.keys >= unpacked_keys(chip, p, source.from, UINT32_MAX, batch.rows))
		return false;
	set_plan(kernel, &units, plan);
	return true;
}

/* Returns the time of sequences of @from new tokens and more on other kernels, or on @kernel with
 * unshared keys. */
static double unshared_keys(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                            const struct fa_cuda_paged_kernel *kernel, uint32_t from)
{
	const uint32_t packed_from = fa_cuda_paged_packed_tokens(p);
	const struct source source = { .p = p, .from = from > packed_from ? from : packed_from };
	const struct fa_cuda_packed_batch batch = batch_of(&source, kernel);
	const double unpacked = unpacked_keys(chip, p, from, UINT32_MAX, batch.rows);
	struct fa_cuda_packed_units units;
	double keys;

	if (!fa_cuda_packed_units_choose(chip, &batch, &units))
		return unpacked;
	keys = units.keys + unpacked_keys(chip, p, from, source.from, batch.rows);
	return keys < unpacked ? keys : unpacked;
}

/* Returns the time of decode with @prefixes (paged-plan-prefix.c), which it reads for DECODE_ROWS
 * rows at once. */
static double decode_keys(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                          const struct fa_cuda_packed_prefixes *prefixes)
{
	const uint32_t group = (uint32_t)(p->heads / p->cache->kv_heads);
	double sum = 0;

	for (uint32_t i = 0; i < prefixes->n; i++) {
		const struct fa_cuda_paged_item *item = &prefixes->items[i];
		const uint32_t rows = (item->packed.end_row - item->packed.begin_row) * group;

		sum += DECODE_COST * (item->n_k - item->first) * p->cache->kv_heads *
		       fa_cuda_paged_ceil_div(rows, DECODE_ROWS);
	}
	return sum / chip->sms + FA_CUDA_UNIT_KEYS;
}

bool fa_cuda_paged_packed_share(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                                struct fa_cuda_paged_plan *plan)
{
	const uint32_t suffix_keys = chip->share_early ? 0 : SUFFIX_KEYS;
	const struct fa_cuda_paged_kernel *kernel;
	struct fa_cuda_packed_prefixes prefixes;
	struct fa_cuda_packed_units units;
	bool shares = false;

	if (!fa_cuda_packed_prefixes_possible(p))
		return false;
	kernel = find_for(chip, p, FA_CUDA_PAGED_SHARE_TOKENS);
	if (kernel &&
	    fa_cuda_packed_prefixes_find(p, (uint32_t)kernel->rows, suffix_keys, &prefixes)) {
		const struct source source = { p, prefixes.from, &prefixes };
		const struct fa_cuda_packed_batch batch = batch_of(&source, kernel);

		shares = fa_cuda_packed_units_choose(chip, &batch, &units) &&
		         (chip->pack > 0 ||
		          (units.keys < unshared_keys(chip, p, kernel, prefixes.from) &&
		           units.keys < decode_keys(chip, p, &prefixes)));
		if (shares) {
			set_plan(kernel, &units, plan);
			plan->prefill_tokens = prefixes.from;
			plan->packed_items = prefixes.n;
			plan->packed_prefixes = prefixes.runs;
			plan->suffix_keys = suffix_keys;
		}
		fa_cuda_packed_prefixes_free(&prefixes);
	}
	return shares;
}

size_t fa_cuda_paged_packed_bytes(const struct fa_cuda_paged_plan *plan)
{
	return (size_t)plan->unit_partials * (size_t)plan->forward->state_bytes;
}

int fa_cuda_paged_packed_plan(const struct fa_paged_attention *p, char *blob,
                              const struct fa_cuda_paged_plan *plan)
{
	struct fa_cuda_packed_prefixes prefixes;
	struct source source = { .p = p, .from = plan->prefill_tokens };
	const struct fa_cuda_packed_units units = {
		.pack_shift = plan->pack_shift,
		.pack_sets = plan->pack_sets,
		.tiles = plan->unit_tiles,
	};
	struct fa_cuda_packed_batch batch;

	if (plan->packed_prefixes > 0) {
		if (!fa_cuda_packed_prefixes_find(p, (uint32_t)plan->forward->rows,
		                                  plan->suffix_keys, &prefixes))
			return -ENOMEM;
		source.prefixes = &prefixes;
	}
	batch = batch_of(&source, plan->forward);
	fa_cuda_packed_units_write(&batch, &units, (void *)(blob + plan->forward_items_at),
	                           (void *)(blob + plan->forward_blocks_at));
	if (source.prefixes)
		fa_cuda_packed_prefixes_free(&prefixes);
	return 0;
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
