/*
 * Attention over pages: chooses a step's kernels and fills their launches.
 */
#include "kernels/cuda/paged-plan-latent.h"
#include "kernels/cuda/paged-plan-packed.h"
#include "kernels/cuda/paged-plan-prefix.h"
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/paged-plan-sm90.h"
#include "kernels/cuda/sm90/paged_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Limit of the partial results of a step with shared prefixes: a stream keeps its workspace, which
 * is not part of the pool. Larger steps do without prefixes. */
#define PARTIALS_BYTES_MAX ((uint64_t)128 << 20)

static bool is_plain(const struct fa_paged_attention *p)
{
	const int64_t bytes = fa_cuda_paged_element_bytes(p->cache->dtype);

	return !(p->softcap > 0) && !p->alibi_slopes && !p->sinks && p->scale > 0 &&
	       fa_cuda_paged_tensor_aligned(&p->q, bytes) &&
	       fa_cuda_paged_tensor_aligned(&p->out, bytes) &&
	       (p->cache->v_offset == 0 || p->cache->head_dim == p->cache->head_dim_v);
}

/* @rows: of a part; for deterministic requests the same in all steps. */
static const struct fa_cuda_paged_kernel *
find_split(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p, int32_t rows)
{
	return fa_cuda_paged_find(chip, FA_CUDA_PAGED_SPLIT, p->cache->store, p->cache->dtype,
	                          p->cache->head_dim, p->cache->head_dim_v, rows);
}

/* An upper bound of the bytes of partial results with @groups: one per row block. @from: sequences
 * with fewer new tokens decode. */
static uint64_t partials_bytes(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                               uint32_t from, const struct fa_cuda_paged_kernel *kernel,
                               uint64_t parts, const struct fa_cuda_paged_groups *groups)
{
	const uint64_t group = (uint64_t)(p->heads / p->cache->kv_heads);
	const uint64_t rows = (uint64_t)kernel->rows;
	uint64_t blocks = 0;

	for (int32_t b = 0; b < p->step->batch; b++)
		if (!fa_cuda_paged_is_prefill(p, from, b))
			blocks += fa_cuda_paged_ceil_div(fa_cuda_paged_n_new(p->step, b) * group,
			                                 rows);
	for (uint32_t i = 0; i < groups->n; i++)
		blocks += fa_cuda_paged_ceil_div(groups->groups[i].n_tokens * group, rows);
	return (blocks * parts + (uint64_t)(chip->sms * kernel->blocks)) * rows *
	       ((uint64_t)kernel->dim_v + 2) * sizeof(float);
}

/* Groups sequences and returns the kernel for the groups. NULL: none are grouped. */
static const struct fa_cuda_paged_kernel *find_groups(const struct fa_cuda_chip *chip,
                                                      const struct fa_paged_attention *p,
                                                      uint32_t from,
                                                      struct fa_cuda_paged_groups *ret_groups)
{
	const struct fa_cuda_paged_kernel *kernel;
	uint64_t suffixes = 0, parts;
	bool *candidates;

	*ret_groups = (struct fa_cuda_paged_groups){ .n = 0 };
	kernel = p->step->host_table ? find_split(chip, p, INT16_MAX) : NULL;
	candidates = kernel ? malloc((size_t)p->step->batch * sizeof(*candidates)) : NULL;
	if (!candidates)
		return NULL;
	for (int32_t b = 0; b < p->step->batch; b++)
		candidates[b] = fa_cuda_paged_n_new(p->step, b) > 0 &&
		                !fa_cuda_paged_is_prefill(p, from, b);
	parts = (uint64_t)p->cache->kv_heads * fa_cuda_paged_slices(p, kernel);
	fa_cuda_paged_groups_find(
		p, candidates, (uint32_t)kernel->rows,
		parts > INT32_MAX ? INT32_MAX : (uint32_t)parts,
		(uint32_t)(chip->sms * kernel->blocks),
		chip->share_early ? 0 : fa_cuda_paged_epilogue_tiles(chip, p->cache), ret_groups);
	free(candidates);
	/* Each row block of a suffix has a counter per part. */
	for (uint32_t i = 0; i < ret_groups->n; i++)
		suffixes += ret_groups->groups[i].suffixes;
	if (suffixes * parts <= FA_CUDA_PAGED_SUFFIX_COUNTERS && suffixes > 0 &&
	    partials_bytes(chip, p, from, kernel, parts, ret_groups) <= PARTIALS_BYTES_MAX)
		return kernel;
	fa_cuda_paged_groups_free(ret_groups);
	ret_groups->n = 0;
	return NULL;
}

size_t fa_cuda_paged_split_bytes(const struct fa_paged_attention *p)
{
	const uint64_t group = (uint64_t)(p->heads / p->cache->kv_heads);
	const size_t batch = (size_t)p->step->batch;
	size_t bytes, tokens = 0;
	uint64_t suffixes = 0;

	if (!p->deterministic && !p->step->host_table)
		return 0;
	/* There are at most as many prefixes as sequences, and kernels compute at least 16 rows at
	 * once. */
	bytes = batch *
	        (sizeof(struct fa_cuda_paged_item) + 2 * sizeof(struct fa_cuda_paged_split));
	for (int32_t b = 0; b < p->step->batch && !p->deterministic; b++) {
		const uint32_t n_new = fa_cuda_paged_n_new(p->step, b);

		if (fa_cuda_paged_is_prefill(p, FA_CUDA_PAGED_PREFILL_TOKENS, b))
			continue;
		tokens += n_new;
		suffixes += (n_new * group + 15) / 16;
	}
	if (suffixes > FA_CUDA_PAGED_SUFFIX_COUNTERS)
		suffixes = FA_CUDA_PAGED_SUFFIX_COUNTERS;
	return bytes + (size_t)suffixes * sizeof(struct fa_cuda_paged_suffix) +
	       fa_cuda_paged_align(tokens * sizeof(uint32_t));
}

/* @rows: query rows per KV head of the longest item. */
static const struct fa_cuda_paged_kernel *
find_decode(const struct fa_cuda_chip *chip, const struct fa_paged_cache *cache, int64_t rows)
{
	struct fa_cuda_chip other = *chip;

	if (rows > FA_SM90_PAGED_ROWS_MAX && other.arch == 90)
		other.arch = 89;
	return fa_cuda_paged_find(&other, FA_CUDA_PAGED_DECODE, cache->store, cache->dtype,
	                          cache->head_dim, cache->head_dim_v,
	                          rows > 4096 ? 4096 : (int32_t)rows);
}

/* With the most new tokens and the most keys of each kind. */
struct sequences {
	uint32_t decode, longest_decode, forward, longest_forward;
};

static struct sequences count_sequences(const struct fa_paged_attention *p, uint32_t prefill_tokens)
{
	struct sequences count = { .longest_decode = 1 };

	for (int32_t b = 0; b < p->step->batch; b++) {
		const uint32_t n_new = fa_cuda_paged_n_new(p->step, b);

		if (fa_cuda_paged_is_prefill(p, prefill_tokens, b)) {
			const uint32_t n_k = p->step->lengths[b];

			count.forward++;
			count.longest_forward = n_k > count.longest_forward ? n_k
			                                                    : count.longest_forward;
		} else if (n_new > 0) {
			count.decode++;
			count.longest_decode = n_new > count.longest_decode ? n_new
			                                                    : count.longest_decode;
		}
	}
	return count;
}

int fa_cuda_paged_plan_attention(const struct fa_cuda_chip *chip,
                                 const struct fa_paged_attention *p, char *blob,
                                 struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const struct fa_paged_cache *cache = p->cache;
	const int32_t group = p->heads / cache->kv_heads;
	struct fa_cuda_paged_groups groups = { .n = 0 };
	const struct fa_paged_attention *of_forward = p; /* of sequences with many rows */
	struct fa_cuda_paged_wide wide;
	struct sequences count;
	bool packed = false;
	size_t at = 0;
	int r;

	plan->prefill_tokens = FA_CUDA_PAGED_PREFILL_TOKENS;
	packed = fa_cuda_paged_packed_share(chip, p, plan);
	fa_cuda_paged_widen_find(chip, p, plan);
	count = count_sequences(p, plan->prefill_tokens);
	if (count.decode > 0)
		plan->decode = fa_cuda_paged_latent_find(chip, p, plan->prefill_tokens);
	if (!plan->decode && count.decode > 1 && !p->deterministic)
		plan->decode = find_groups(chip, p, plan->prefill_tokens, &groups);
	/* Rows that go as packed rows here share no prefixes. */
	if (!packed && !plan->decode && count.decode > 0 && !plan->wide_rows) {
		plan->prefill_tokens = fa_cuda_paged_packed_tokens(p);
		packed = plan->prefill_tokens < FA_CUDA_PAGED_PREFILL_TOKENS &&
		         count_sequences(p, plan->prefill_tokens).decode < count.decode &&
		         fa_cuda_paged_packed_find(chip, p, plan);
		if (!packed)
			plan->prefill_tokens = FA_CUDA_PAGED_PREFILL_TOKENS;
		count = count_sequences(p, plan->prefill_tokens);
	}
	if (!packed && count.forward > 0 && !plan->wide_rows)
		packed = fa_cuda_paged_packed_find(chip, p, plan);
	plan->workspace_bytes = FA_CUDA_PAGED_COUNTERS_BYTES;
	if (count.decode > 0) {
		const int64_t rows = (int64_t)count.longest_decode * group;

		if (p->deterministic)
			plan->decode = find_split(chip, p, group);
		if (!plan->decode && !p->deterministic)
			plan->decode = find_decode(chip, cache, rows);
		if (!plan->decode && p->deterministic && cache->store != FA_PAGED_PLAIN)
			return fa_cuda_paged_fail(text, text_bytes,
			                          "results that do not depend on the step are not "
			                          "supported with e4m3 or int8 on a GPU");
		if (!plan->decode)
			return fa_cuda_paged_no_kernel(chip, "attention over pages", text,
			                               text_bytes);
		plan->decode_items = count.decode;
		plan->appends = plan->decode->appends && count.forward == 0 && cache->v_offset > 0;
		r = fa_cuda_paged_plan_decode(chip, p, &groups, blob, &at, plan, text, text_bytes);
		fa_cuda_paged_groups_free(&groups);
		if (r < 0)
			return r;
		if (plan->decode->kind != FA_CUDA_PAGED_SPLIT &&
		    count.decode <= FA_CUDA_PAGED_INLINE_ITEMS) {
			at = 0;
			if (count.forward == 0)
				plan->decode = fa_cuda_paged_inline_table(plan->decode, p->step,
				                                          plan);
		}
	}
	if (count.forward > 0) {
		if (plan->wide_rows > 0) {
			fa_cuda_paged_widen_plan(p, blob, &at, plan);
			fa_cuda_paged_wide_of(plan, p, blob, 0, 0, &wide);
			of_forward = &wide.attention;
			packed = fa_cuda_paged_packed_find(chip, of_forward, plan);
		}
		if (!packed)
			plan->forward = fa_cuda_paged_sm90_find(chip, of_forward, false,
			                                        count.longest_forward);
		if (!plan->forward)
			plan->forward = fa_cuda_paged_find(
				chip, is_plain(p) ? FA_CUDA_PAGED_BAND : FA_CUDA_PAGED_RICH,
				cache->store, cache->dtype, cache->head_dim, cache->head_dim_v, 0);
		if (!plan->forward)
			plan->forward = fa_cuda_paged_find(chip, FA_CUDA_PAGED_RICH, cache->store,
			                                   cache->dtype, cache->head_dim,
			                                   cache->head_dim_v, 0);
		if (!plan->forward)
			return fa_cuda_paged_no_kernel(chip, "attention of many rows over pages",
			                               text, text_bytes);
		plan->forward_items = plan->packed_prefixes > 0 ? plan->packed_items
		                                                : count.forward;
		plan->forward_items_at = at;
		at += fa_cuda_paged_align(plan->forward_items * sizeof(struct fa_cuda_paged_item));
		plan->forward_blocks_at = at;
		if (packed) {
			r = fa_cuda_paged_packed_plan(of_forward, blob, plan);
			if (r < 0)
				return r;
			at += plan->forward_blocks * sizeof(struct fa_cuda_paged_unit);
			plan->unit_partials_at = plan->workspace_bytes;
			plan->workspace_bytes += fa_cuda_paged_packed_bytes(plan);
		} else {
			r = fa_cuda_paged_plan_prefill(of_forward, blob, plan, text, text_bytes);
			if (r < 0)
				return r;
			fa_cuda_paged_sm90_partition(chip, of_forward, plan);
			at += fa_cuda_paged_align(plan->forward_blocks *
			                          sizeof(struct fa_cuda_paged_block));
		}
	}
	if (plan->wide_rows > 0) {
		plan->wide_at = (plan->workspace_bytes + FA_PAGED_SLOT_BYTES - 1) /
		                FA_PAGED_SLOT_BYTES * FA_PAGED_SLOT_BYTES;
		plan->workspace_bytes = plan->wide_at + fa_cuda_paged_wide_bytes(plan, cache);
	}
	plan->blob_bytes = at;
	return 0;
}

static void fill_attention(const struct fa_cuda_paged_plan *plan,
                           const struct fa_paged_attention *p,
                           const struct fa_cuda_paged_kernel *kernel, uint64_t blob,
                           uint64_t workspace, uint64_t epoch,
                           struct fa_cuda_paged_attention *ret_args)
{
	const struct fa_paged_cache *cache = p->cache;
	const int64_t bytes = fa_cuda_paged_element_bytes(cache->dtype);
	const bool splits = kernel->kind == FA_CUDA_PAGED_SPLIT;
	const bool decode = kernel->kind == FA_CUDA_PAGED_DECODE || splits ||
	                    kernel->kind == FA_CUDA_PAGED_LATENT;
	const size_t sums_at = (size_t)plan->places * plan->partial_rows * (size_t)kernel->dim_v *
	                       sizeof(float);
	const uint64_t partials = workspace + FA_CUDA_PAGED_COUNTERS_BYTES;
	int64_t left = p->window_left, right = p->window_right;
	struct fa_cuda_paged_attention args = {
		.attention = {
			.q = fa_cuda_paged_tensor_of(&p->q, bytes),
			.out = fa_cuda_paged_tensor_of(&p->out, bytes),
			.lse = p->lse,
			.lse_stride_token = p->lse_stride_token,
			.lse_stride_head = p->lse_stride_head,
			.alibi_slopes = p->alibi_slopes,
			.sinks = p->sinks,
			.heads = p->heads,
			.group = p->heads / cache->kv_heads,
			.head_dim = cache->head_dim,
			.head_dim_v = cache->head_dim_v,
			.scale_log2 = (float)(p->scale * M_LOG2E),
			.aligned = fa_cuda_paged_tensor_aligned(&p->q, bytes) &&
			           fa_cuda_paged_tensor_aligned(&p->out, bytes),
		},
		.pages = fa_cuda_paged_pages_of(cache, p->layer, p->step->table),
		.tree = p->tree,
		.positions = p->positions,
		.epoch = epoch,
		.kv_heads = cache->kv_heads,
		.slices = (int32_t)fa_cuda_paged_ceil_div((uint64_t)cache->head_dim_v, (uint64_t)kernel->dim_v),
	};

	left = left < 0 || left > FA_CUDA_WINDOW_MAX ? FA_CUDA_WINDOW_MAX : left;
	right = right < 0 || right > FA_CUDA_WINDOW_MAX ? FA_CUDA_WINDOW_MAX : right;
	args.tree_right = (int32_t)right;
	args.attention.window_left = (int32_t)left;
	args.attention.window_right = plan->causal ? 0 : (int32_t)right;
	fa_cuda_attention_cap(&args.attention, p->scale, p->softcap);
	if (decode) {
		args.counters = (void *)(uintptr_t)workspace;
		args.partials = (void *)(uintptr_t)partials;
		args.partial_sums = (void *)(uintptr_t)(partials + sums_at);
		args.tiles_each = plan->tiles_each;
		args.tiles_extra = plan->tiles_extra;
		args.epilogue_tiles = plan->epilogue_tiles;
		args.partial_rows = splits ? plan->partial_rows : plan->part_rows;
		args.n_items = plan->decode_items;
		if (splits) {
			args.items = (const void *)(uintptr_t)(blob + plan->decode_items_at);
			args.block_items = (const void *)(uintptr_t)(blob + plan->block_items_at);
			args.splits = (const void *)(uintptr_t)(blob + plan->splits_at);
			args.suffixes = (const void *)(uintptr_t)(blob + plan->suffixes_at);
			args.tokens = (const void *)(uintptr_t)(blob + plan->tokens_at);
			args.suffix_counters = args.counters + FA_CUDA_PAGED_BLOCKS;
		} else if (plan->decode_items <= FA_CUDA_PAGED_INLINE_ITEMS) {
			args.inline_items = plan->decode_items;
			memcpy(args.first_items, plan->first_items,
			       plan->decode_items * sizeof(args.first_items[0]));
			for (uint32_t i = 0; i < FA_CUDA_PAGED_INLINE_ITEMS; i++)
				args.first_tiles[i] = i < plan->decode_items
				                              ? plan->first_items[i].tile
				                              : UINT32_MAX;
		} else {
			args.items = (const void *)(uintptr_t)(blob + plan->decode_items_at);
			args.block_items = (const void *)(uintptr_t)(blob + plan->block_items_at);
		}
	} else {
		args.items = (const void *)(uintptr_t)(blob + plan->forward_items_at);
		args.blocks = (const void *)(uintptr_t)(blob + plan->forward_blocks_at);
	}
	*ret_args = args;
}

bool fa_cuda_paged_can_append(const struct fa_cuda_paged_plan *plan,
                              const struct fa_paged_attention *attention,
                              const struct fa_paged_append *append)
{
	const int64_t bytes = fa_cuda_paged_element_bytes(attention->cache->dtype);

	return plan->appends && append->cache == attention->cache &&
	       append->step == attention->step && append->layer == attention->layer &&
	       append->k.data && append->v.data && append->heads == 0 && append->rotary.dim == 0 &&
	       fa_cuda_paged_tensor_aligned(&append->k, bytes) &&
	       fa_cuda_paged_tensor_aligned(&append->v, bytes);
}

void fa_cuda_paged_add_append(struct fa_cuda_paged_launch *launch,
                              const struct fa_paged_append *append)
{
	struct fa_cuda_attention *attention = &launch->args.attention.attention;
	const int64_t bytes = fa_cuda_paged_element_bytes(append->cache->dtype);

	attention->k = fa_cuda_paged_tensor_of(&append->k, bytes);
	attention->v = fa_cuda_paged_tensor_of(&append->v, bytes);
}

/* Returns how many parts (row blocks of KV heads) the launch can report one by one; 0: none. Blocks
 * may still be exiting then, so they must not read the step's memory, and no launch may follow. */
static uint32_t parts_told(const struct fa_cuda_paged_plan *plan)
{
	const struct fa_cuda_paged_kernel *kernel = plan->decode;

	if (!kernel->small || !fa_cuda_paged_kernel_is_special(kernel) || plan->decode_items != 1 ||
	    plan->first_items[0].parts > FA_CUDA_DONE_PARTS)
		return 0;
	return plan->first_items[0].parts;
}

int fa_cuda_paged_launch_attention(const struct fa_cuda_paged_plan *plan,
                                   const struct fa_paged_attention *p, uint64_t blob,
                                   uint64_t workspace, uint64_t epoch,
                                   struct fa_cuda_paged_launch *launches)
{
	const bool quantised = p->cache->store != FA_PAGED_PLAIN;
	const struct fa_paged_attention *of_forward = p;
	struct fa_cuda_paged_launch *launch = launches;
	struct fa_cuda_paged_wide wide;

	if (plan->wide_rows > 0) {
		fa_cuda_paged_widen_launch(plan, p, blob, workspace, launch++);
		fa_cuda_paged_wide_of(plan, p, NULL, blob, workspace, &wide);
		of_forward = &wide.attention;
	}
	if (plan->forward_blocks > 0) {
		launch->kernel = plan->forward;
		fill_attention(plan, of_forward, plan->forward, blob, workspace, epoch,
		               &launch->args.attention);
		launch->grid_x = plan->forward_blocks * (uint32_t)p->heads *
		                 (uint32_t)launch->args.attention.slices;
		launch->grid_y = 1;
		launch->n_maps = 0;
		launch->parts = 0;
		if (plan->forward->kind == FA_CUDA_PAGED_PACKED)
			fa_cuda_paged_packed_launch(plan, of_forward, blob, workspace, launch);
		else
			fa_cuda_paged_sm90_launch(plan, of_forward, launch);
		launch++;
	}
	if (plan->decode_grid > 0) {
		launch->kernel = plan->decode;
		launch->n_maps = 0;
		launch->parts = parts_told(plan);
		fill_attention(plan, p, plan->decode, blob, workspace, epoch,
		               &launch->args.attention);
		if (quantised)
			fa_cuda_paged_quantised_of(p->cache, p->layer,
			                           &launch->args.attention_quantised.quantised);
		if (plan->decode->small)
			memcpy(quantised ? launch->args.small_attention_quantised.table
			                 : launch->args.small_attention.table,
			       plan->table, plan->inline_table * sizeof(plan->table[0]));
		launch->grid_x = plan->decode_grid;
		launch->grid_y = 1;
		if (plan->decode->kind == FA_CUDA_PAGED_LATENT)
			fa_cuda_paged_latent_launch(plan, p, launch);
		launch++;
	}
	return (int)(launch - launches);
}
