/*
 * Attention over pages as launches: which kernels, and the division of a step's sequences over
 * their blocks.
 */
#include "kernels/cuda/paged-hopper.h"
#include "kernels/cuda/paged-plan-parts.h"
#include "kernels/cuda/paged-plan-share.h"
#include "kernels/cuda/sm90/paged_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sequences with fewer new tokens than this decode; others are blocks of rows. */
#define FORWARD_TOKENS 48

/* Where a sequence is computed in units: tiles of one, and how many there are before they become
 * larger. */
#define UNIT_TILES 8
#define UNITS_MAX 128

/* For shares of a step with prefixes. A stream keeps memory that it had once, and it is not the
 * pool's then; larger steps go without. */
#define SHARES_BYTES_MAX ((uint64_t)128 << 20)

static bool is_plain(const struct fa_paged_attention *p)
{
	const int64_t bytes = fa_cuda_paged_element_bytes(p->cache->dtype);

	return !(p->softcap > 0) && !p->alibi_slopes && !p->sinks && p->scale > 0 &&
	       fa_cuda_paged_tensor_aligned(&p->q, bytes) &&
	       fa_cuda_paged_tensor_aligned(&p->out, bytes) &&
	       (p->cache->v_offset == 0 || p->cache->head_dim == p->cache->head_dim_v);
}

static bool has_tree(const struct fa_paged_attention *p, int32_t b)
{
	return p->tree && p->tree_start[b] != FA_PAGED_NO_TREE;
}

static bool is_forward(const struct fa_paged_attention *p, int32_t b)
{
	return p->cache->dtype != FA_ATTENTION_F32 && p->cache->store == FA_PAGED_PLAIN &&
	       !has_tree(p, b) && fa_cuda_paged_n_new(p->step, b) >= FORWARD_TOKENS;
}

uint64_t fa_cuda_paged_seen(const struct fa_paged_attention *p,
                            const struct fa_cuda_paged_item *item, uint32_t row, uint32_t rows)
{
	const int64_t n_q = item->n_q, end = (int64_t)row + rows, left = fa_cuda_paged_left(p);
	int64_t seen = p->causal ? (end < n_q ? end : n_q) + item->n_k - n_q : item->n_k;

	seen = seen < 0 ? 0 : seen;
	if (left >= 0 && seen > left + (int64_t)rows)
		seen = left + (int64_t)rows;
	return (uint64_t)seen;
}

uint32_t fa_cuda_paged_block_item(const struct fa_cuda_paged_item *items, uint32_t n,
                                  uint32_t number)
{
	uint32_t low = 0, high = n;

	while (high - low > 1) {
		const uint32_t middle = low + (high - low) / 2;

		if (items[middle].tile <= number)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Blocks of rows see more keys the later they are; the longest go first. */
int fa_cuda_paged_compare_blocks(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x > y ? -1 : x < y;
}

static int plan_forward(const struct fa_paged_attention *p, char *blob,
                        struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	struct fa_cuda_paged_item *items = (void *)(blob + plan->forward_items_at);
	struct fa_cuda_paged_block *blocks = (void *)(blob + plan->forward_blocks_at);
	const uint32_t rows = (uint32_t)plan->forward->rows;
	const uint64_t slices = fa_cuda_paged_ceil_div((uint64_t)p->cache->head_dim_v,
	                                               (uint64_t)plan->forward->dim_v);
	uint64_t *keys;
	uint32_t n = 0, item = 0;

	for (int32_t b = 0; b < p->step->batch; b++) {
		const uint64_t blocks_of = fa_cuda_paged_ceil_div(fa_cuda_paged_n_new(p->step, b),
		                                                  rows);

		if (is_forward(p, b))
			plan->forward_blocks += (uint32_t)blocks_of;
	}
	if ((uint64_t)plan->forward_blocks * (uint64_t)p->heads * slices > INT32_MAX)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "%u new tokens of %d heads need more than %d blocks",
		                          p->step->cu_new[p->step->batch], p->heads, INT32_MAX);
	if (plan->forward_blocks == 0)
		return 0;

	/* First, in place of a block: how many keys its last row sees, and its number in order
	 * of items and rows, which items keep as their tile. */
	keys = (uint64_t *)blocks;
	for (int32_t b = 0; b < p->step->batch; b++) {
		const int64_t n_q = fa_cuda_paged_n_new(p->step, b);

		if (!is_forward(p, b))
			continue;
		fa_cuda_paged_item_of(p->step, b, &items[item]);
		items[item].tile = n;
		for (int64_t row = 0; row < n_q; row += rows) {
			keys[n] = fa_cuda_paged_seen(p, &items[item], (uint32_t)row, rows) << 32 |
			          (UINT32_MAX - n);
			n++;
		}
		item++;
	}
	qsort(keys, n, sizeof(*keys), fa_cuda_paged_compare_blocks);
	fa_cuda_paged_hopper_pair(p, plan, items, keys);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t number = UINT32_MAX - (uint32_t)keys[i];
		const uint32_t of = fa_cuda_paged_block_item(items, item, number);

		blocks[i].item = of;
		blocks[i].row = (number - items[of].tile) * rows;
	}
	return 0;
}

static uint32_t slices_of(const struct fa_paged_attention *p,
                          const struct fa_cuda_paged_kernel *kernel)
{
	return fa_cuda_paged_ceil_div((uint64_t)p->cache->head_dim_v, (uint64_t)kernel->dim_v);
}

/* @rows: of a part, which must not depend on the step where results must not. */
static const struct fa_cuda_paged_kernel *
find_pieces(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p, int32_t rows)
{
	return fa_cuda_paged_find(chip, FA_CUDA_PAGED_PIECES, p->cache->store, p->cache->dtype,
	                          p->cache->head_dim, p->cache->head_dim_v, rows);
}

/* Tiles that are computed on their own, of a sequence that has so many: a part has few units
 * of the same size, as long as sequences are not very long. */
static uint32_t unit_of(uint32_t tiles)
{
	uint32_t unit = UNIT_TILES;

	while (unit < fa_cuda_paged_ceil_div(tiles, UNITS_MAX))
		unit *= 2;
	return unit;
}

/* A plan of decoding as it is made. */
struct making {
	const struct fa_paged_attention *p;
	struct fa_cuda_paged_plan *plan;
	struct fa_cuda_paged_item *items;
	struct fa_cuda_paged_piece *pieces; /* NULL: there are none */
	struct fa_cuda_paged_tail *tails;
	uint32_t *tokens;
	uint32_t group, slices, n;
	uint64_t tiles, parts;
};

static int too_many_tiles(char *text, size_t text_bytes)
{
	return fa_cuda_paged_fail(text, text_bytes,
	                          "a step of more than %d tiles of %d tokens is not supported",
	                          INT32_MAX, FA_CUDA_PAGED_TILE);
}

/* Appends the item behind the last, which has its tokens and rows; the rest is filled in. */
static int add_item(struct making *making, char *text, size_t text_bytes)
{
	const struct fa_paged_attention *p = making->p;
	struct fa_cuda_paged_item *item = &making->items[making->n];
	const uint64_t rows = (uint64_t)item->n_q * making->group;
	uint32_t most = (uint32_t)making->plan->decode->rows, unit = 0, tiles = 1;
	uint64_t parts;

	if (rows > (uint64_t)INT32_MAX * most)
		return too_many_tiles(text, text_bytes);
	item->row_blocks = fa_cuda_paged_ceil_div(rows, most);
	parts = (uint64_t)p->cache->kv_heads * item->row_blocks * making->slices;
	if (item->n_k > item->begin)
		tiles = fa_cuda_paged_ceil_div(item->n_k - item->begin / FA_CUDA_PAGED_STRIP *
		                                                   FA_CUDA_PAGED_STRIP,
		                               FA_CUDA_PAGED_TILE);
	if (p->deterministic) {
		unit = unit_of(tiles);
		tiles = fa_cuda_paged_ceil_div(tiles, unit);
	}
	item->tile = (uint32_t)making->tiles;
	item->tiles = tiles;
	item->parts = (uint32_t)parts;
	if (making->pieces) {
		making->pieces[making->n] = (struct fa_cuda_paged_piece){
			.unit = unit,
			.parts = (uint32_t)making->parts,
			.tails = FA_CUDA_PAGED_NO_TAIL,
		};
	}
	most = rows < most ? (uint32_t)rows : most;
	if (making->plan->part_rows < most)
		making->plan->part_rows = most;
	making->tiles += parts * tiles;
	making->parts += parts;
	if (parts > INT32_MAX || making->tiles > INT32_MAX)
		return too_many_tiles(text, text_bytes);
	making->n++;
	return 0;
}

static int add_sequences(struct making *making, const struct fa_cuda_paged_groups *groups,
                         char *text, size_t text_bytes)
{
	const struct fa_paged_attention *p = making->p;
	const int64_t left = fa_cuda_paged_left(p);

	for (int32_t b = 0; b < p->step->batch; b++) {
		struct fa_cuda_paged_item *item = &making->items[making->n];
		int r;

		if (fa_cuda_paged_n_new(p->step, b) == 0 || is_forward(p, b))
			continue;
		fa_cuda_paged_item_of(p->step, b, item);
		if (left >= 0 && (int64_t)item->n_k - item->n_q - left > item->begin)
			item->begin = (uint32_t)((int64_t)item->n_k - item->n_q - left);
		if (groups->n > 0 && groups->group_of[b] != FA_CUDA_PAGED_NO_GROUP)
			item->begin = groups->groups[groups->group_of[b]].end;
		/* New tokens that are hidden from the rows are in no tile. */
		making->plan->appends &= item->append >= item->begin;
		if (has_tree(p, b))
			item->tree_start = p->tree_start[b];
		r = add_item(making, text, text_bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The prefixes, which are the first items: rows of their sequences in the order of the step. */
static int add_prefixes(struct making *making, const struct fa_cuda_paged_groups *groups,
                        char *text, size_t text_bytes)
{
	uint32_t first = 0;

	for (uint32_t i = 0; i < groups->n; i++) {
		const struct fa_cuda_paged_group *group = &groups->groups[i];
		struct fa_cuda_paged_item *item = &making->items[making->n];
		int r;

		fa_cuda_paged_item_of(making->p->step, (int32_t)group->any, item);
		item->first_q = first;
		item->n_q = group->n_tokens;
		item->n_k = item->append = group->end;
		first += group->n_tokens;
		r = add_item(making, text, text_bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Says of each grouped sequence where its rows are among its prefix's. */
static void add_tails(struct making *making, const struct fa_cuda_paged_groups *groups)
{
	const struct fa_paged_step *step = making->p->step;
	const uint32_t most = (uint32_t)making->plan->decode->rows;
	uint32_t n_tails = 0;

	for (uint32_t i = 0; i < groups->n; i++) {
		making->pieces[i].tails = n_tails;
		n_tails += groups->groups[i].tails;
		making->items[i].n_q = 0; /* counted anew */
	}
	for (int32_t b = 0, at = (int32_t)groups->n; b < step->batch; b++) {
		const uint32_t n_new = fa_cuda_paged_n_new(step, b), rows = n_new * making->group;
		const uint32_t prefix = groups->group_of[b];
		struct fa_cuda_paged_piece *piece;
		struct fa_cuda_paged_item *item;

		if (n_new == 0 || is_forward(making->p, b))
			continue;
		at++;
		if (prefix == FA_CUDA_PAGED_NO_GROUP)
			continue;
		item = &making->items[prefix];
		piece = &making->pieces[prefix];
		making->pieces[at - 1].tails = piece->tails + piece->n_tails;
		for (uint32_t row = 0; row < rows; row += most)
			making->tails[piece->tails + piece->n_tails++] =
				(struct fa_cuda_paged_tail){
					.item = (uint32_t)at - 1,
					.prefix_item = prefix,
					.row = item->n_q * making->group + row,
					.rows = rows - row < most ? rows - row : most,
					.first_q = step->cu_new[b],
					.first = row,
				};
		for (uint32_t i = 0; i < n_new; i++)
			making->tokens[item->first_q + item->n_q++] = step->cu_new[b] + i;
	}
}

static struct fa_cuda_paged_shares shares_of(const struct making *making, uint32_t item,
                                             uint32_t row_block)
{
	const struct fa_cuda_paged_item *i = &making->items[item];
	const uint32_t part = row_block * making->slices;

	return (struct fa_cuda_paged_shares){
		.tile = i->tile + part * i->tiles,
		.tiles = i->tiles,
		.parts = making->pieces[item].parts + part,
		.row_blocks = i->row_blocks,
	};
}

/* When tiles are divided. */
static void finish_tails(const struct making *making, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct fa_cuda_paged_tail *tail = &making->tails[i];

		tail->own = shares_of(making, tail->item, i - making->pieces[tail->item].tails);
		tail->prefix = shares_of(making, tail->prefix_item, 0);
	}
}

/* The part of the plan from @*at in the blob on, which then is behind it. */
static int plan_decode(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                       const struct fa_cuda_paged_groups *groups, char *blob, size_t *at,
                       struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const bool pieces = plan->decode->kind == FA_CUDA_PAGED_PIECES;
	const uint32_t n = plan->decode_items + groups->n;
	bool parted;
	struct making making = {
		.p = p,
		.plan = plan,
		.group = (uint32_t)(p->heads / p->cache->kv_heads),
		.slices = slices_of(p, plan->decode),
	};
	uint32_t n_tails = 0, n_tokens = 0;
	int r;

	for (uint32_t i = 0; i < groups->n; i++) {
		n_tails += groups->groups[i].tails;
		n_tokens += groups->groups[i].n_tokens;
	}
	plan->decode_items_at = *at;
	*at += fa_cuda_paged_align(n * sizeof(*making.items));
	if (pieces) {
		plan->pieces_at = *at;
		*at += n * sizeof(*making.pieces);
		plan->tails_at = *at;
		*at += n_tails * sizeof(*making.tails);
		plan->tokens_at = *at;
		*at += fa_cuda_paged_align(n_tokens * sizeof(*making.tokens));
		making.pieces = (void *)(blob + plan->pieces_at);
		making.tails = (void *)(blob + plan->tails_at);
		making.tokens = (void *)(blob + plan->tokens_at);
	}
	making.items = (void *)(blob + plan->decode_items_at);
	r = add_prefixes(&making, groups, text, text_bytes);
	if (r == 0)
		r = add_sequences(&making, groups, text, text_bytes);
	if (r < 0)
		return r;
	if (groups->n > 0)
		add_tails(&making, groups);
	plan->decode_items = n;
	plan->prefixes = groups->n;
	plan->block_items_at = *at;
	/* Units are what they are, and many of them are a part. */
	parted = fa_cuda_paged_divide(
		chip, p->deterministic ? 0 : fa_cuda_paged_end_tiles(chip, p->cache), making.items,
		n, plan, (void *)(blob + plan->block_items_at));
	finish_tails(&making, n_tails);
	*at += fa_cuda_paged_align(plan->decode_grid * sizeof(uint32_t));
	if (!pieces && n <= FA_CUDA_PAGED_ITEMS_HERE)
		memcpy(plan->first_items, making.items, n * sizeof(*making.items));
	plan->places = 2 * plan->decode_grid;
	plan->place_rows = pieces ? plan->part_rows : (uint32_t)plan->decode->rows;
	if (!parted)
		plan->part_rows = 0;
	if (pieces)
		plan->places = (uint32_t)(p->deterministic ? making.tiles
		                                           : making.parts + plan->decode_grid);
	plan->workspace_bytes += (size_t)plan->places * plan->place_rows *
	                         ((size_t)plan->decode->dim_v + 2) * sizeof(float);
	return 0;
}

/* What shares take at most if @groups are: each row block of all has a place for its own. */
static uint64_t shares_bytes(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                             const struct fa_cuda_paged_kernel *kernel, uint64_t parts,
                             const struct fa_cuda_paged_groups *groups)
{
	const uint64_t group = (uint64_t)(p->heads / p->cache->kv_heads);
	const uint64_t rows = (uint64_t)kernel->rows;
	uint64_t blocks = 0;

	for (int32_t b = 0; b < p->step->batch; b++)
		if (!is_forward(p, b))
			blocks += fa_cuda_paged_ceil_div(fa_cuda_paged_n_new(p->step, b) * group,
			                                 rows);
	for (uint32_t i = 0; i < groups->n; i++)
		blocks += fa_cuda_paged_ceil_div(groups->groups[i].n_tokens * group, rows);
	return (blocks * parts + (uint64_t)(chip->sms * kernel->blocks)) * rows *
	       ((uint64_t)kernel->dim_v + 2) * sizeof(float);
}

/* Groups sequences, and finds the kernel for them; NULL: none are grouped. */
static const struct fa_cuda_paged_kernel *find_groups(const struct fa_cuda_chip *chip,
                                                      const struct fa_paged_attention *p,
                                                      struct fa_cuda_paged_groups *ret_groups)
{
	const struct fa_cuda_paged_kernel *kernel;
	uint64_t tails = 0, parts;
	bool *candidates;

	*ret_groups = (struct fa_cuda_paged_groups){ .n = 0 };
	/* A prefix has the rows of many sequences. */
	kernel = p->step->host_table ? find_pieces(chip, p, INT16_MAX) : NULL;
	candidates = kernel ? malloc((size_t)p->step->batch * sizeof(*candidates)) : NULL;
	if (!candidates)
		return NULL;
	for (int32_t b = 0; b < p->step->batch; b++)
		candidates[b] = fa_cuda_paged_n_new(p->step, b) > 0 && !is_forward(p, b);
	parts = (uint64_t)p->cache->kv_heads * slices_of(p, kernel);
	fa_cuda_paged_groups_find(p, candidates, (uint32_t)kernel->rows,
	                          parts > INT32_MAX ? INT32_MAX : (uint32_t)parts,
	                          (uint32_t)(chip->sms * kernel->blocks),
	                          chip->share_early ? 0 : fa_cuda_paged_end_tiles(chip, p->cache),
	                          ret_groups);
	free(candidates);
	/* Each row block of each has a counter, and a place for shares of all its rows. */
	for (uint32_t i = 0; i < ret_groups->n; i++)
		tails += ret_groups->groups[i].tails;
	if (tails * parts <= FA_CUDA_PAGED_TAIL_COUNTERS && tails > 0 &&
	    shares_bytes(chip, p, kernel, parts, ret_groups) <= SHARES_BYTES_MAX)
		return kernel;
	fa_cuda_paged_groups_free(ret_groups);
	ret_groups->n = 0;
	return NULL;
}

size_t fa_cuda_paged_pieces_bytes(const struct fa_paged_attention *p)
{
	const uint64_t group = (uint64_t)(p->heads / p->cache->kv_heads);
	const size_t batch = (size_t)p->step->batch;
	size_t bytes, tokens = 0;
	uint64_t tails = 0;

	if (!p->deterministic && !p->step->host_table)
		return 0;
	/* As many prefixes as sequences, for simplicity, and kernels of 16 rows. */
	bytes = batch *
	        (sizeof(struct fa_cuda_paged_item) + 2 * sizeof(struct fa_cuda_paged_piece));
	/* What does not depend on the step has no prefixes. */
	for (int32_t b = 0; b < p->step->batch && !p->deterministic; b++) {
		const uint32_t n_new = fa_cuda_paged_n_new(p->step, b);

		if (is_forward(p, b))
			continue;
		tokens += n_new;
		tails += (n_new * group + 15) / 16;
	}
	if (tails > FA_CUDA_PAGED_TAIL_COUNTERS)
		tails = FA_CUDA_PAGED_TAIL_COUNTERS;
	return bytes + (size_t)tails * sizeof(struct fa_cuda_paged_tail) +
	       fa_cuda_paged_align(tokens * sizeof(uint32_t));
}

/* @rows: of the longest item, of one KV head. */
static const struct fa_cuda_paged_kernel *
find_decode(const struct fa_cuda_chip *chip, const struct fa_paged_cache *cache, int64_t rows)
{
	struct fa_cuda_chip other = *chip;

	/* As a chip that is too old for Hopper's. */
	if (rows > FA_SM90_PAGED_ROWS_MAX && other.arch == 90)
		other.arch = 89;
	return fa_cuda_paged_find(&other, FA_CUDA_PAGED_DECODE, cache->store, cache->dtype,
	                          cache->head_dim, cache->head_dim_v,
	                          rows > 4096 ? 4096 : (int32_t)rows);
}

int fa_cuda_paged_plan_attention(const struct fa_cuda_chip *chip,
                                 const struct fa_paged_attention *p, char *blob,
                                 struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes)
{
	const struct fa_paged_cache *cache = p->cache;
	const int32_t group = p->heads / cache->kv_heads;
	uint32_t longest = 1, longest_forward = 0, n_forward = 0, n_decode = 0;
	size_t at = 0;
	int r;

	for (int32_t b = 0; b < p->step->batch; b++) {
		const uint32_t n_new = fa_cuda_paged_n_new(p->step, b);

		if (is_forward(p, b)) {
			const uint32_t n_k = p->step->lengths[b];

			n_forward++;
			longest_forward = n_k > longest_forward ? n_k : longest_forward;
		} else if (n_new > 0) {
			n_decode++;
			longest = n_new > longest ? n_new : longest;
		}
	}
	plan->workspace_bytes = FA_CUDA_PAGED_COUNTERS_BYTES;
	if (n_decode > 0) {
		const int64_t rows = (int64_t)longest * group;
		struct fa_cuda_paged_groups groups = { .n = 0 };

		if (p->deterministic)
			plan->decode = find_pieces(chip, p, group);
		else if (n_decode > 1)
			plan->decode = find_groups(chip, p, &groups);
		if (!plan->decode && !p->deterministic)
			plan->decode = find_decode(chip, cache, rows);
		if (!plan->decode && p->deterministic && cache->store != FA_PAGED_PLAIN)
			return fa_cuda_paged_fail(text, text_bytes,
			                          "results that do not depend on the step are not "
			                          "supported with e4m3 or int8 on a GPU");
		if (!plan->decode)
			return fa_cuda_paged_missing(chip, "attention over pages", text,
			                             text_bytes);
		plan->decode_items = n_decode;
		plan->appends = plan->decode->appends && n_forward == 0 && cache->v_offset > 0;
		r = plan_decode(chip, p, &groups, blob, &at, plan, text, text_bytes);
		fa_cuda_paged_groups_free(&groups);
		if (r < 0)
			return r;
		/* Launches carry few items, and nobody reads them in memory. */
		if (plan->decode->kind == FA_CUDA_PAGED_DECODE &&
		    n_decode <= FA_CUDA_PAGED_ITEMS_HERE) {
			at = 0;
			if (n_forward == 0)
				plan->decode = fa_cuda_paged_carry_table(plan->decode, p->step,
				                                         plan);
		}
	}
	if (n_forward > 0) {
		plan->forward = fa_cuda_paged_hopper_find(chip, p, longest_forward);
		if (!plan->forward)
			plan->forward = fa_cuda_paged_find(
				chip, is_plain(p) ? FA_CUDA_PAGED_BAND : FA_CUDA_PAGED_RICH,
				cache->store, cache->dtype, cache->head_dim, cache->head_dim_v, 0);
		/* Chips with little shared memory have the rich ones alone. */
		if (!plan->forward)
			plan->forward = fa_cuda_paged_find(chip, FA_CUDA_PAGED_RICH, cache->store,
			                                   cache->dtype, cache->head_dim,
			                                   cache->head_dim_v, 0);
		if (!plan->forward)
			return fa_cuda_paged_missing(chip, "attention of many rows over pages",
			                             text, text_bytes);
		plan->forward_items = n_forward;
		plan->forward_items_at = at;
		at += fa_cuda_paged_align(n_forward * sizeof(struct fa_cuda_paged_item));
		plan->forward_blocks_at = at;
		r = plan_forward(p, blob, plan, text, text_bytes);
		if (r < 0)
			return r;
		fa_cuda_paged_hopper_divide(chip, p, plan);
		at += fa_cuda_paged_align(plan->forward_blocks *
		                          sizeof(struct fa_cuda_paged_block));
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
	const bool pieces = kernel->kind == FA_CUDA_PAGED_PIECES;
	const bool decode = kernel->kind == FA_CUDA_PAGED_DECODE || pieces;
	const size_t sums_at = (size_t)plan->places * plan->place_rows * (size_t)kernel->dim_v *
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
	args.attention.window_right = p->causal ? 0 : (int32_t)right;
	fa_cuda_attention_cap(&args.attention, p->scale, p->softcap);
	if (decode) {
		args.counters = (void *)(uintptr_t)workspace;
		args.partials = (void *)(uintptr_t)partials;
		args.partial_sums = (void *)(uintptr_t)(partials + sums_at);
		args.tiles_each = plan->tiles_each;
		args.tiles_extra = plan->tiles_extra;
		args.tiles_end = plan->tiles_end;
		args.place_rows = pieces ? plan->place_rows : plan->part_rows;
		args.n_items = plan->decode_items;
		if (pieces) {
			args.items = (const void *)(uintptr_t)(blob + plan->decode_items_at);
			args.block_items = (const void *)(uintptr_t)(blob + plan->block_items_at);
			args.pieces = (const void *)(uintptr_t)(blob + plan->pieces_at);
			args.tails = (const void *)(uintptr_t)(blob + plan->tails_at);
			args.tokens = (const void *)(uintptr_t)(blob + plan->tokens_at);
			args.tail_counters = args.counters + FA_CUDA_PAGED_BLOCKS;
		} else if (plan->decode_items <= FA_CUDA_PAGED_ITEMS_HERE) {
			args.items_here = plan->decode_items;
			memcpy(args.first_items, plan->first_items,
			       plan->decode_items * sizeof(args.first_items[0]));
			for (uint32_t i = 0; i < FA_CUDA_PAGED_ITEMS_HERE; i++)
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

/* Blocks that are not told of may still be there when the parts have ended: they must not have
 * anything of the step's to read then, nor may another launch be behind them. */
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
	const bool codes = p->cache->store != FA_PAGED_PLAIN;
	struct fa_cuda_paged_launch *launch = launches;

	/* The long one first, so that the other fills up behind its end. */
	if (plan->forward_blocks > 0) {
		launch->kernel = plan->forward;
		fill_attention(plan, p, plan->forward, blob, workspace, epoch,
		               &launch->args.attention);
		launch->grid_x = plan->forward_blocks * (uint32_t)p->heads *
		                 (uint32_t)launch->args.attention.slices;
		launch->grid_y = 1;
		launch->n_maps = 0;
		launch->parts = 0;
		fa_cuda_paged_hopper_launch(plan, p, launch);
		launch++;
	}
	if (plan->decode_grid > 0) {
		launch->kernel = plan->decode;
		launch->n_maps = 0;
		launch->parts = parts_told(plan);
		fill_attention(plan, p, plan->decode, blob, workspace, epoch,
		               &launch->args.attention);
		if (codes)
			fa_cuda_paged_codes_of(p->cache, p->layer,
			                       &launch->args.attention_codes.codes);
		if (plan->decode->small)
			memcpy(codes ? launch->args.small_attention_codes.table
			             : launch->args.small_attention.table,
			       plan->table, plan->table_here * sizeof(plan->table[0]));
		launch->grid_x = plan->decode_grid;
		launch->grid_y = 1;
		launch++;
	}
	return (int)(launch - launches);
}
