/*
 * Packed rows over a client's own pages (sm90/own_packed.h), for few new tokens on many keys. Each
 * block of threads reads lengths and plans; from the request's bounds this chooses how rows are
 * packed and how many blocks there are.
 */
#include "kernels/cuda/packed-cost.h"
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/paged-plan-sm90.h"
#include "kernels/cuda/sm90/kernels.h"

/* Decode reads keys per DECODE_ROWS rows, in DECODE_COST times the time of packed rows. */
#define DECODE_ROWS 32
#define DECODE_COST 1.6
/* Time in keys of each launch that other kernels need before the one that attends. */
#define LAUNCH_KEYS 190

/* Returns the most blocks of rows of a KV head. */
static uint64_t blocks_of(const struct fa_cuda_paged_kernel *kernel,
                          const struct fa_paged_own_attention *p, int32_t shift, uint64_t sets,
                          uint64_t sequences)
{
	const uint64_t tokens = (uint64_t)1 << shift,
		       groups = (uint64_t)(kernel->rows / FA_SM90_GROUP_ROWS);
	const uint64_t each = fa_cuda_paged_ceil_div(
		fa_cuda_paged_ceil_div((uint64_t)p->max_q, tokens) * sets, groups);
	/* Each sequence may leave part of a group, and of a block, empty. */
	const uint64_t unit = sets == 1 ? tokens * groups : tokens;
	const uint64_t full = ((uint64_t)p->total_q + sequences * (unit - 1)) / unit;
	const uint64_t all = sets == 1 ? full : (full * sets + sequences * (groups - 1)) / groups;

	return each * sequences < all ? each * sequences : all;
}

/* Sets how rows are packed; returns the most blocks of a KV head; 0: impossible. */
static uint64_t pack(const struct fa_cuda_paged_kernel *kernel,
                     const struct fa_paged_own_attention *p, uint64_t sequences,
                     struct fa_cuda_paged_plan *plan)
{
	const int32_t group = p->heads / p->pages->kv_heads;
	uint64_t least = 0;

	for (int32_t shift = 6; shift >= 4; shift--) {
		const int32_t heads = 64 >> shift, sets = group / heads;
		uint64_t blocks;

		if (group % heads || sets > FA_CUDA_PAGED_UNIT_SETS_MAX)
			continue;
		blocks = blocks_of(kernel, p, shift, (uint64_t)sets, sequences);
		if (least == 0 || blocks < least) {
			least = blocks;
			plan->pack_shift = (uint32_t)shift;
			plan->pack_sets = sets;
		}
	}
	return least;
}

static double keys_of(const struct fa_paged_attention *p)
{
	const double n_k = p->step->lengths[0], left = p->window_left, right = p->window_right;
	const bool bounded = left >= 0 && (p->causal || right >= 0);
	const double window = left + 1 + (p->causal ? 0 : right);

	return bounded && window < n_k ? window : n_k;
}

/* The part of the keys that the mask leaves. */
static double part_of(const struct fa_paged_own_attention *p, double keys)
{
	return p->causal && p->max_q < keys ? 1 - p->max_q / (2 * keys) : p->causal ? 0.5 : 1;
}

/* Returns the time of other kernels, in keys of a block of packed rows. */
static double other_keys(const struct fa_cuda_chip *chip, const struct fa_paged_own_attention *p,
                         double keys, double sequences)
{
	const int32_t rows = 2 * FA_SM90_GROUP_ROWS, group = p->heads / p->pages->kv_heads;
	double blocks, waves;

	if (p->max_q < (int32_t)FA_CUDA_PAGED_PREFILL_TOKENS)
		return DECODE_COST * keys * sequences * p->pages->kv_heads *
		               fa_cuda_paged_ceil_div((uint64_t)p->max_q * (uint64_t)group,
		                                      DECODE_ROWS) /
		               chip->sms +
		       FA_CUDA_UNIT_KEYS;
	blocks = sequences * p->heads * fa_cuda_paged_ceil_div((uint64_t)p->max_q, (uint64_t)rows);
	waves = blocks * part_of(p, keys) / chip->sms;
	/* With more than one wave, each block or pair has about the mean number of keys. */
	if (waves < 1 || blocks <= chip->sms)
		waves = 1;
	else if (waves < 2 * part_of(p, keys))
		waves = 2 * part_of(p, keys);
	return waves * keys + FA_CUDA_UNIT_KEYS + 2 * LAUNCH_KEYS;
}

/* Chooses a KV head's units. Returns the launch's time in keys; < 0: they do not suffice. */
static double choose(const struct fa_cuda_chip *chip, const struct fa_cuda_paged_kernel *kernel,
                     const struct fa_paged_own_attention *p, uint64_t blocks, double keys,
                     double part, struct fa_cuda_paged_plan *plan)
{
	const uint64_t kv_heads = (uint64_t)p->pages->kv_heads;
	double best = -1;

	for (uint64_t waves = 1; waves <= FA_CUDA_PACKED_WAVES_MAX; waves++) {
		uint64_t units = waves * (uint64_t)chip->sms / kv_heads;
		double most, time;

		if (units > FA_CUDA_OWN_PACKED_BLOCKS)
			units = FA_CUDA_OWN_PACKED_BLOCKS;
		if (units < blocks || units * kv_heads > FA_CUDA_PAGED_UNITS ||
		    units * kv_heads * (FA_CUDA_PACKED_COUNTERS(2) / 2) *
		                    (uint64_t)(kernel->rows / 16) >
		            FA_CUDA_PAGED_UNIT_COUNTERS)
			continue;
		/* If blocks see different numbers of keys, tiles are divided more evenly over all
		 * units. */
		most = keys / (double)(units / blocks);
		if (units > blocks &&
		    keys * part * (double)blocks / (double)(units - blocks) < most)
			most = keys * part * (double)blocks / (double)(units - blocks);
		time = (double)waves * (most + FA_CUDA_UNIT_KEYS) +
		       fa_cuda_join_keys((uint32_t)(units / blocks), waves == 1);
		if (best < 0 || time < best) {
			best = time;
			plan->own_units = (uint32_t)units;
			plan->join_wait_ns = waves == 1 ? FA_CUDA_PACKED_WAIT_NS : 0;
		}
	}
	return best;
}

static const struct fa_cuda_paged_kernel *find(const struct fa_cuda_chip *chip,
                                               const struct fa_paged_own_attention *p,
                                               const struct fa_paged_attention *stand_in)
{
	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];

		if (kernel->kind == FA_CUDA_PAGED_OWN_PACKED &&
		    fa_cuda_paged_kernel_runs(kernel, chip) && kernel->dim == p->pages->head_dim &&
		    kernel->dim_v == p->pages->head_dim_v &&
		    fa_cuda_paged_sm90_covers(kernel, stand_in))
			return kernel;
	}
	return NULL;
}

bool fa_cuda_paged_own_packed_find(const struct fa_cuda_chip *chip,
                                   const struct fa_paged_own_attention *p,
                                   const struct fa_paged_attention *stand_in,
                                   struct fa_cuda_paged_plan *plan)
{
	const uint32_t tokens = fa_cuda_paged_packed_tokens(stand_in);
	const uint32_t froms[] = { 1, tokens, FA_CUDA_PAGED_PREFILL_TOKENS };
	const struct fa_cuda_paged_kernel *kernel;
	const double keys = keys_of(stand_in);
	double time, full;

	/* A sequence's bits must not depend on the others. */
	if (p->deterministic || chip->sms <= 0 || chip->pack < 0 ||
	    p->pages->store != FA_PAGED_PLAIN || p->pages->dtype == FA_ATTENTION_F32 ||
	    p->max_q < (int32_t)tokens || !fa_cuda_paged_sm90_can_map(p->pages))
		return false;
	kernel = find(chip, p, stand_in);
	if (!kernel)
		return false;
	full = fa_cuda_paged_ceil_div((uint64_t)p->total_q, (uint64_t)p->max_q);
	/* Packs all sequences, or those that decode would read repeatedly, or those that
	 * prefill. */
	for (size_t i = 0; i < sizeof(froms) / sizeof(froms[0]) && !plan->forward; i++) {
		uint64_t sequences = (uint64_t)p->total_q / froms[i], blocks;

		if (p->max_q < (int32_t)froms[i])
			break;
		if (sequences > (uint64_t)p->batch)
			sequences = (uint64_t)p->batch;
		blocks = pack(kernel, p, sequences, plan);
		if (blocks == 0 || sequences > FA_CUDA_OWN_PACKED_ITEMS)
			continue;
		time = choose(chip, kernel, p, blocks, keys, part_of(p, keys), plan);
		if (time < 0 || (chip->pack <= 0 && time >= other_keys(chip, p, keys, full)))
			continue;
		plan->forward = kernel;
		plan->prefill_tokens = froms[i];
		plan->forward_ns = (uint64_t)(time * 2 * (kernel->dim + kernel->dim_v) *
		                              kernel->rows / FA_CUDA_SM_FLOPS_PER_NS);
	}
	if (!plan->forward)
		return false;
	plan->forward_grid = plan->own_units * (uint32_t)p->pages->kv_heads;
	plan->forward_blocks = plan->forward_grid;
	plan->unit_partials = plan->forward_grid;
	return true;
}

void fa_cuda_paged_own_packed_launch(const struct fa_cuda_paged_plan *plan,
                                     const struct fa_cuda_paged_kernel *kernel, uint64_t workspace,
                                     struct fa_cuda_paged_launch *launch)
{
	struct fa_cuda_paged_attention_own *own = &launch->args.own;
	struct fa_cuda_paged_attention *args = &launch->args.attention;
	uint64_t *const counters = (void *)(uintptr_t)workspace;

	launch->maps[FA_CUDA_MAP_Q].box[1] = 1u << plan->pack_shift;
	launch->maps[FA_CUDA_MAP_Q].box[2] = 64u >> plan->pack_shift;
	args->n_units = plan->forward_grid;
	args->pack_shift = plan->pack_shift;
	args->pack_sets = plan->pack_sets;
	args->join_wait_ns = plan->join_wait_ns;
	args->unit_counters = counters + FA_CUDA_PAGED_BLOCKS + FA_CUDA_PAGED_SUFFIX_COUNTERS;
	args->unit_partials = (void *)(uintptr_t)(workspace + plan->unit_partials_at);
	own->own.units = plan->own_units;
	own->own.join_tiles = fa_cuda_paged_ceil_div(FA_CUDA_SHARE_KEYS, (uint64_t)kernel->keys);
}
