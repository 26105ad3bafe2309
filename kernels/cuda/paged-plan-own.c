/*
 * Lengths and cu_q are in the device's memory, so a launch there divides the work
 * (sm80/own_begin.h); bounds alone choose which kernels run, and how many blocks they have at most.
 */
#include "kernels/cuda/paged-plan-packed.h"
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/paged-plan-sm90.h"
#include "kernels/cuda/sm80/own_kernels.h"
#include "kernels/cuda/sm90/kernels.h"
#include "kernels/cuda/sm90/paged_kernels.h"

#include <math.h>
#include <string.h>

/* One block reduces their results. */
#define PART_BLOCKS 64

/* Parts of all rows by chunks. */
#define CHUNKS_MAX 16384

/* The portable kernels: blocks of many rows that a multiprocessor runs at once, rows of a block of
 * decode, times for a key. */
#define FORWARD_BLOCKS 2
#define FORWARD_COST 10
#define DECODE_ROWS 32
#define DECODE_COST 3

static int64_t stored_bytes(const struct fa_paged_own *own)
{
	return own->store == FA_PAGED_E4M3 ? 1 : fa_cuda_paged_element_bytes(own->dtype);
}

static bool is_aligned(const struct fa_paged_own *own, const struct fa_attention_tensor *tensor)
{
	const int64_t bytes = stored_bytes(own);

	return (uintptr_t)tensor->data % 16 == 0 &&
	       (own->pages == 1 || tensor->stride_batch * bytes % 16 == 0) &&
	       (own->page_tokens == 1 || tensor->stride_token * bytes % 16 == 0) &&
	       (own->kv_heads == 1 || tensor->stride_head * bytes % 16 == 0);
}

static bool are_aligned(const struct fa_paged_own *own)
{
	return is_aligned(own, &own->k) && is_aligned(own, &own->v);
}

/* True if pages are whole strips and a head's rows follow one another, as in the pool. */
static bool are_in_strips(const struct fa_paged_own *own)
{
	return own->page_tokens % FA_CUDA_PAGED_STRIP == 0 &&
	       own->k.stride_token == own->head_dim && own->v.stride_token == own->head_dim_v;
}

static int check_pages(const struct fa_cuda_chip *chip, const struct fa_paged_own *own, char *text,
                       size_t text_bytes)
{
	if (own->store == FA_PAGED_PLAIN)
		return 0;
	if (own->dtype == FA_ATTENTION_F32)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "dtype fp32 is not supported with e4m3 on a GPU: fp16 "
		                          "or bf16");
	if (own->head_dim % 16 != 0 || own->head_dim_v % 16 != 0)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "head dims %d and %d are not supported with e4m3 on a "
		                          "GPU: multiples of 16",
		                          own->head_dim, own->head_dim_v);
	return 0;
}

static uint32_t longest(const struct fa_paged_own_attention *p)
{
	const int64_t table = (int64_t)p->table_columns * p->pages->page_tokens;

	return (uint32_t)(p->max_k < table ? p->max_k : table);
}

/* ---- chunks and prefixes, which the device's plan divides sequences by */

/* Rows of a pattern that decode together, at least: each group computes what its first row sees. */
#define PATTERN_TOKENS 8

/* Pages, and so positions, are far below. */
#define PATTERN_BLOCK_MAX ((int32_t)1 << 30)

/* A row alone sees its sequence's prefix anyway. */
static bool has_prefixes(const struct fa_paged_own_attention *p)
{
	return p->prefix_lengths && p->causal && p->max_q > 1;
}

/* Returns the rows of an item of a pattern, which then sees no key behind them; 0: all. */
static uint32_t pattern_rows(const struct fa_paged_own_attention *p)
{
	const uint32_t rows = DECODE_ROWS / (uint32_t)(p->heads / p->pages->kv_heads);

	if (!p->pattern.block_tokens || !p->causal || has_prefixes(p))
		return 0;
	return rows > PATTERN_TOKENS ? rows : PATTERN_TOKENS;
}

static bool has_parts(const struct fa_paged_own_attention *p)
{
	return (p->chunk_tokens > 0 && p->max_q > 1) || has_prefixes(p) ||
	       (pattern_rows(p) > 0 && (uint32_t)p->max_q > pattern_rows(p));
}

/* Bounds a sequence's parts: rows before the first key, those of chunks that begin among the rows,
 * and those of a prefix. */
static uint64_t parts_each(const struct fa_paged_own_attention *p)
{
	uint64_t parts = 1;

	if (!has_parts(p))
		return 1;
	if (p->chunk_tokens > 0)
		parts += (uint64_t)((p->max_q - 1) / p->chunk_tokens) + 2;
	parts += has_prefixes(p);
	if (pattern_rows(p) > 0)
		parts += (uint64_t)p->max_q / pattern_rows(p);
	return parts < (uint64_t)p->max_q ? parts : (uint64_t)p->max_q;
}

/* Bounds the parts of all sequences. */
static uint64_t all_parts(const struct fa_paged_own_attention *p)
{
	const uint64_t batch = (uint64_t)p->batch, each = parts_each(p) * batch;
	uint64_t all = 2 * batch;

	if (!has_parts(p))
		return batch;
	if (p->chunk_tokens > 0)
		all += (uint64_t)(p->total_q / p->chunk_tokens) + 2 * batch;
	if (pattern_rows(p) > 0)
		all += (uint64_t)p->total_q / pattern_rows(p);
	all = each < all ? each : all;
	/* Each has a row. */
	return all < (uint64_t)p->total_q ? all : (uint64_t)p->total_q;
}

/* The longest sequence of keys that a row may see. */
static uint32_t longest_part(const struct fa_paged_own_attention *p)
{
	const uint32_t keys = longest(p);

	return p->chunk_tokens > 0 && p->chunk_tokens < keys ? (uint32_t)p->chunk_tokens : keys;
}

static uint32_t decode_rows(const struct fa_cuda_paged_plan *plan,
                            const struct fa_paged_own_attention *p)
{
	const uint32_t max_q = (uint32_t)p->max_q;

	return max_q < plan->prefill_tokens ? max_q : plan->prefill_tokens - 1;
}

/* Bounds the blocks of @rows rows of a KV head, of which a sequence has at most @most. */
static uint64_t row_blocks(const struct fa_paged_own_attention *p, uint64_t most, uint64_t rows)
{
	const uint64_t batch = (uint64_t)p->batch,
		       group = (uint64_t)(p->heads / p->pages->kv_heads);
	const uint64_t each = batch * (fa_cuda_paged_ceil_div(most, rows) + parts_each(p) - 1);
	const uint64_t all = (uint64_t)p->total_q * group / rows + all_parts(p);

	return each < all ? each : all;
}

static size_t take(size_t *at, size_t bytes)
{
	const size_t here = *at;

	*at += (bytes + 63) / 64 * 64;
	return here;
}

/* @dim: of K, or more. */
static const struct fa_cuda_paged_kernel *find_decode(const struct fa_cuda_chip *chip,
                                                      const struct fa_paged_own_attention *p,
                                                      int32_t dim, uint64_t rows)
{
	return fa_cuda_paged_find(chip, FA_CUDA_PAGED_OWN_DECODE, p->pages->store, p->pages->dtype,
	                          dim, p->pages->head_dim_v, rows > 4096 ? 4096 : (int32_t)rows);
}

static int plan_decode(const struct fa_cuda_chip *chip, const struct fa_paged_own_attention *p,
                       struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const struct fa_paged_own *own = p->pages;
	const uint64_t group = (uint64_t)(p->heads / own->kv_heads);
	const uint64_t rows = (uint64_t)decode_rows(plan, p) * group;
	struct fa_cuda_chip with = *chip;
	uint64_t parts, tiles = 1;

	/* Bulk copies need alignment to 16 bytes. A copy per row takes four times as long as
	 * cp.async. */
	if (!are_aligned(own) || p->pattern.block_tokens || rows > FA_SM90_PAGED_ROWS_MAX ||
	    !(are_in_strips(own) || fa_cuda_paged_sm90_can_map(own)))
		with.portable_paged = true;
	plan->decode = find_decode(&with, p, own->head_dim, rows);
	if (plan->decode && p->pattern.block_tokens && own->store != FA_PAGED_PLAIN &&
	    plan->decode->dim == FA_CUDA_OWN_CODES_NO_PATTERN)
		plan->decode = find_decode(&with, p, FA_CUDA_OWN_CODES_NO_PATTERN + 1, rows);
	if (!plan->decode)
		return fa_cuda_paged_no_kernel(chip, "attention over a client's own pages", text,
		                               text_bytes);
	plan->partial_rows = (uint32_t)plan->decode->rows;
	plan->part_rows = rows < plan->partial_rows ? (uint32_t)rows : plan->partial_rows;
	parts = (uint64_t)own->kv_heads *
	        fa_cuda_paged_ceil_div((uint64_t)own->head_dim_v, (uint64_t)plan->decode->dim_v);
	parts *= row_blocks(p, rows, (uint64_t)plan->decode->rows);
	if (!p->deterministic)
		tiles += longest_part(p) / FA_CUDA_PAGED_TILE;
	if (parts > INT32_MAX || parts * tiles > INT32_MAX)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "sequences of %d keys may have more than %d tiles of %d "
		                          "keys, which is not supported",
		                          p->max_k, INT32_MAX, FA_CUDA_PAGED_TILE);
	plan->decode_grid = (uint32_t)(chip->sms > 0 ? chip->sms : 1) *
	                    (uint32_t)plan->decode->blocks;
	if (plan->decode_grid > parts * tiles)
		plan->decode_grid = (uint32_t)(parts * tiles);
	if (plan->decode_grid > FA_CUDA_PAGED_BLOCKS)
		plan->decode_grid = FA_CUDA_PAGED_BLOCKS;
	plan->places = 2 * plan->decode_grid;
	return 0;
}

/* Stands in for the request where neither pages nor other sequences matter: one sequence over the
 * pool, as long as bounds allow. */
struct stand_in {
	struct fa_paged_attention attention;
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	uint32_t cu_new[2], length;
};

static void stand_in_init(struct stand_in *stand_in, const struct fa_paged_own_attention *p)
{
	const struct fa_paged_own *own = p->pages;

	*stand_in = (struct stand_in){
		.attention = {
			.cache = &stand_in->cache,
			.step = &stand_in->step,
			.heads = p->heads,
			.q = p->q,
			.out = p->out,
			.scale = p->scale,
			.softcap = p->softcap,
			.causal = p->causal,
			.window_left = p->window_left,
			.window_right = p->window_right,
			.alibi_slopes = p->alibi_slopes,
			.sinks = p->sinks,
			.deterministic = p->deterministic,
		},
		.cache = {
			.dtype = own->dtype,
			.kv_heads = own->kv_heads,
			.head_dim = own->head_dim,
			.head_dim_v = own->head_dim_v,
			.page_tokens = own->page_tokens,
		},
		.step = {
			.batch = 1,
			.cu_new = stand_in->cu_new,
			.lengths = &stand_in->length,
		},
		.cu_new = { 0, (uint32_t)p->total_q },
		.length = longest_part(p),
	};
}

static uint64_t row_blocks_of(const struct fa_paged_own_attention *p, uint64_t rows)
{
	const uint64_t all = (uint64_t)p->total_q / rows + all_parts(p);
	const uint64_t each = fa_cuda_paged_ceil_div((uint64_t)p->max_q, rows) + parts_each(p) - 1;

	return each * (uint64_t)p->batch < all ? each * (uint64_t)p->batch : all;
}

/* True if decode, which divides the keys, is sooner than the portable kernel for many rows. */
static bool decode_is_sooner(const struct fa_cuda_chip *chip,
                             const struct fa_cuda_paged_kernel *forward,
                             const struct fa_paged_own_attention *p)
{
	const uint64_t group = (uint64_t)(p->heads / p->pages->kv_heads),
		       sms = (uint64_t)(chip->sms > 0 ? chip->sms : 1);
	const uint64_t forward_blocks = row_blocks_of(p, (uint64_t)forward->rows) *
	                                (uint64_t)p->heads;
	const uint64_t decode_blocks = row_blocks(p, (uint64_t)p->max_q * group, DECODE_ROWS) *
	                               (uint64_t)p->pages->kv_heads;

	if (p->deterministic ||
	    decode_blocks * (longest_part(p) / FA_CUDA_PAGED_TILE + 1) > INT32_MAX)
		return false;
	return decode_blocks * DECODE_COST <
	       fa_cuda_paged_ceil_div(forward_blocks, FORWARD_BLOCKS * sms) * FORWARD_COST * sms;
}

static int plan_forward(const struct fa_cuda_chip *chip, const struct fa_paged_own_attention *p,
                        struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const struct fa_paged_own *own = p->pages;
	struct stand_in stand_in;
	uint64_t blocks, slices;

	stand_in_init(&stand_in, p);
	if (p->chunk_tokens == 0 && !has_prefixes(p) && !p->pattern.block_tokens &&
	    fa_cuda_paged_own_packed_find(chip, p, &stand_in.attention, plan))
		return 0;
	if (p->pattern.block_tokens)
		return 0;
	/* Kernels for many rows shift those of a prefix, which windows and ALiBi would notice. */
	if (p->max_q < (int32_t)FA_CUDA_PAGED_PREFILL_TOKENS ||
	    (has_prefixes(p) && (p->window_left >= 0 || p->window_right >= 0 || p->alibi_slopes)))
		return 0;
	if (own->store == FA_PAGED_PLAIN && own->dtype != FA_ATTENTION_F32 &&
	    fa_cuda_paged_sm90_can_map(own))
		plan->forward = fa_cuda_paged_sm90_find(chip, &stand_in.attention, true,
		                                        longest_part(p));
	if (!plan->forward)
		plan->forward = fa_cuda_paged_find(chip, FA_CUDA_PAGED_OWN_FORWARD, own->store,
		                                   own->dtype, own->head_dim, own->head_dim_v, 0);
	if (plan->forward && !plan->forward->keys && decode_is_sooner(chip, plan->forward, p))
		plan->forward = NULL;
	if (!plan->forward)
		return 0;
	plan->prefill_tokens = FA_CUDA_PAGED_PREFILL_TOKENS;
	slices = fa_cuda_paged_ceil_div((uint64_t)own->head_dim_v, (uint64_t)plan->forward->dim_v);
	blocks = row_blocks_of(p, (uint64_t)plan->forward->rows);
	if (blocks * slices * (uint64_t)p->heads > INT32_MAX)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "%lld rows of %d heads need more than %d blocks",
		                          (long long)p->total_q, p->heads, INT32_MAX);
	plan->forward_blocks = (uint32_t)blocks;
	plan->forward_grid = (uint32_t)(blocks * slices * (uint64_t)p->heads);
	/* These are upper bounds. */
	fa_cuda_paged_sm90_partition(chip, &stand_in.attention, plan);
	return 0;
}

static bool is_packed(const struct fa_cuda_paged_plan *plan)
{
	return plan->forward && plan->forward->kind == FA_CUDA_PAGED_OWN_PACKED;
}

/* True if sequences may have rows, but fewer than prefill_tokens. */
static bool some_decode(const struct fa_cuda_paged_plan *plan,
                        const struct fa_paged_own_attention *p)
{
	/* Without cu_q each sequence has max_q rows. */
	return !plan->forward || (p->cu_q ? 1 : (uint32_t)p->max_q) < plan->prefill_tokens;
}

/* True if no launch needs another one that plans for it. */
static bool plan_themselves(const struct fa_cuda_paged_plan *plan,
                            const struct fa_paged_own_attention *p)
{
	if (has_parts(p) || p->pattern.block_tokens || (plan->forward && p->chunk_tokens > 0))
		return false;
	/* Most kernels by TMA do so. */
	if (plan->forward && !is_packed(plan) &&
	    (!plan->forward->keys ||
	     !FA_SM90_OWN_PREFILL_PLANS(plan->forward->dim,
	                                plan->forward->kind == FA_CUDA_PAGED_OWN_RICH) ||
	     p->batch > FA_CUDA_OWN_PREFILL_ITEMS ||
	     plan->forward_blocks > FA_CUDA_OWN_PREFILL_BLOCKS))
		return false;
	/* Decode by bulk copies does so. */
	return !plan->decode || (plan->decode->plans && p->batch <= FA_CUDA_OWN_SHARED_ITEMS);
}

int fa_cuda_paged_plan_own(const struct fa_cuda_chip *chip, const struct fa_paged_own_attention *p,
                           struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const struct fa_paged_own *own = p->pages;
	const size_t items = (size_t)all_parts(p);
	size_t at;
	int r;

	if (p->total_q == 0 || p->max_q == 0)
		return 0;
	r = check_pages(chip, own, text, text_bytes);
	if (r < 0)
		return r;
	if (p->table_stride < 0 ||
	    (p->batch > 1 && p->table_stride > (UINT32_MAX - p->table_columns) / p->batch))
		return fa_cuda_paged_fail(text, text_bytes,
		                          "table_stride %lld is not supported: a table of %d rows "
		                          "has at most 2^32 entries",
		                          (long long)p->table_stride, p->batch);
	if (p->chunk_tokens > 0 && p->total_q / p->chunk_tokens > CHUNKS_MAX)
		return fa_cuda_paged_fail(
			text, text_bytes,
			"chunk_tokens %lld divides %lld rows into more than %d "
			"parts, which is not supported over a client's pages on a "
			"GPU",
			(long long)p->chunk_tokens, (long long)p->total_q, CHUNKS_MAX);
	plan->kernel = fa_cuda_paged_find(chip, FA_CUDA_PAGED_OWN_PLAN, FA_PAGED_PLAIN, own->dtype,
	                                  0, 0, 0);
	if (!plan->kernel)
		return fa_cuda_paged_no_kernel(chip, "attention over a client's own pages", text,
		                               text_bytes);
	plan->prefill_tokens = UINT32_MAX;
	r = plan_forward(chip, p, plan, text, text_bytes);
	if (r < 0)
		return r;
	if (some_decode(plan, p)) {
		r = plan_decode(chip, p, plan, text, text_bytes);
		if (r < 0)
			return r;
	}
	if (plan_themselves(plan, p))
		plan->kernel = NULL;
	plan->grid_x = plan->grid_y = 1;
	at = FA_CUDA_PAGED_COUNTERS_BYTES;
	if (plan->decode)
		at += (size_t)plan->places * plan->partial_rows *
		      ((size_t)plan->decode->dim_v + 2) * sizeof(float);
	if (is_packed(plan)) {
		plan->unit_partials_at = take(&at, 0);
		at += fa_cuda_paged_packed_bytes(plan);
	}
	plan->own_ranges_at = take(&at, sizeof(struct fa_cuda_own_ranges));
	plan->own_items_at = take(&at, items * sizeof(struct fa_cuda_paged_item));
	plan->own_forward_items_at = take(&at, items * sizeof(struct fa_cuda_paged_item));
	plan->own_block_items_at = take(&at, plan->decode_grid * sizeof(uint32_t));
	plan->own_forward_blocks_at = take(&at, plan->forward_blocks *
	                                                sizeof(struct fa_cuda_paged_block));
	plan->own_columns_at = take(&at, (size_t)p->heads * sizeof(uint32_t));
	plan->workspace_bytes = at;
	return 0;
}

static void *address(uint64_t at)
{
	return (void *)(uintptr_t)at;
}

static int32_t bounded_window(int64_t window)
{
	return window < 0 || window > FA_CUDA_WINDOW_MAX ? FA_CUDA_WINDOW_MAX : (int32_t)window;
}

static void fill_plan(const struct fa_cuda_paged_plan *plan, const struct fa_paged_own_attention *p,
                      uint64_t workspace, struct fa_cuda_own_plan *ret_args)
{
	const struct fa_paged_own *own = p->pages;
	const struct fa_cuda_paged_kernel *const decode = plan->decode;
	const uint32_t slices = !decode ? 1
	                                : fa_cuda_paged_ceil_div((uint64_t)own->head_dim_v,
	                                                         (uint64_t)decode->dim_v);

	*ret_args = (struct fa_cuda_own_plan){
		.lengths = p->lengths,
		.cu_q = p->cu_q,
		.batch = p->batch,
		.max_q = (uint32_t)p->max_q,
		.total_q = (uint32_t)p->total_q,
		.max_k = longest(p),
		.table_stride = (uint32_t)p->table_stride,
		.forward_rows = plan->forward ? (uint32_t)plan->forward->rows : 1,
		.forward_from = plan->prefill_tokens,
		.rows = decode ? (uint32_t)decode->rows : 1,
		.group = (uint32_t)(p->heads / own->kv_heads),
		.parts = (uint32_t)own->kv_heads * slices,
		.whole = p->deterministic,
		.window_left = bounded_window(p->window_left),
		.chunk = p->chunk_tokens < INT32_MAX ? (uint32_t)p->chunk_tokens : INT32_MAX,
		.prefixes = has_prefixes(p) ? p->prefix_lengths : NULL,
		.part_tokens = pattern_rows(p),
		.heads = (uint32_t)p->heads,
		.pattern_stride = p->pattern.block_tokens ? p->pattern.vert_stride : 0,
		.pattern_step = p->pattern.head_step,
		.pattern_first = p->pattern.first_head,
		.columns = address(workspace + plan->own_columns_at),
		.items_max = (uint32_t)all_parts(p),
		.blocks = plan->decode_grid,
		.part_blocks = PART_BLOCKS,
		.forward_blocks_max = plan->forward_blocks,
		.ranges = address(workspace + plan->own_ranges_at),
		.items = address(workspace + plan->own_items_at),
		.forward_items = address(workspace + plan->own_forward_items_at),
		.block_items = address(workspace + plan->own_block_items_at),
		.forward_blocks = address(workspace + plan->own_forward_blocks_at),
	};
}

static void fill_own(const struct fa_paged_own *own, const void *ranges, bool whole,
                     struct fa_cuda_own *ret_own)
{
	const int64_t bytes = stored_bytes(own);
	const uint32_t log2 = 31 - (uint32_t)__builtin_clz((uint32_t)own->page_tokens);
	const bool in_strips = are_in_strips(own);

	*ret_own = (struct fa_cuda_own){
		.ranges = ranges,
		.k_page = own->k.stride_batch * bytes,
		.k_token = own->k.stride_token * bytes,
		.k_head = own->k.stride_head * bytes,
		.v_page = own->v.stride_batch * bytes,
		.v_token = own->v.stride_token * bytes,
		.v_head = own->v.stride_head * bytes,
		/* Exact for tokens below 2^31. */
		.page_magic = ((uint64_t)1 << (32 + log2)) / (uint64_t)own->page_tokens + 1,
		.page_shift = 32 + log2,
		.page_tokens = (uint32_t)own->page_tokens,
		.last_page = (uint32_t)own->pages - 1,
		.whole = whole,
		.aligned = are_aligned(own),
		.in_strips = in_strips,
		.in_boxes = !in_strips && own->dtype != FA_ATTENTION_F32 &&
		            fa_cuda_paged_sm90_can_map(own),
		.k_scales = own->k_scales,
		.v_scales = own->v_scales,
	};
}

/* Returns the bytes that @blocks blocks prefetch: all if a warp of each suffices, as bounds may be
 * far above use. */
static uint32_t table_bytes(const struct fa_paged_own_attention *p, uint32_t blocks)
{
	const uint64_t columns = fa_cuda_paged_ceil_div(longest(p),
	                                                (uint64_t)p->pages->page_tokens);
	const uint64_t bytes = ((uint64_t)(p->batch - 1) * (uint64_t)p->table_stride + columns) *
	                       sizeof(*p->table);

	return bytes <= (uint64_t)blocks * 32 * 128 ? (uint32_t)bytes : 0;
}

static void fill_pattern(const struct fa_paged_own_attention *p, const uint32_t *columns,
                         struct fa_cuda_own *own)
{
	const struct fa_attention_pattern *pattern = &p->pattern;
	const int32_t tokens = pattern->block_tokens < PATTERN_BLOCK_MAX ? pattern->block_tokens
	                                                                 : PATTERN_BLOCK_MAX;

	if (!tokens)
		return;
	own->pattern_strips = (uint32_t)tokens / FA_CUDA_PAGED_STRIP;
	own->pattern_tokens = tokens;
	own->pattern_local = pattern->local_blocks < PATTERN_BLOCK_MAX / tokens
	                             ? pattern->local_blocks
	                             : PATTERN_BLOCK_MAX / tokens;
	own->pattern_stride = pattern->vert_stride;
	own->columns = columns;
}

static void fill_attention(const struct fa_cuda_paged_plan *plan,
                           const struct fa_paged_own_attention *p,
                           const struct fa_cuda_paged_kernel *kernel, uint64_t workspace,
                           uint64_t epoch, struct fa_cuda_paged_attention_own *ret_args)
{
	const struct fa_paged_own *own = p->pages;
	const int64_t bytes = fa_cuda_paged_element_bytes(own->dtype);
	const bool decode = kernel == plan->decode;
	const uint64_t strips = (uint64_t)(own->page_tokens + FA_CUDA_PAGED_STRIP - 1) /
	                        FA_CUDA_PAGED_STRIP;
	const size_t sums_at = (size_t)plan->places * plan->partial_rows * (size_t)kernel->dim_v *
	                       sizeof(float);
	const uint64_t partials = workspace + FA_CUDA_PAGED_COUNTERS_BYTES;
	struct fa_cuda_paged_attention *args = &ret_args->attention.attention;

	memset(ret_args, 0, sizeof(*ret_args));
	*args = (struct fa_cuda_paged_attention){
		.attention = {
			.q = fa_cuda_paged_tensor_of(&p->q, bytes),
			.out = fa_cuda_paged_tensor_of(&p->out, bytes),
			.lse = p->lse,
			.lse_stride_token = p->lse_stride_token,
			.lse_stride_head = p->lse_stride_head,
			.alibi_slopes = p->alibi_slopes,
			.sinks = p->sinks,
			.heads = p->heads,
			.group = p->heads / own->kv_heads,
			.head_dim = own->head_dim,
			.head_dim_v = own->head_dim_v,
			.scale_log2 = (float)(p->scale * M_LOG2E),
			.window_left = bounded_window(p->window_left),
			.window_right = p->causal ? 0 : bounded_window(p->window_right),
			.aligned = fa_cuda_paged_tensor_aligned(&p->q, bytes) &&
			           fa_cuda_paged_tensor_aligned(&p->out, bytes),
		},
		.pages = {
			.k = (char *)own->k.data,
			.v = (char *)own->v.data,
			.table = (const uint32_t *)p->table,
			/* For pages of whole strips. */
			.page_magic = ((uint64_t)1 << 32) / strips + 1,
			.page_strips = (uint32_t)strips,
		},
		.epoch = epoch,
		.kv_heads = own->kv_heads,
		.slices = (int32_t)fa_cuda_paged_ceil_div((uint64_t)own->head_dim_v, (uint64_t)kernel->dim_v),
	};
	fa_cuda_attention_cap(&args->attention, p->scale, p->softcap);
	if (decode) {
		args->counters = address(workspace);
		args->partials = address(partials);
		args->partial_sums = address(partials + sums_at);
		args->partial_rows = plan->part_rows;
		args->n_items = (uint32_t)all_parts(p);
		args->items = address(workspace + plan->own_items_at);
		args->block_items = address(workspace + plan->own_block_items_at);
	} else {
		args->items = address(workspace + plan->own_forward_items_at);
		args->blocks = address(workspace + plan->own_forward_blocks_at);
	}
	ret_args->attention.quantised = (struct fa_cuda_paged_quantised){
		.store = (int32_t)own->store,
		.dtype = (int32_t)own->dtype,
	};
	fill_own(own, address(workspace + plan->own_ranges_at), p->deterministic, &ret_args->own);
	ret_args->own.starts = p->chunk_tokens > 0;
	ret_args->own.right = bounded_window(p->window_right);
	fill_pattern(p, address(workspace + plan->own_columns_at), &ret_args->own);
	ret_args->own.table_bytes = table_bytes(p, decode ? plan->decode_grid : plan->forward_grid);
	if (!plan->kernel || kernel->kind == FA_CUDA_PAGED_OWN_PACKED) {
		const size_t plan_bytes = kernel->kind == FA_CUDA_PAGED_OWN_PACKED
		                                  ? sizeof(struct fa_cuda_own_packed_plan)
		                          : decode ? sizeof(struct fa_cuda_own_shared_plan)
		                                   : sizeof(struct fa_cuda_own_prefill_plan);

		fill_plan(plan, p, workspace, &ret_args->own.plan);
		ret_args->own.ranges = NULL;
		ret_args->own.shared_plan = (uint32_t)kernel->shared_bytes - (uint32_t)plan_bytes;
	}
}

int fa_cuda_paged_launch_own(const struct fa_cuda_paged_plan *plan,
                             const struct fa_paged_own_attention *p, uint64_t workspace,
                             uint64_t epoch, struct fa_cuda_paged_launch *launches)
{
	const struct fa_cuda_paged_kernel *kernels[] = { plan->kernel, plan->decode,
		                                         plan->forward };
	const uint32_t grids[] = { 1, plan->decode_grid, plan->forward_grid };
	int n = 0;

	for (int i = 0; i < 3; i++) {
		struct fa_cuda_paged_launch *launch = &launches[n];

		if (!kernels[i])
			continue;
		launch->kernel = kernels[i];
		launch->grid_x = grids[i];
		launch->grid_y = 1;
		launch->parts = launch->n_maps = 0;
		if (i == 0)
			fill_plan(plan, p, workspace, &launch->args.own_plan);
		else
			fill_attention(plan, p, kernels[i], workspace, epoch, &launch->args.own);
		if (launch->kernel->maps && launch->args.own.own.in_boxes)
			fa_cuda_paged_sm90_map_rows(p->pages, launch);
		if (i == 2 && kernels[i]->keys) {
			struct stand_in stand_in;

			stand_in_init(&stand_in, p);
			fa_cuda_paged_sm90_launch_own(plan, &stand_in.attention, p->pages, launch);
			if (is_packed(plan))
				fa_cuda_paged_own_packed_launch(plan, kernels[i], workspace,
				                                launch);
		}
		n++;
	}
	return n;
}

/* ---- append */

int fa_cuda_paged_plan_own_append(const struct fa_cuda_chip *chip,
                                  const struct fa_paged_own_append *p,
                                  struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const struct fa_paged_own *own = p->pages;
	const int warps = FA_CUDA_TOKENS_THREADS / 32;
	int r;

	r = check_pages(chip, own, text, text_bytes);
	if (r < 0)
		return r;
	if (p->tokens > INT32_MAX / 2 / own->kv_heads)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "an append of %lld tokens of %d heads is not supported",
		                          (long long)p->tokens, own->kv_heads);
	plan->kernel = fa_cuda_paged_find(chip, FA_CUDA_PAGED_OWN_APPEND, own->store, own->dtype, 0,
	                                  0, 0);
	if (!plan->kernel)
		return fa_cuda_paged_no_kernel(chip, "append to a client's own pages", text,
		                               text_bytes);
	plan->grid_x = fa_cuda_paged_ceil_div((uint64_t)p->tokens * 2 * (uint64_t)own->kv_heads,
	                                      (uint64_t)warps);
	plan->grid_y = 1;
	return 0;
}

void fa_cuda_paged_launch_own_append(const struct fa_paged_own_append *p,
                                     struct fa_cuda_own_append *ret_args)
{
	const struct fa_paged_own *own = p->pages;
	const int64_t bytes = fa_cuda_paged_element_bytes(own->dtype), stored = stored_bytes(own);

	*ret_args = (struct fa_cuda_own_append){
		.slots = p->slots,
		.tokens = (uint32_t)p->tokens,
		.kv_heads = (uint32_t)own->kv_heads,
		.dtype = (int32_t)own->dtype,
		.store = (int32_t)own->store,
		.head_dim = (uint32_t)own->head_dim,
		.head_dim_v = (uint32_t)own->head_dim_v,
		.from_k = fa_cuda_paged_tensor_of(&p->k, bytes),
		.from_v = fa_cuda_paged_tensor_of(&p->v, bytes),
		.k = (char *)own->k.data,
		.v = (char *)own->v.data,
		.k_page = own->k.stride_batch * stored,
		.k_token = own->k.stride_token * stored,
		.k_head = own->k.stride_head * stored,
		.v_page = own->v.stride_batch * stored,
		.v_token = own->v.stride_token * stored,
		.v_head = own->v.stride_head * stored,
		.page_tokens = (uint32_t)own->page_tokens,
		.pages = (uint32_t)own->pages,
		.k_scales = own->k_scales,
		.v_scales = own->v_scales,
	};
}
