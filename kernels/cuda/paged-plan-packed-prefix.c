/*
 * A run: sequences that follow one another in the step and share a prefix. Their packed rows fill
 * tiles over it together; each sequence's other keys are computed for the tiles that its rows
 * touch, and the parts are joined.
 */
#include "kernels/cuda/paged-plan-packed-prefix.h"

#include "kernels/cuda/paged-plan-private.h"

#include <stdlib.h>
#include <string.h>

/* Limit on subdivisions of a run. */
#define LEVELS_MAX 32

struct member {
	uint32_t b;
	uint32_t rows;   /* of a KV head */
	uint32_t common; /* shared with the member before; 0: other run */
	uint32_t shared; /* shared in its run; 0: it is alone */
	bool begins;     /* a run, or it is alone */
};

struct search {
	const struct fa_paged_attention *p;
	struct member *members;
	uint32_t n;
	uint32_t block_rows, suffix_keys;
};

static uint32_t dropped(const struct fa_paged_step *step, uint32_t b)
{
	return step->first ? step->first[b] : 0;
}

/* Returns the whole pages before the new tokens, dropped ones included. */
static uint32_t old_pages(const struct search *search, uint32_t b)
{
	const struct fa_paged_step *step = search->p->step;

	return (step->lengths[b] - fa_cuda_paged_n_new(step, (int32_t)b)) /
	       (uint32_t)search->p->cache->page_tokens;
}

/* Returns the pages that @a and @b share, and both dropped. 0: they share no token. */
static uint32_t common_pages(const struct search *search, uint32_t a, uint32_t b)
{
	const struct fa_paged_step *step = search->p->step;
	const uint32_t skipped = dropped(step, a) / (uint32_t)search->p->cache->page_tokens;
	/* A table may begin with the first page that was kept, so that table_start wraps. */
	const uint32_t *const x = step->host_table + (uint32_t)(step->table_start[a] + skipped);
	const uint32_t *const y = step->host_table + (uint32_t)(step->table_start[b] + skipped);
	uint32_t end = old_pages(search, a), n = 0;

	end = end < old_pages(search, b) ? end : old_pages(search, b);
	if (dropped(step, a) != dropped(step, b) || end <= skipped)
		return 0;
	if (memcmp(x, y, (end - skipped) * sizeof(*x)) == 0)
		return end;
	while (x[n] == y[n])
		n++;
	return n == 0 ? 0 : skipped + n;
}

/* Finds the members, with @from new tokens or more. Returns the least number of new tokens of a
 * member that shares a page with its neighbour; 0: there is none. */
static uint32_t find_members(struct search *search, uint32_t from)
{
	const struct fa_paged_attention *p = search->p;
	const uint32_t group = (uint32_t)(p->heads / p->cache->kv_heads);
	uint32_t least = 0, before = 0;
	bool adjacent = false;

	search->n = 0;
	for (int32_t b = 0; b < p->step->batch; b++) {
		const uint32_t n_new = fa_cuda_paged_n_new(p->step, b);
		struct member *const member = &search->members[search->n];

		if (n_new == 0)
			continue;
		if (!fa_cuda_paged_is_prefill(p, from, b)) {
			adjacent = false;
			continue;
		}
		*member = (struct member){
			.b = (uint32_t)b,
			.rows = n_new * group,
			.common = adjacent ? common_pages(search, member[-1].b, (uint32_t)b) : 0,
			.begins = true,
		};
		if (member->common > 0) {
			const uint32_t fewer = before < n_new ? before : n_new;

			least = least == 0 || fewer < least ? fewer : least;
		}
		before = n_new;
		adjacent = true;
		search->n++;
	}
	return least;
}

/* Returns the keys of blocks of a KV head that are saved if members [low, high) share @tokens
 * keys. */
static int64_t gain_of(const struct search *search, uint32_t low, uint32_t high, uint32_t tokens)
{
	uint64_t rows = 0, blocks = 0;

	for (uint32_t i = low; i < high; i++) {
		rows += search->members[i].rows;
		blocks += fa_cuda_paged_ceil_div(search->members[i].rows, search->block_rows);
	}
	return ((int64_t)blocks - fa_cuda_paged_ceil_div(rows, search->block_rows)) * tokens -
	       (int64_t)(high - low) * search->suffix_keys;
}

/* Divides members [low, high), each of which shares a page with the one before it, into runs that
 * save the most keys. Returns how many. */
static int64_t choose(struct search *search, uint32_t low, uint32_t high, unsigned int level)
{
	struct member *const members = search->members;
	uint32_t least = UINT32_MAX, tokens;
	int64_t here, apart = 0;

	if (level == LEVELS_MAX || high - low < 2)
		return 0;
	for (uint32_t i = low + 1; i < high; i++)
		least = members[i].common < least ? members[i].common : least;
	for (uint32_t i = low, end; i < high; i = end) {
		for (end = i + 1; end < high && members[end].common > least; end++)
			;
		if (end - i < high - low)
			apart += choose(search, i, end, level + 1);
	}
	tokens = least * (uint32_t)search->p->cache->page_tokens;
	here = gain_of(search, low, high, tokens - dropped(search->p->step, members[low].b));
	if (here <= 0 || here < apart)
		return apart;
	for (uint32_t i = low; i < high; i++) {
		members[i].shared = tokens;
		members[i].begins = i == low;
	}
	return here;
}

/* Writes the items of the run from member @i on; returns the member behind it. */
static uint32_t write_run(const struct search *search, uint32_t i,
                          struct fa_cuda_packed_prefixes *prefixes)
{
	const struct fa_paged_step *step = search->p->step;
	const uint32_t shared = search->members[i].shared;
	struct fa_cuda_paged_item prefix, *const items = prefixes->items;
	uint32_t end = i + 1, row = 0;

	fa_cuda_paged_item_of(step, (int32_t)search->members[i].b, &prefix);
	fa_cuda_packed_alone(&prefix);
	if (shared == 0) {
		items[prefixes->n++] = prefix;
		return end;
	}
	while (end < search->n && !search->members[end].begins)
		end++;
	prefix.n_q = step->cu_new[search->members[end - 1].b + 1] - prefix.first_q;
	prefix.n_k = shared;
	/* Each row is behind all keys. */
	prefix.packed = (struct fa_cuda_packed_item){
		.diagonal = (int32_t)shared,
		.end_row = prefix.n_q,
	};
	items[prefixes->n++] = prefix;
	for (; i < end; i++) {
		struct fa_cuda_paged_item *const item = &items[prefixes->n];
		const uint32_t n_new = fa_cuda_paged_n_new(step, (int32_t)search->members[i].b);

		fa_cuda_paged_item_of(step, (int32_t)search->members[i].b, item);
		item->packed = (struct fa_cuda_packed_item){
			.diagonal = (int32_t)(item->n_k - n_new) - (int32_t)row,
			.begin_row = row,
			.end_row = row + n_new,
		};
		item->first_q = prefix.first_q;
		item->n_q = prefix.n_q;
		item->begin = item->first = shared;
		prefixes->suffixes[prefixes->n++] = true;
		row += n_new;
	}
	prefixes->runs++;
	return end;
}

bool fa_cuda_packed_prefixes_possible(const struct fa_paged_attention *p)
{
	uint32_t n = 0;

	/* A window would have to begin at each row's own position. */
	if (!p->step->host_table || fa_cuda_paged_left(p) >= 0)
		return false;
	for (int32_t b = 0; b < p->step->batch && n < 2; b++)
		n += fa_cuda_paged_is_prefill(p, FA_CUDA_PAGED_SHARE_TOKENS, b);
	return n == 2;
}

bool fa_cuda_packed_prefixes_find(const struct fa_paged_attention *p, uint32_t block_rows,
                                  uint32_t suffix_keys,
                                  struct fa_cuda_packed_prefixes *ret_prefixes)
{
	const struct fa_paged_step *step = p->step;
	const size_t batch = (size_t)step->batch, n = batch + batch / 2;
	struct search search = { .p = p, .block_rows = block_rows, .suffix_keys = suffix_keys };
	struct fa_cuda_packed_prefixes prefixes = { .n = 0 };
	int64_t gain = 0;

	prefixes.items = malloc(n * (sizeof(*prefixes.items) + sizeof(bool)) +
	                        batch * sizeof(*search.members));
	if (!prefixes.items)
		return false;
	search.members = (void *)(prefixes.items + n);
	prefixes.suffixes = (void *)(search.members + batch);
	memset(prefixes.suffixes, 0, n);
	prefixes.from = find_members(&search, FA_CUDA_PAGED_SHARE_TOKENS);
	if (prefixes.from > 0)
		find_members(&search, prefixes.from);
	for (uint32_t i = 0, end; prefixes.from > 0 && i < search.n; i = end) {
		for (end = i + 1; end < search.n && search.members[end].common > 0; end++)
			;
		gain += choose(&search, i, end, 0);
	}
	for (uint32_t i = 0; gain > 0 && i < search.n;)
		i = write_run(&search, i, &prefixes);
	if (gain <= 0) {
		fa_cuda_packed_prefixes_free(&prefixes);
		return false;
	}
	*ret_prefixes = prefixes;
	return true;
}

void fa_cuda_packed_prefixes_free(struct fa_cuda_packed_prefixes *prefixes)
{
	free(prefixes->items);
	prefixes->items = NULL;
}
