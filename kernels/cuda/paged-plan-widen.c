/*
 * Many rows over 8-bit codes. Kernels that read codes take few rows at once, so that a prompt would
 * read its keys hundreds of times. Instead a launch writes the keys of these sequences as bf16 into
 * the workspace, where kernels for pages of bf16 find them: each sequence is one page there.
 */
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/paged-plan-sm90.h"

/* Rows of a KV head from which on that is sooner: reading codes for 32 rows takes a seventh of the
 * time of widening them. */
#define WIDEN_ROWS 256u
/* The daemon bounds a stream's workspace. */
#define WIDE_BYTES_MAX ((uint64_t)320 << 20)

/* Each sequence begins at a multiple of this number of rows. */
#define ALIGN_ROWS 128u
_Static_assert(ALIGN_ROWS % FA_CUDA_WIDEN_TOKENS == 0, "a thread block has one sequence");

static uint32_t widen_from(const struct fa_paged_attention *p)
{
	const uint32_t group = (uint32_t)(p->heads / p->cache->kv_heads);
	const uint32_t tokens = fa_cuda_paged_ceil_div(WIDEN_ROWS, group);

	return FA_CUDA_PAGED_WIDENS | tokens;
}

/* The first token of sequence @b that is widened. */
static uint32_t first_of(const struct fa_paged_attention *p, int32_t b)
{
	const struct fa_paged_step *step = p->step;
	const int64_t left = fa_cuda_paged_left(p), first = step->first ? step->first[b] : 0;
	const int64_t before = (int64_t)step->lengths[b] - fa_cuda_paged_n_new(step, b) - left;

	return (uint32_t)(left >= 0 && before > first ? before : first) / ALIGN_ROWS * ALIGN_ROWS;
}

static uint32_t rows_of(const struct fa_paged_attention *p, int32_t b)
{
	const uint32_t rows = p->step->lengths[b] - first_of(p, b);

	return (rows + ALIGN_ROWS - 1) / ALIGN_ROWS * ALIGN_ROWS;
}

static uint64_t bytes_of(const struct fa_paged_cache *cache, uint64_t rows)
{
	return rows * (uint64_t)cache->kv_heads * (uint64_t)(cache->head_dim + cache->head_dim_v) *
	       2;
}

/* Rows of all widened sequences; 0: there are none, or too many. @ret_n: sequences. */
static uint32_t all_rows(const struct fa_paged_attention *p, uint32_t *ret_n)
{
	const uint32_t from = widen_from(p);
	uint64_t rows = 0;

	*ret_n = 0;
	for (int32_t b = 0; b < p->step->batch; b++) {
		if (!fa_cuda_paged_is_prefill(p, from, b) || p->step->lengths[b] <= first_of(p, b))
			continue;
		rows += rows_of(p, b);
		++*ret_n;
	}
	return bytes_of(p->cache, rows) <= WIDE_BYTES_MAX ? (uint32_t)rows : 0;
}

static bool possible(const struct fa_paged_attention *p)
{
	const struct fa_paged_cache *cache = p->cache;

	/* A sequence's page has the same number for K and V. */
	return cache->store != FA_PAGED_PLAIN && cache->dtype == FA_ATTENTION_BF16 &&
	       cache->v_offset > 0 && cache->head_dim == cache->head_dim_v && !p->deterministic;
}

/* [batch] each, then the items, then the item of each thread block. */
struct arrays {
	uint32_t *lengths, *first, *table_start, *slots;
	struct fa_cuda_paged_item *items;
	uint32_t *block_items;
};

/* Returns their bytes. @at: where they begin. */
static size_t arrays_of(uintptr_t at, int32_t batch, uint32_t rows, struct arrays *ret_arrays)
{
	const size_t each = fa_cuda_paged_align((size_t)batch * sizeof(uint32_t));
	const size_t items = (size_t)batch * sizeof(*ret_arrays->items);

	*ret_arrays = (struct arrays){
		.lengths = (void *)at,
		.first = (void *)(at + each),
		.table_start = (void *)(at + 2 * each),
		.slots = (void *)(at + 3 * each),
		.items = (void *)(at + 4 * each),
		.block_items = (void *)(at + 4 * each + items),
	};
	return 4 * each + items +
	       fa_cuda_paged_align(rows / FA_CUDA_WIDEN_TOKENS * sizeof(uint32_t));
}

size_t fa_cuda_paged_widen_bytes(const struct fa_paged_attention *p)
{
	struct arrays arrays;
	uint32_t n, rows;

	rows = possible(p) ? all_rows(p, &n) : 0;
	return rows > 0 ? arrays_of(0, p->step->batch, rows, &arrays) : 0;
}

static void plain_of(const struct fa_paged_attention *p, struct fa_cuda_paged_wide *ret_wide)
{
	ret_wide->cache = *p->cache;
	ret_wide->cache.store = FA_PAGED_PLAIN;
	ret_wide->step = *p->step;
	ret_wide->step.host_table = NULL;
	ret_wide->attention = *p;
	ret_wide->attention.cache = &ret_wide->cache;
	ret_wide->attention.step = &ret_wide->step;
}

bool fa_cuda_paged_widen_find(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                              struct fa_cuda_paged_plan *plan)
{
	struct fa_cuda_paged_wide wide;
	uint32_t n, rows;

	if (!possible(p))
		return false;
	rows = all_rows(p, &n);
	plain_of(p, &wide);
	/* Other kernels for many rows are not much sooner. */
	if (rows == 0 || !fa_cuda_paged_sm90_find(chip, &wide.attention, false, INT32_MAX))
		return false;
	plan->kernel = fa_cuda_paged_find(chip, FA_CUDA_PAGED_WIDEN, p->cache->store,
	                                  p->cache->dtype, 0, 0, 0);
	if (!plan->kernel)
		return false;
	plan->wide_rows = rows;
	plan->prefill_tokens = widen_from(p);
	return true;
}

void fa_cuda_paged_widen_plan(const struct fa_paged_attention *p, char *blob, size_t *at,
                              struct fa_cuda_paged_plan *plan)
{
	const uint32_t row_bytes = (uint32_t)p->cache->head_dim * 2;
	struct arrays arrays;
	uint32_t row = 0, n = 0;

	plan->wide_arrays_at = *at;
	plan->wide_batch = p->step->batch;
	*at += arrays_of((uintptr_t)blob + *at, p->step->batch, plan->wide_rows, &arrays);
	for (int32_t b = 0; b < p->step->batch; b++) {
		struct fa_cuda_paged_item *const item = &arrays.items[n];
		const uint32_t first = p->step->first ? p->step->first[b] : 0;
		uint32_t skipped, rows;

		arrays.lengths[b] = arrays.first[b] = arrays.table_start[b] = arrays.slots[b] = 0;
		if (!fa_cuda_paged_is_prefill(p, plan->prefill_tokens, b) ||
		    p->step->lengths[b] <= first_of(p, b))
			continue;
		skipped = first_of(p, b);
		rows = rows_of(p, b);
		arrays.lengths[b] = p->step->lengths[b] - skipped;
		arrays.first[b] = first > skipped ? first - skipped : 0;
		arrays.table_start[b] = (uint32_t)b;
		arrays.slots[b] = (uint32_t)((uint64_t)row * row_bytes / FA_PAGED_SLOT_BYTES);
		fa_cuda_paged_item_of(p->step, b, item);
		item->tile = row;
		item->begin = skipped;
		for (uint32_t i = 0; i < rows / FA_CUDA_WIDEN_TOKENS; i++)
			arrays.block_items[row / FA_CUDA_WIDEN_TOKENS + i] = n;
		row += rows;
		n++;
	}
}

void fa_cuda_paged_wide_of(const struct fa_cuda_paged_plan *plan,
                           const struct fa_paged_attention *p, char *host_blob, uint64_t blob,
                           uint64_t workspace, struct fa_cuda_paged_wide *ret_wide)
{
	struct arrays arrays;

	plain_of(p, ret_wide);
	arrays_of((uintptr_t)host_blob + plan->wide_arrays_at, plan->wide_batch, plan->wide_rows,
	          &arrays);
	ret_wide->cache.pool = (void *)(uintptr_t)(workspace + plan->wide_at);
	ret_wide->cache.layers = 1;
	ret_wide->cache.layer_stride = 0;
	ret_wide->cache.page_tokens = (int32_t)plan->wide_rows;
	ret_wide->cache.v_offset = (int64_t)(bytes_of(p->cache, plan->wide_rows) / 2);
	ret_wide->cache.k_scales = ret_wide->cache.v_scales = NULL;
	ret_wide->attention.layer = 0;
	ret_wide->step.lengths = ret_wide->step.lengths_before = arrays.lengths;
	ret_wide->step.first = arrays.first;
	ret_wide->step.table_start = arrays.table_start;
	ret_wide->step.table_entries = (uint32_t)p->step->batch;
	arrays_of(blob + plan->wide_arrays_at, plan->wide_batch, plan->wide_rows, &arrays);
	ret_wide->step.table = arrays.slots;
}

size_t fa_cuda_paged_wide_bytes(const struct fa_cuda_paged_plan *plan,
                                const struct fa_paged_cache *cache)
{
	return bytes_of(cache, plan->wide_rows);
}

void fa_cuda_paged_widen_launch(const struct fa_cuda_paged_plan *plan,
                                const struct fa_paged_attention *p, uint64_t blob,
                                uint64_t workspace, struct fa_cuda_paged_launch *launch)
{
	const uint64_t wide = workspace + plan->wide_at;
	struct arrays arrays;

	arrays_of(blob + plan->wide_arrays_at, plan->wide_batch, plan->wide_rows, &arrays);
	launch->kernel = plan->kernel;
	launch->grid_x = plan->wide_rows / FA_CUDA_WIDEN_TOKENS;
	launch->grid_y = 2 * (uint32_t)p->cache->kv_heads;
	launch->n_maps = 0;
	launch->parts = 0;
	launch->args.widen = (struct fa_cuda_paged_widen){
		.pages = fa_cuda_paged_pages_of(p->cache, p->layer, p->step->table),
		.items = arrays.items,
		.block_items = arrays.block_items,
		.rows = plan->wide_rows,
		.head_dim = p->cache->head_dim,
		.head_dim_v = p->cache->head_dim_v,
		.k = (void *)(uintptr_t)wide,
		.v = (void *)(uintptr_t)(wide + bytes_of(p->cache, plan->wide_rows) / 2),
	};
	fa_cuda_paged_quantised_of(p->cache, p->layer, &launch->args.widen.quantised);
}
