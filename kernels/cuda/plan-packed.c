/*
 * Launches with packed rows over tensors (sm90/packed_source.h), for few rows on many keys. If all
 * sequences are equal, every choice follows from one of them. A ragged batch has a list of units.
 */
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/packed-cost.h"
#include "kernels/cuda/packed-units.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/sm90/kernels.h"

_Static_assert(FA_CUDA_PACKED_COUNTERS_AT ==
                       8 * (size_t)(FA_CUDA_PAGED_BLOCKS + FA_CUDA_PAGED_SUFFIX_COUNTERS),
               "a stream has one workspace for both");
_Static_assert(FA_CUDA_PACKED_COUNTERS_MAX == FA_CUDA_PAGED_UNIT_COUNTERS, "as there");

static bool covers(const struct fa_cuda_kernel *kernel, const struct fa_attention_params *params)
{
	struct fa_cuda_kernel band = *kernel;

	if (kernel->kind != (params->cu_seqlens_q ? FA_CUDA_PACKED_RAGGED : FA_CUDA_PACKED) ||
	    kernel->dim != params->head_dim || kernel->dim_v != params->head_dim_v)
		return false;
	band.kind = FA_CUDA_BAND;
	return fa_cuda_kernel_covers(&band, params);
}

static const struct fa_cuda_kernel *find(const struct fa_cuda_chip *chip,
                                         const struct fa_attention_params *params)
{
	for (size_t i = 0; i < fa_cuda_kernels_count; i++)
		if (fa_cuda_kernel_runs(&fa_cuda_kernels[i], chip) &&
		    covers(&fa_cuda_kernels[i], params))
			return &fa_cuda_kernels[i];
	return NULL;
}

/* Counts a block's tiles as the kernel does. */
static uint32_t tiles_of(const struct fa_cuda_launch *launch, uint32_t block)
{
	const struct fa_cuda_packed_attention *packed = &launch->packed;
	const struct fa_cuda_attention *args = &packed->attention;
	const int64_t diagonal = args->seqlen_k - args->seqlen_q, keys = launch->kernel->keys;
	const uint32_t group = block * packed->groups, sets = (uint32_t)packed->pack_sets;
	const int64_t first_row = (int64_t)(group / sets) << packed->pack_shift;
	int64_t end_row = (int64_t)((group + packed->groups - 1) / sets + 1) << packed->pack_shift;
	int64_t begin = first_row + diagonal - args->window_left, end;

	end_row = end_row < args->seqlen_q ? end_row : args->seqlen_q;
	end = end_row + diagonal + args->window_right;
	begin = begin > 0 ? begin : 0;
	end = end < args->seqlen_k ? end : args->seqlen_k;
	return (uint32_t)((end - 1) / keys - begin / keys + 1);
}

static void pack(struct fa_cuda_packed_attention *packed)
{
	const int32_t group = packed->attention.group;
	uint64_t least = UINT64_MAX;

	for (int32_t shift = 6; shift >= 4; shift--) {
		const uint64_t sets = (uint64_t)(group / (64 >> shift));
		const uint64_t tokens = (uint64_t)packed->attention.seqlen_q;
		uint64_t blocks;

		if (group % (64 >> shift))
			continue;
		blocks = ((tokens + (1u << shift) - 1) >> shift) * sets;
		blocks = (blocks + packed->groups - 1) / packed->groups;
		if (blocks >= least)
			continue;
		least = blocks;
		packed->pack_shift = (uint32_t)shift;
		packed->pack_sets = (int32_t)sets;
	}
	packed->blocks = (uint32_t)(least < UINT32_MAX ? least : UINT32_MAX);
}

/* Returns the launch's time on the kernel @best, in keys of a block of @rows rows. */
static double unpacked_keys(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *best,
                            const struct fa_cuda_launch *launch)
{
	const struct fa_cuda_attention *args = &launch->args;
	const double n_q = args->seqlen_q, n_k = args->seqlen_k;
	const double blocks = (args->seqlen_q + best->rows - 1) / best->rows;
	const double heads = (double)args->triples;
	const bool right = args->window_right < FA_CUDA_WINDOW_MAX;
	double left = args->window_left, each = n_k, whole = n_k, longest, sum;

	if (right)
		each -= n_q / 2;
	if (left + best->rows < each)
		each = whole = left + best->rows;
	/* Bands compute blocks in pairs, the first with the last, if there are many. */
	longest = best->kind != FA_CUDA_FULL && blocks * heads > chip->sms ? 2 * each : whole;
	sum = blocks * heads * each / chip->sms;
	return ((sum > longest ? sum : longest) + FA_CUDA_UNIT_KEYS) * best->rows /
	       launch->kernel->rows;
}

static bool counters_suffice(const struct fa_cuda_packed_attention *packed, uint64_t all_blocks,
                             uint32_t parts)
{
	return parts == 1 || all_blocks * FA_CUDA_PACKED_COUNTERS(parts) * packed->groups * 4 <=
	                             FA_CUDA_PACKED_COUNTERS_MAX;
}

/* Returns the launch's time in keys; negative: none is possible. */
static double choose(const struct fa_cuda_chip *chip, struct fa_cuda_launch *launch,
                     uint64_t all_blocks)
{
	struct fa_cuda_packed_attention *packed = &launch->packed;
	uint32_t fewest = UINT32_MAX, most = 0, parts_max;
	double best = -1;

	for (uint32_t i = 0; i < packed->blocks; i++) {
		const uint32_t tiles = tiles_of(launch, i);

		fewest = tiles < fewest ? tiles : fewest;
		most = tiles > most ? tiles : most;
	}
	/* Every unit has a tile, and the kernel multiplies tiles by parts in 32 bits. */
	parts_max = fewest < 1024 ? fewest : 1024;
	parts_max = parts_max < UINT32_MAX / most ? parts_max : UINT32_MAX / most;
	for (uint32_t parts = 1; parts <= parts_max; parts++) {
		const uint64_t units = all_blocks * parts;
		const uint64_t waves = (units + (uint64_t)chip->sms - 1) / (uint64_t)chip->sms;
		double keys;

		if (parts > 1 && (waves > FA_CUDA_PACKED_WAVES_MAX ||
		                  !counters_suffice(packed, all_blocks, parts)))
			break;
		keys = (double)waves *
		               ((double)((most + parts - 1) / parts) * launch->kernel->keys +
		                FA_CUDA_UNIT_KEYS) +
		       fa_cuda_join_keys(parts, waves == 1);
		if (best < 0 || keys < best) {
			best = keys;
			packed->parts = parts;
		}
	}
	return best;
}

static bool plan_equal(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *best,
                       const struct fa_attention_params *params, struct fa_cuda_launch *ret_launch)
{
	struct fa_cuda_packed_attention *packed = &ret_launch->packed;
	const struct fa_cuda_kernel *kernel = ret_launch->kernel;
	uint64_t all_blocks;
	double keys;

	packed->groups = (uint32_t)kernel->rows / FA_SM90_GROUP_ROWS;
	packed->kv_heads = (uint32_t)params->kv_heads;
	pack(packed);
	all_blocks = (uint64_t)packed->blocks * packed->kv_heads * (uint64_t)params->batch;
	if (all_blocks > (uint64_t)chip->sms * FA_CUDA_PACKED_WAVES_MAX)
		return false;
	keys = choose(chip, ret_launch, all_blocks);
	if (chip->pack > 0) {
		const uint32_t most = tiles_of(ret_launch, packed->blocks - 1);
		const uint32_t fewest = tiles_of(ret_launch, 0);
		const uint32_t wanted = (most + (uint32_t)chip->pack - 1) / (uint32_t)chip->pack;

		packed->parts = wanted < fewest ? wanted : fewest;
		if (!counters_suffice(packed, all_blocks, packed->parts))
			return false;
	} else if (keys < 0 || keys >= unpacked_keys(chip, best, ret_launch)) {
		return false;
	}
	packed->n_units = (uint32_t)all_blocks * packed->parts;
	/* As in packed-units.c. */
	packed->join_wait_ns = packed->n_units <= (uint32_t)chip->sms &&
	                                       packed->parts <= FA_CUDA_SHARE_PARTS_MAX
	                               ? FA_CUDA_PACKED_WAIT_NS
	                               : 0;
	if (packed->parts > 1)
		ret_launch->workspace_bytes = FA_CUDA_PACKED_WORKSPACE_ZERO +
		                              (size_t)packed->n_units * (size_t)kernel->state_bytes;
	return true;
}

/* ---- ragged batches */

static enum fa_cuda_packed_kind item_of(const void *userdata, int32_t b,
                                        struct fa_cuda_paged_item *ret_item)
{
	const struct fa_cuda_attention *args = userdata;
	const uint32_t first_q = args->cu_seqlens_q[b], end_q = args->cu_seqlens_q[b + 1];
	const uint32_t first_k = args->cu_seqlens_k[b], end_k = args->cu_seqlens_k[b + 1];

	*ret_item = (struct fa_cuda_paged_item){
		.first_q = first_q,
		.n_q = end_q - first_q,
		.n_k = end_k - first_k,
		.table_start = first_k,
	};
	fa_cuda_packed_alone(ret_item);
	return end_q > first_q ? FA_CUDA_PACKED_ROWS : FA_CUDA_PACKED_NOTHING;
}

static struct fa_cuda_packed_batch batch_of(const struct fa_cuda_launch *launch)
{
	const struct fa_cuda_attention *args = &launch->args;

	return (struct fa_cuda_packed_batch){
		.rows = (uint32_t)launch->kernel->rows,
		.keys = (uint32_t)launch->kernel->keys,
		.heads = (uint32_t)args->heads,
		.kv_heads = (uint32_t)(args->heads / args->group),
		.left = args->window_left,
		.right = args->window_right,
		.batch = args->triples / args->heads,
		.item_of = item_of,
		.userdata = args,
		.longest_first = true,
	};
}

/* As unpacked_keys(). Thread blocks compute as many keys as one another, but at least those of the
 * longest block of rows. */
static double unpacked_ragged_keys(const struct fa_cuda_chip *chip,
                                   const struct fa_cuda_kernel *best,
                                   const struct fa_attention_params *params, int32_t rows)
{
	struct fa_cuda_launch launch;
	double longest, sum, pairs;
	uint32_t units;
	char text[128];

	if (fa_cuda_attention_plan_on(chip, best, params, text, sizeof(text), &launch) < 0 ||
	    !fa_cuda_ragged_plan(&launch, &units, &pairs))
		return 0;
	longest = (double)launch.args.window_left + best->rows;
	if (longest > launch.args.seqlen_k)
		longest = launch.args.seqlen_k;
	sum = pairs / best->rows / chip->sms;
	return ((sum > longest ? sum : longest) + FA_CUDA_UNIT_KEYS) * best->rows / rows;
}

static bool plan_ragged(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *best,
                        const struct fa_attention_params *params, struct fa_cuda_launch *ret_launch)
{
	struct fa_cuda_packed_attention *packed = &ret_launch->packed;
	const struct fa_cuda_kernel *kernel = ret_launch->kernel;
	const struct fa_cuda_packed_batch batch = batch_of(ret_launch);
	struct fa_cuda_packed_units units;
	struct fa_cuda_paged_item item;

	if (!fa_cuda_packed_units_choose(chip, &batch, &units))
		return false;
	if (chip->pack == 0 && units.keys >= unpacked_ragged_keys(chip, best, params, kernel->rows))
		return false;
	packed->pack_shift = units.pack_shift;
	packed->pack_sets = units.pack_sets;
	packed->n_units = units.units;
	packed->join_wait_ns = units.join_wait_ns;
	ret_launch->unit_tiles = units.tiles;
	ret_launch->list_units = ret_launch->list_items = 0;
	for (int32_t b = 0; b < batch.batch; b++)
		ret_launch->list_items += item_of(batch.userdata, b, &item) == FA_CUDA_PACKED_ROWS;
	if (units.partials > 0)
		ret_launch->workspace_bytes = FA_CUDA_PACKED_WORKSPACE_ZERO +
		                              (size_t)units.partials * (size_t)kernel->state_bytes;
	return fa_cuda_packed_list_bytes(ret_launch) <= FA_CUDA_LIST_BYTES_MAX;
}

size_t fa_cuda_packed_list_bytes(const struct fa_cuda_launch *launch)
{
	if (!launch->unit_tiles)
		return 0;
	return launch->packed.n_units * sizeof(struct fa_cuda_paged_unit) +
	       launch->list_items * sizeof(struct fa_cuda_paged_item);
}

void fa_cuda_packed_list(struct fa_cuda_launch *launch, void *list, uint64_t address)
{
	const struct fa_cuda_packed_batch batch = batch_of(launch);
	struct fa_cuda_packed_attention *packed = &launch->packed;
	const struct fa_cuda_packed_units units = {
		.pack_shift = packed->pack_shift,
		.pack_sets = packed->pack_sets,
		.tiles = launch->unit_tiles,
	};
	const size_t units_bytes = packed->n_units * sizeof(struct fa_cuda_paged_unit);

	fa_cuda_packed_units_write(&batch, &units, (void *)((char *)list + units_bytes), list);
	packed->units = (void *)(uintptr_t)address;
	packed->items = (void *)(uintptr_t)(address + units_bytes);
}

/* True: every row sees a key. */
static bool sees_keys(const struct fa_attention_params *params)
{
	if (!params->cu_seqlens_q)
		return params->seqlen_q >= 1 && params->seqlen_k >= params->seqlen_q;
	for (int32_t b = 0; b < params->batch; b++)
		if (params->cu_seqlens_k[b + 1] - params->cu_seqlens_k[b] <
		    params->cu_seqlens_q[b + 1] - params->cu_seqlens_q[b])
			return false;
	return params->cu_seqlens_q[params->batch] > 0;
}

bool fa_cuda_packed_plan(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *best,
                         const struct fa_attention_params *params,
                         struct fa_cuda_launch *ret_launch)
{
	struct fa_cuda_packed_attention *packed = &ret_launch->packed;
	const struct fa_cuda_kernel *kernel;
	char text[128];

	if (!chip->workspace || chip->pack < 0 || chip->sms <= 0 || !sees_keys(params) ||
	    !best->keys)
		return false;
	kernel = find(chip, params);
	if (!kernel ||
	    fa_cuda_attention_plan_on(chip, kernel, params, text, sizeof(text), ret_launch) < 0)
		return false;
	if (params->cu_seqlens_q ? !plan_ragged(chip, best, params, ret_launch)
	                         : !plan_equal(chip, best, params, ret_launch))
		return false;
	ret_launch->grid = packed->n_units;
	ret_launch->maps[FA_CUDA_MAP_Q].box[1] = 1u << packed->pack_shift;
	ret_launch->maps[FA_CUDA_MAP_Q].box[2] = 64u >> packed->pack_shift;
	return true;
}

void fa_cuda_packed_set(struct fa_cuda_launch *launch, uint64_t workspace, uint64_t epoch)
{
	struct fa_cuda_packed_attention *packed = &launch->packed;

	packed->unit_counters = (void *)(uintptr_t)(workspace + FA_CUDA_PACKED_COUNTERS_AT);
	packed->unit_partials = (void *)(uintptr_t)(workspace + FA_CUDA_PACKED_WORKSPACE_ZERO);
	packed->epoch = epoch;
}
