#include "kernels/cuda/paged-plan-prefix.h"
#include "kernels/cuda/paged-plan-private.h"

#include <stdlib.h>
#include <string.h>

/* A prefix's costs in epilogues, or tiles if that cost is unknown: MERGE_ENDS to combine two
 * results of a row block; the other per thread block with partial results (docs/kernels.md). */
#define MERGE_ENDS 1
#define MERGE_TILES 2
#define BLOCK_ENDS 9
#define BLOCK_TILES 3

/* Rows that a kernel computes in one pass over a tile. */
#define PASS_ROWS 32

/* Limit on subdivisions of a group. */
#define LEVELS_MAX 32

struct member {
	const uint32_t *pages; /* the page with the first existing token, and those after it */
	uint32_t n_pages;
	uint32_t b, first;
	uint32_t n_new, rows, row_blocks;
	uint32_t cut;   /* pages that its group shares */
	uint32_t group; /* its group, or FA_CUDA_PAGED_NO_GROUP */
};

struct search {
	struct member *members;
	uint64_t *keys, *spare;
	uint32_t *order;
	uint32_t page_tokens, rows;
	uint32_t merge_tiles;
	uint32_t groups;
};

static struct member *member_at(const struct search *search, uint32_t i)
{
	return &search->members[search->order[i]];
}

/* Returns how many pages members [low, high) share; at least @depth. */
static uint32_t common_pages(const struct search *search, uint32_t low, uint32_t high,
                             uint32_t depth)
{
	const struct member *one = member_at(search, low);
	uint32_t common = one->n_pages;

	for (uint32_t i = low + 1; i < high; i++) {
		const struct member *other = member_at(search, i);
		uint32_t at = depth;

		common = other->n_pages < common ? other->n_pages : common;
		if (memcmp(one->pages + at, other->pages + at,
		           (common - at) * sizeof(one->pages[0])) == 0)
			continue;
		while (at + 16 <= common &&
		       memcmp(one->pages + at, other->pages + at, 16 * sizeof(uint32_t)) == 0)
			at += 16;
		while (at < common && one->pages[at] == other->pages[at])
			at++;
		common = at;
	}
	return common;
}

/* Returns the tiles of one KV head that are saved if the ungrouped members of [low, high) (or @all)
 * share @pages. */
static int64_t gain_of(const struct search *search, uint32_t low, uint32_t high, uint32_t pages,
                       bool all)
{
	const uint32_t pass = search->rows < PASS_ROWS ? search->rows : PASS_ROWS;
	const int64_t tokens = (int64_t)pages * search->page_tokens -
	                       member_at(search, low)->first % search->page_tokens;
	uint64_t rows = 0, passes = 0;

	for (uint32_t i = low; i < high; i++) {
		const struct member *member = member_at(search, i);

		if (!all && member->group != FA_CUDA_PAGED_NO_GROUP)
			continue;
		rows += member->rows;
		passes += fa_cuda_paged_ceil_div(member->rows, pass);
	}
	return ((int64_t)passes - fa_cuda_paged_ceil_div(rows, pass)) * tokens /
	               FA_CUDA_PAGED_TILE -
	       (int64_t)passes * search->merge_tiles;
}

static void make_group(struct search *search, uint32_t low, uint32_t high, uint32_t pages, bool all)
{
	for (uint32_t i = low; i < high; i++) {
		struct member *member = member_at(search, i);

		if (!all && member->group != FA_CUDA_PAGED_NO_GROUP)
			continue;
		member->group = search->groups;
		member->cut = pages;
	}
	search->groups++;
}

/* Branch-free: the order is unpredictable. */
static void merge(const uint64_t *keys, size_t middle, size_t end, uint64_t *ret_keys)
{
	size_t a = 0, b = middle;

	while (a < middle && b < end) {
		const uint64_t x = keys[a], y = keys[b];
		const bool second = y < x;

		*ret_keys++ = second ? y : x;
		a += !second;
		b += second;
	}
	while (a < middle)
		*ret_keys++ = keys[a++];
	while (b < end)
		*ret_keys++ = keys[b++];
}

static void sort(struct search *search, uint32_t low, uint32_t high)
{
	const size_t n = high - low;
	uint64_t *keys = search->keys + low, *merged = search->spare + low;
	bool sorted = true;

	for (size_t i = 1; i < n && sorted; i++)
		sorted = keys[i - 1] >> 32 <= keys[i] >> 32;
	if (sorted)
		return;
	for (size_t run = 1; run < n; run *= 2) {
		uint64_t *const from = keys;

		for (size_t i = 0; i < n; i += 2 * run)
			merge(keys + i, run < n - i ? run : n - i,
			      2 * run < n - i ? 2 * run : n - i, merged + i);
		keys = merged;
		merged = from;
	}
	if (keys != search->keys + low)
		memcpy(merged, keys, n * sizeof(*keys));
	for (uint32_t i = low; i < high; i++)
		search->order[i] = (uint32_t)search->keys[i];
}

/* Groups members [low, high), which share @depth pages and dropped the same tokens, so as to save
 * the most tiles. Returns the saved tiles of one KV head. */
static int64_t choose(struct search *search, uint32_t low, uint32_t high, uint32_t depth,
                      unsigned int level)
{
	int64_t here, apart = 0;
	uint32_t pages;

	if (level == LEVELS_MAX)
		return 0;
	pages = common_pages(search, low, high, depth);
	for (uint32_t i = low; i < high; i++) {
		const struct member *member = member_at(search, i);
		const uint32_t key = pages < member->n_pages ? member->pages[pages] : UINT32_MAX;

		search->keys[i] = (uint64_t)key << 32 | search->order[i];
	}
	sort(search, low, high);
	for (uint32_t i = low, end; i < high; i = end) {
		const struct member *member = member_at(search, i);

		for (end = i + 1; end < high; end++)
			if (search->keys[end] >> 32 != search->keys[i] >> 32)
				break;
		/* Members without further pages, or all members, only have the same sort key: no
		 * group. */
		if (pages < member->n_pages && end - i > 1 && end - i < high - low)
			apart += choose(search, i, end, pages, level + 1);
	}

	here = gain_of(search, low, high, pages, true);
	if (here > 0 && here >= apart) {
		make_group(search, low, high, pages, true);
		return here;
	}
	here = gain_of(search, low, high, pages, false);
	if (here > 0) {
		make_group(search, low, high, pages, false);
		apart += here;
	}
	return apart;
}

static bool sees_all(const struct fa_paged_attention *p, uint32_t length, uint32_t first)
{
	return p->window_left < 0 || (int64_t)length - 1 - p->window_left <= (int64_t)first;
}

static uint32_t find_members(const struct fa_paged_attention *p, const bool *candidates,
                             struct search *search)
{
	const struct fa_paged_step *step = p->step;
	const uint32_t group = (uint32_t)(p->heads / p->cache->kv_heads);
	uint32_t n = 0;

	for (int32_t b = 0; b < step->batch; b++) {
		const uint32_t n_new = fa_cuda_paged_n_new(step, b), length = step->lengths[b];
		const uint32_t first = step->first ? step->first[b] : 0;
		const uint32_t skipped = first / search->page_tokens;

		if (!candidates[b] || length < n_new || !sees_all(p, length, first) ||
		    (length - n_new) / search->page_tokens <= skipped)
			continue;
		search->members[n] = (struct member){
			.pages = step->host_table + (uint32_t)(step->table_start[b] + skipped),
			.n_pages = (length - n_new) / search->page_tokens - skipped,
			.b = (uint32_t)b,
			.first = first,
			.n_new = n_new,
			.rows = n_new * group,
			.row_blocks = fa_cuda_paged_ceil_div((uint64_t)n_new * group, search->rows),
			.group = FA_CUDA_PAGED_NO_GROUP,
		};
		search->order[n] = n;
		search->keys[n] = (uint64_t)search->members[n].pages[0] << 32 | n;
		n++;
	}
	return n;
}

/* Numbers the groups that kept members, without gaps. */
static void fill(const struct search *search, uint32_t n, struct fa_cuda_paged_groups *groups)
{
	uint32_t *numbers = search->order;

	for (uint32_t i = 0; i < search->groups; i++)
		numbers[i] = FA_CUDA_PAGED_NO_GROUP;
	for (uint32_t i = 0; i < n; i++) {
		const struct member *member = &search->members[i];
		struct fa_cuda_paged_group *group;

		if (member->group == FA_CUDA_PAGED_NO_GROUP)
			continue;
		if (numbers[member->group] == FA_CUDA_PAGED_NO_GROUP) {
			numbers[member->group] = groups->n;
			groups->groups[groups->n++] = (struct fa_cuda_paged_group){
				.end = (member->first / search->page_tokens + member->cut) *
				       search->page_tokens,
				.any = member->b,
			};
		}
		group = &groups->groups[numbers[member->group]];
		group->n_sequences++;
		group->n_tokens += member->n_new;
		group->suffixes += member->row_blocks;
		groups->group_of[member->b] = numbers[member->group];
	}
}

void fa_cuda_paged_groups_find(const struct fa_paged_attention *p, const bool *candidates,
                               uint32_t rows, uint32_t parts, uint32_t blocks, uint32_t end,
                               struct fa_cuda_paged_groups *ret_groups)
{
	const size_t batch = (size_t)p->step->batch;
	const int64_t block_tiles = end ? end * BLOCK_ENDS : BLOCK_TILES;
	struct search search = {
		.page_tokens = (uint32_t)p->cache->page_tokens,
		.rows = rows,
		.merge_tiles = end ? end * MERGE_ENDS : MERGE_TILES,
	};
	struct fa_cuda_paged_groups groups = { .n = 0 };
	uint32_t n;
	int64_t gain = 0;
	char *memory;

	*ret_groups = groups;
	/* ALiBi needs positions, which differ between sequences. */
	if (!p->step->host_table || p->alibi_slopes)
		return;
	memory = malloc(batch * (sizeof(*search.members) + 2 * sizeof(*search.keys) +
	                         2 * sizeof(uint32_t) + sizeof(*groups.groups)));
	if (!memory)
		return;
	search.members = (void *)memory;
	search.keys = (void *)(search.members + batch);
	search.spare = search.keys + batch;
	groups.groups = (void *)(search.spare + batch);
	/* There are at most as many groups as members; each level of the recursion chooses anew. */
	search.order = (void *)(groups.groups + batch);
	groups.group_of = search.order + batch;
	groups.memory = memory;
	n = find_members(p, candidates, &search);
	sort(&search, 0, n);
	for (uint32_t i = 0, behind; i < n; i = behind) {
		const struct member *member = member_at(&search, i);

		for (behind = i + 1; behind < n; behind++)
			if (member_at(&search, behind)->pages[0] != member->pages[0] ||
			    member_at(&search, behind)->first != member->first)
				break;
		if (behind - i > 1)
			gain += choose(&search, i, behind, 1, 0);
	}
	if (gain * parts <= (int64_t)blocks * block_tiles) {
		free(memory);
		return;
	}
	for (size_t b = 0; b < batch; b++)
		groups.group_of[b] = FA_CUDA_PAGED_NO_GROUP;
	fill(&search, n, &groups);
	*ret_groups = groups;
}

void fa_cuda_paged_groups_free(struct fa_cuda_paged_groups *groups)
{
	free(groups->memory);
	groups->memory = NULL;
}
