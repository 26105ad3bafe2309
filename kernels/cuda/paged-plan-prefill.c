/*
 * The plan of sequences with many new tokens: blocks of query rows, longest first.
 */
#include "kernels/cuda/paged-plan-private.h"
#include "kernels/cuda/paged-plan-sm90.h"

#include <stdlib.h>

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

int fa_cuda_paged_compare_blocks(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x > y ? -1 : x < y;
}

int fa_cuda_paged_plan_prefill(const struct fa_paged_attention *p, char *blob,
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

		if (fa_cuda_paged_is_prefill(p, plan->prefill_tokens, b))
			plan->forward_blocks += (uint32_t)blocks_of;
	}
	if ((uint64_t)plan->forward_blocks * (uint64_t)p->heads * slices > INT32_MAX)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "%u new tokens of %d heads need more than %d blocks",
		                          p->step->cu_new[p->step->batch], p->heads, INT32_MAX);
	if (plan->forward_blocks == 0)
		return 0;

	/* Sort keys, where the blocks will be. High half: keys that the block's last row sees; low
	 * half: the block's number by items and rows. An item's tile is its first block's
	 * number. */
	keys = (uint64_t *)blocks;
	for (int32_t b = 0; b < p->step->batch; b++) {
		const int64_t n_q = fa_cuda_paged_n_new(p->step, b);

		if (!fa_cuda_paged_is_prefill(p, plan->prefill_tokens, b))
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
	fa_cuda_paged_sm90_pair(p, plan, items, keys);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t number = UINT32_MAX - (uint32_t)keys[i];
		const uint32_t of = fa_cuda_paged_block_item(items, item, number);

		blocks[i].item = of;
		blocks[i].row = (number - items[of].tile) * rows;
	}
	return 0;
}
