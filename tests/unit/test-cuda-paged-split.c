/*
 * Tests the plans of split decode (FA_CUDA_PAGED_SPLIT) without a GPU: every row meets every token
 * that it sees exactly once, in its sequence's suffix or in a prefix that sequences share; every
 * partial result has its own place; every counter expects as many arrivals as there are.
 * check_walk() repeats the kernels' walk over the tiles.
 */
#include "kernels/cuda/paged-plan.h"
#include "tests/unit/cuda-paged-usual.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BATCH_MAX 200
#define PAGES_MAX 300
#define NONE UINT32_MAX

struct scene {
	struct fa_cuda_chip chip;
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	struct fa_paged_request request;
	uint32_t cu_new[BATCH_MAX + 1], lengths[BATCH_MAX], before[BATCH_MAX], first[BATCH_MAX];
	uint32_t table_start[BATCH_MAX], table[BATCH_MAX][PAGES_MAX];
	struct fa_cuda_paged_plan plan;
	char *blob;
};

static void scene_init(struct scene *scene, int32_t batch)
{
	memset(scene, 0, sizeof(*scene));
	scene->chip = (struct fa_cuda_chip){
		.arch = 90, .shared_bytes_max = 232448, .l2_bytes = 50 << 20, .sms = 132
	};
	scene->cache = usual_cache();
	scene->step = (struct fa_paged_step){
		.batch = batch,
		.cu_new = scene->cu_new,
		.lengths = scene->lengths,
		.lengths_before = scene->before,
		.first = scene->first,
		.table = scene->table[0],
		.host_table = scene->table[0],
		.table_start = scene->table_start,
		.table_entries = BATCH_MAX * PAGES_MAX,
	};
	scene->request.op = FA_PAGED_ATTEND;
	scene->request.attention = usual_attention(&scene->cache, &scene->step);
	for (int32_t b = 0; b < batch; b++) {
		scene->table_start[b] = (uint32_t)b * PAGES_MAX;
		for (uint32_t i = 0; i < PAGES_MAX; i++)
			scene->table[b][i] = 1000 * (uint32_t)b + i;
	}
}

static void begin_like(struct scene *scene, int32_t b, int32_t other, uint32_t pages)
{
	memcpy(scene->table[b], scene->table[other], pages * sizeof(uint32_t));
}

static void scene_plan(struct scene *scene)
{
	const size_t bytes = fa_cuda_paged_blob_bytes(&scene->request);
	char text[256] = "";

	memcpy(scene->before, scene->lengths, sizeof(scene->before));
	assert_int_equal(fa_paged_check(&scene->request, text, sizeof(text)), 0);
	scene->blob = malloc(bytes + 64);
	memset(scene->blob, 0x5a, bytes + 64);
	assert_int_equal(fa_cuda_paged_plan(&scene->chip, &scene->request, scene->blob, text,
	                                    sizeof(text), &scene->plan),
	                 0);
	assert_true(scene->plan.blob_bytes <= bytes);
	for (size_t i = 0; i < 64; i++)
		assert_int_equal(scene->blob[bytes + i], 0x5a);
}

/* ---- repeats the kernels' walk over a plan */

struct view {
	const struct fa_cuda_paged_plan *plan;
	const struct fa_cuda_paged_item *items;
	const struct fa_cuda_paged_split *splits;
	const struct fa_cuda_paged_suffix *suffixes;
	const uint32_t *tokens, *block_items;
	uint32_t rows, group, kv_heads, slices;
};

static struct view view_of(const struct scene *scene)
{
	const struct fa_cuda_paged_plan *plan = &scene->plan;
	const uint32_t dim_v = (uint32_t)plan->decode->dim_v;

	return (struct view){
		.plan = plan,
		.items = (const void *)(scene->blob + plan->decode_items_at),
		.splits = (const void *)(scene->blob + plan->splits_at),
		.suffixes = (const void *)(scene->blob + plan->suffixes_at),
		.tokens = (const void *)(scene->blob + plan->tokens_at),
		.block_items = (const void *)(scene->blob + plan->block_items_at),
		.rows = (uint32_t)plan->decode->rows,
		.group = (uint32_t)(scene->request.attention.heads / scene->cache.kv_heads),
		.kv_heads = (uint32_t)scene->cache.kv_heads,
		.slices = ((uint32_t)scene->cache.head_dim_v + dim_v - 1) / dim_v,
	};
}

static uint32_t block_of(const struct view *view, uint32_t tile)
{
	const uint32_t each = view->plan->tiles_each, extra = view->plan->tiles_extra;

	return tile < extra * (each + 1) ? tile / (each + 1)
	                                 : extra + (tile - extra * (each + 1)) / each;
}

static uint32_t blocks_of(const struct view *view, const struct fa_cuda_paged_partial_range *shares,
                          uint32_t part)
{
	const uint32_t tile = shares->tile + part * shares->tiles;

	return block_of(view, tile + shares->tiles - 1) -
	       block_of(view, tile + view->plan->epilogue_tiles) + 1;
}

/* Checks that @shares describes @item's partial results from @part on. */
static void check_shares(const struct view *view, const struct fa_cuda_paged_partial_range *shares,
                         uint32_t item, uint32_t part)
{
	assert_int_equal(shares->tile, view->items[item].tile + part * view->items[item].tiles);
	assert_int_equal(shares->tiles, view->items[item].tiles);
	assert_int_equal(shares->parts, view->splits[item].parts + part);
	assert_int_equal(shares->row_blocks, view->items[item].row_blocks);
}

/* Returns the number of arrivals after which a suffix and its prefix can be merged. */
static uint32_t wanted(const struct view *view, uint32_t suffix, uint32_t kv_head, uint32_t slice)
{
	const struct fa_cuda_paged_suffix *t = &view->suffixes[suffix];
	const uint32_t row_block = suffix - view->splits[t->item].suffixes;
	uint32_t n = blocks_of(view, &t->own, kv_head * t->own.row_blocks * view->slices + slice);

	check_shares(view, &t->own, t->item, row_block * view->slices);
	check_shares(view, &t->prefix, t->prefix_item, 0);
	for (uint32_t b = t->row / view->rows; b <= (t->row + t->rows - 1) / view->rows; b++)
		n += blocks_of(view, &t->prefix,
		               (kv_head * t->prefix.row_blocks + b) * view->slices + slice);
	return n;
}

static void arrive(const struct view *view, uint32_t *counts, uint32_t item, uint32_t part)
{
	const struct fa_cuda_paged_split *piece = &view->splits[item];
	const uint32_t row_blocks = view->items[item].row_blocks;
	const uint32_t slice = part % view->slices, rest = part / view->slices;
	const uint32_t kv_head = rest / row_blocks, begin = rest % row_blocks * view->rows;

	if (piece->n_suffixes == 0 && piece->suffixes != NONE)
		counts[((piece->suffixes + rest % row_blocks) * view->kv_heads + kv_head) *
		               view->slices +
		       slice]++;
	for (uint32_t i = 0; i < piece->n_suffixes; i++) {
		const struct fa_cuda_paged_suffix *suffix = &view->suffixes[piece->suffixes + i];

		if (suffix->row < begin + view->rows && suffix->row + suffix->rows > begin)
			counts[((piece->suffixes + i) * view->kv_heads + kv_head) * view->slices +
			       slice]++;
	}
}

/* Checks that every tile is processed once, that every partial result has its own place, and that
 * every counter gets the arrivals that it expects. */
static void check_walk(const struct scene *scene)
{
	const struct view view = view_of(scene);
	const struct fa_cuda_paged_plan *plan = view.plan;
	uint8_t *places = calloc(plan->places, 1);
	uint32_t *counts = calloc(FA_CUDA_PAGED_SUFFIX_COUNTERS, sizeof(*counts));
	uint32_t n_suffixes = 0;
	uint64_t tiles = 0, parts = 0;

	for (uint32_t i = 0; i < plan->decode_items; i++) {
		assert_int_equal(view.items[i].tile, tiles);
		assert_int_equal(view.splits[i].parts, parts);
		tiles += (uint64_t)view.items[i].tiles * view.items[i].parts;
		parts += view.items[i].parts;
		n_suffixes += view.splits[i].n_suffixes;
	}
	assert_true((uint64_t)n_suffixes * view.kv_heads * view.slices <=
	            FA_CUDA_PAGED_SUFFIX_COUNTERS);
	assert_true(plan->decode_grid <= FA_CUDA_PAGED_BLOCKS);
	for (uint32_t block = 0, at = 0; block < plan->decode_grid; block++) {
		uint32_t left = plan->tiles_each + (block < plan->tiles_extra);
		uint32_t item = view.block_items[block];

		while (left > 0) {
			const struct fa_cuda_paged_item *i = &view.items[item];
			const uint32_t part = (at - i->tile) / i->tiles;
			const uint32_t behind = (at - i->tile) % i->tiles;
			uint32_t n = i->tiles - behind < left ? i->tiles - behind : left, place;

			assert_true(at >= i->tile && part < i->parts);
			assert_int_equal(block_of(&view, at), block);
			/* A part's first epilogue_tiles stand for its epilogue's time and hold no
			 * tokens. */
			if (behind + left <= plan->epilogue_tiles) {
				at += left;
				break;
			}
			n = view.splits[item].split_tiles ? 1 : n;
			place = view.splits[item].split_tiles
			                ? at
			                : view.splits[item].parts + part + block;
			assert_true(place < plan->places);
			assert_int_equal(places[place]++, 0);
			arrive(&view, counts, item, part);
			at += n;
			left -= n;
			if (at == i->tile + i->parts * i->tiles)
				item++;
		}
		tiles -= plan->tiles_each + (block < plan->tiles_extra);
	}
	assert_int_equal(tiles, 0);
	for (uint32_t suffix = 0; suffix < n_suffixes; suffix++)
		for (uint32_t h = 0; h < view.kv_heads; h++)
			for (uint32_t s = 0; s < view.slices; s++)
				assert_int_equal(
					counts[(suffix * view.kv_heads + h) * view.slices + s],
					wanted(&view, suffix, h, s));
	free(places);
	free(counts);
}

/* Checks that every row gets its sequence's tokens, from the pages in the sequence's table. */
static void check_tokens(const struct scene *scene)
{
	const struct view view = view_of(scene);
	const struct fa_paged_step *step = &scene->step;
	uint32_t item = scene->plan.prefixes, n_prefix_tokens[BATCH_MAX] = { 0 };

	for (int32_t b = 0; b < step->batch; b++) {
		const uint32_t n_new = step->cu_new[b + 1] - step->cu_new[b];
		const struct fa_cuda_paged_item *suffix = &view.items[item];
		const struct fa_cuda_paged_split *piece = &view.splits[item];
		const struct fa_cuda_paged_item *prefix;
		uint32_t begin = step->first[b];

		if (n_new == 0 || n_new >= 48)
			continue;
		if (scene->request.attention.window_left >= 0) {
			const int64_t low = (int64_t)step->lengths[b] - n_new -
			                    scene->request.attention.window_left;

			begin = low > (int64_t)begin ? (uint32_t)low : begin;
		}
		assert_int_equal(suffix->first_q, step->cu_new[b]);
		assert_int_equal(suffix->n_q, n_new);
		assert_int_equal(suffix->n_k, step->lengths[b]);
		assert_int_equal(suffix->table_start, step->table_start[b]);
		assert_true(n_new * view.group <= view.plan->partial_rows ||
		            view.plan->partial_rows == view.rows);
		item++;
		if (piece->suffixes == NONE) {
			assert_int_equal(suffix->begin, begin);
			continue;
		}
		/* The sequence shares a prefix: it sees all of it, and its suffix begins at its
		 * end. */
		prefix = &view.items[view.suffixes[piece->suffixes].prefix_item];
		assert_int_equal(prefix->begin, begin);
		assert_int_equal(prefix->first, step->first[b]);
		assert_int_equal(prefix->n_k, suffix->begin);
		assert_true(suffix->begin > begin && suffix->begin <= step->lengths[b] - n_new);
		assert_int_equal(suffix->begin % (uint32_t)scene->cache.page_tokens, 0);
		for (uint32_t page = begin / (uint32_t)scene->cache.page_tokens;
		     page < suffix->begin / (uint32_t)scene->cache.page_tokens; page++)
			assert_int_equal(step->host_table[prefix->table_start + page],
			                 step->host_table[suffix->table_start + page]);
		for (uint32_t block = 0, row = 0; block < suffix->row_blocks; block++) {
			const struct fa_cuda_paged_suffix *t =
				&view.suffixes[piece->suffixes + block];

			assert_int_equal(t->item, item - 1);
			assert_int_equal(t->prefix_item,
			                 view.suffixes[piece->suffixes].prefix_item);
			assert_int_equal(t->first_q, suffix->first_q);
			assert_int_equal(t->first, block * view.rows);
			for (uint32_t i = 0; i < t->rows; i++, row++)
				assert_int_equal(
					view.tokens[prefix->first_q + (t->row + i) / view.group],
					step->cu_new[b] + row / view.group);
			assert_int_equal(t->row % view.group, block * view.rows % view.group);
			if (block == suffix->row_blocks - 1)
				assert_int_equal(row, n_new * view.group);
		}
		n_prefix_tokens[view.suffixes[piece->suffixes].prefix_item] += n_new;
	}
	assert_int_equal(item, scene->plan.decode_items);
	for (uint32_t i = 0; i < scene->plan.prefixes; i++)
		assert_int_equal(view.items[i].n_q, n_prefix_tokens[i]);
}

static void check(struct scene *scene, uint32_t prefixes)
{
	scene_plan(scene);
	assert_int_equal(scene->plan.prefixes, prefixes);
	assert_true((prefixes > 0) == (scene->plan.decode->kind == FA_CUDA_PAGED_SPLIT));
	if (prefixes > 0) {
		check_walk(scene);
		check_tokens(scene);
	}
	free(scene->blob);
}

/* ---- tests */

static struct scene scene;

static void set(int32_t b, uint32_t n_new, uint32_t length)
{
	scene.cu_new[b + 1] = scene.cu_new[b] + n_new;
	scene.lengths[b] = length;
}

/* 64 sequences of 9,216 tokens that share the first 8,192. */
static void set_usual(void)
{
	scene_init(&scene, 64);
	for (int32_t b = 0; b < 64; b++) {
		set(b, 1, 9216);
		begin_like(&scene, b, 0, 128);
	}
}

static void test_usual(void **state)
{
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	const struct fa_cuda_paged_attention *args = &launches[0].args.attention;

	set_usual();
	check(&scene, 1);
	assert_string_equal(scene.plan.decode->symbol, "fa_sm90_paged_pieces_bf16_d128_a2");
	assert_int_equal(scene.plan.decode_items, 65);
	/* Per KV head: 8 row blocks of the prefix (not 64), with 128 tiles each, and 64 suffixes of
	 * 16 tiles. Each adds 3 tiles of time for its epilogue. */
	assert_int_equal(scene.plan.epilogue_tiles, 3);
	assert_int_equal((scene.plan.tiles_each * 132 + scene.plan.tiles_extra),
	                 8 * (8 * 131 + 64 * 19));

	scene_plan(&scene);
	assert_int_equal(
		fa_cuda_paged_launches(&scene.plan, &scene.request, 4096, 1 << 20, 7, launches), 1);
	assert_int_equal((uintptr_t)args->splits, 4096 + scene.plan.splits_at);
	assert_int_equal((uintptr_t)args->suffix_counters, (1 << 20) + FA_CUDA_PAGED_BLOCKS * 8);
	assert_int_equal(args->inline_items, 0);
	assert_non_null(args->items);
	assert_int_equal((uintptr_t)args->partial_sums +
	                         (size_t)scene.plan.places * scene.plan.partial_rows * 8,
	                 (1 << 20) + scene.plan.workspace_bytes);
	free(scene.blob);
}

static void test_not(void **state)
{
	static const float slopes[32];

	set_usual();
	scene.step.host_table = NULL;
	check(&scene, 0);
	set_usual();
	scene.request.attention.alibi_slopes = slopes;
	check(&scene, 0);
	/* A window that hides the first token, then one that hides no token. */
	set_usual();
	scene.request.attention.window_left = 9214;
	check(&scene, 0);
	scene.request.attention.window_left = 9215;
	check(&scene, 1);
	/* Sequences share too few pages. */
	set_usual();
	for (int32_t b = 0; b < 64; b++)
		scene.table[b][1] = 7000 + (uint32_t)b;
	check(&scene, 0);
	scene_init(&scene, 2);
	set(0, 1, 500);
	set(1, 1, 500);
	begin_like(&scene, 1, 0, 7);
	check(&scene, 0);
	/* The plan would have more parts than there are counters. */
	set_usual();
	scene.cache.kv_heads = scene.request.attention.heads = 300;
	check(&scene, 0);
	/* Partial results would take 138 MB, which is too much, then 130 MB. */
	set_usual();
	scene.cache.kv_heads = scene.request.attention.heads = 124;
	check(&scene, 0);
	set_usual();
	scene.cache.kv_heads = scene.request.attention.heads = 116;
	check(&scene, 1);
	/* Sequences dropped different numbers of leading tokens. */
	set_usual();
	for (int32_t b = 0; b < 64; b++)
		scene.first[b] = (uint32_t)b;
	check(&scene, 0);
}

/* @batch sequences of 4,096 tokens that share 2,048 of them. */
static void set_half(int32_t batch)
{
	scene_init(&scene, batch);
	for (int32_t b = 0; b < batch; b++) {
		set(b, 1, 4096);
		begin_like(&scene, b, 0, 32);
	}
}

/* On a chip whose costs are known, sequences share a prefix only if that saves more time than the
 * partial results cost. */
static void test_pays(void **state)
{
	set_half(8);
	check(&scene, 0);
	set_half(8);
	scene.chip.share_early = true;
	check(&scene, 1);
	set_half(8);
	scene.chip.arch = 100;
	check(&scene, 1);
	set_half(16);
	check(&scene, 0);
	set_half(32);
	check(&scene, 1);
}

static void test_groups(void **state)
{
	/* Even and odd sequences form two groups; one sequence of each shares nothing. */
	set_usual();
	for (int32_t b = 1; b < 64; b++)
		begin_like(&scene, b, b % 2, 128);
	for (uint32_t i = 0; i < 128; i++)
		scene.table[1][i] += 500, scene.table[3][i] = scene.table[1][i];
	for (int32_t b = 1; b < 64; b += 2)
		begin_like(&scene, b, 1, 128);
	scene.table[5][0] = 77;
	scene.table[6][0] = 78;
	check(&scene, 2);

	/* All sequences share 16 pages, and each half shares 112 more: each half is a group. */
	set_usual();
	for (int32_t b = 0; b < 64; b++)
		for (uint32_t i = 16; i < 128; i++)
			scene.table[b][i] = 5000000 + (uint32_t)(b % 2) * 1000 + i;
	check(&scene, 2);
	/* All sequences share 120 pages, and sets of four share 8 more: all are one group. */
	set_usual();
	for (int32_t b = 0; b < 64; b++)
		for (uint32_t i = 120; i < 128; i++)
			scene.table[b][i] = 5000000 + (uint32_t)(b % 16) * 1000 + i;
	check(&scene, 1);
	/* One half shares 128 pages. The other half shares only 40 pages, with the first half
	 * and within itself, and is a second group. */
	set_usual();
	for (int32_t b = 32; b < 64; b++)
		for (uint32_t i = 40; i < 128; i++)
			scene.table[b][i] = 9000000 + 1000 * (uint32_t)b + i;
	check(&scene, 2);
	/* Equal pages are not shared if they follow a different page. */
	set_usual();
	scene.table[9][64] = 3;
	check(&scene, 1);
}

/* UINT32_MAX in a table is a page like any other, even where the other tables end. */
static void test_last_number(void **state)
{
	const int32_t batch = 10;

	scene_init(&scene, batch);
	for (int32_t b = 0; b < batch; b++) {
		set(b, 1, 200 * 64 + 1);
		begin_like(&scene, b, 0, 200);
	}
	scene.lengths[0] += 64;
	scene.table[0][200] = UINT32_MAX;
	check(&scene, 1);
}

/* Pages to which new tokens go are not shared, whatever the table contains. */
static void test_new_tokens(void **state)
{
	set_usual();
	scene.chip.pack = -1; /* packed rows share prefixes, too (test-cuda-paged-packed.c) */
	for (int32_t b = 0; b < 64; b++) {
		set(b, 5, 8195);
		begin_like(&scene, b, 0, PAGES_MAX);
	}
	scene_plan(&scene);
	check_walk(&scene);
	check_tokens(&scene);
	assert_int_equal(
		((const struct fa_cuda_paged_item *)(const void *)(scene.blob +
	                                                           scene.plan.decode_items_at))
			->n_k,
		8128);
	free(scene.blob);
}

static void test_random(void **state)
{
	int grouped = 0;

	for (int i = 0; i < 400; i++) {
		const int32_t batch = 1 + (int32_t)below(i % 10 ? 20 : BATCH_MAX);

		scene_init(&scene, batch);
		scene.chip.sms = 1 + (int32_t)below(150);
		scene.chip.portable_paged = below(2);
		scene.chip.share_early = below(2);
		scene.chip.pack = -1; /* only decode */
		scene.cache.page_tokens = 16 * (1 + (int32_t)below(5));
		scene.cache.kv_heads = 1 + (int32_t)below(8);
		scene.request.attention.heads = scene.cache.kv_heads * (1 + (int32_t)below(8));
		scene.request.attention.window_left = below(4) ? -1 : (int64_t)below(9000);
		scene.request.attention.deterministic = below(4) == 0;
		scene.cache.head_dim_v = below(4) ? 128 : 512;
		for (int32_t b = 0; b < batch; b++) {
			const uint32_t n_new = below(2) ? 1 : below(8) ? below(20) : below(60);
			const uint32_t longest = (uint32_t)scene.cache.page_tokens * PAGES_MAX;

			set(b, n_new, n_new + below(below(2) ? longest - 100 : 800));
			if (b > 0 && below(4)) {
				const int32_t other = (int32_t)below((uint32_t)b);

				begin_like(&scene, b, other, below(PAGES_MAX));
				scene.first[b] = scene.first[other];
			} else if (below(4) == 0) {
				scene.first[b] = below(300);
			}
			if (scene.first[b] > scene.lengths[b])
				scene.first[b] = 0;
		}
		scene_plan(&scene);
		if (scene.plan.decode && scene.plan.decode->kind == FA_CUDA_PAGED_SPLIT) {
			check_walk(&scene);
			check_tokens(&scene);
		}
		grouped += scene.plan.prefixes > 0;
		if (scene.request.attention.deterministic)
			assert_int_equal(scene.plan.prefixes, 0);
		free(scene.blob);
	}
	/* Check that enough of the random plans had prefixes. */
	assert_true(grouped > 50);
}

/* A deterministic plan divides a sequence into the same units whatever else is in the step. */
static void test_units(void **state)
{
	static const uint32_t lengths[] = { 1, 512, 513, 4096, 65536, 65537, 300000 };
	static const uint32_t units[] = { 8, 8, 8, 8, 8, 16, 64 };

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		const struct fa_cuda_paged_item *item;
		const struct fa_cuda_paged_kernel *alone;
		struct view view;

		scene_init(&scene, 1);
		scene.request.attention.deterministic = true;
		scene.cache.page_tokens = 256;
		scene.step.table_entries = 1 << 20;
		scene.step.host_table = NULL;
		set(0, 1, lengths[i]);
		scene_plan(&scene);
		alone = scene.plan.decode;
		view = view_of(&scene);
		item = &view.items[0];
		assert_int_equal(view.splits[0].split_tiles, units[i]);
		assert_int_equal(item->tiles, (lengths[i] + units[i] * 64 - 1) / (units[i] * 64));
		check_walk(&scene);
		free(scene.blob);

		scene_init(&scene, 3);
		scene.request.attention.deterministic = true;
		scene.cache.page_tokens = 256;
		scene.step.table_entries = 1 << 20;
		set(0, 40, 70);
		set(1, 1, lengths[i]);
		set(2, 3, 20000);
		scene.step.host_table = NULL;
		scene_plan(&scene);
		assert_ptr_equal(scene.plan.decode, alone);
		view = view_of(&scene);
		assert_int_equal(view.splits[1].split_tiles, units[i]);
		check_walk(&scene);
		free(scene.blob);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_usual),       cmocka_unit_test(test_not),
		cmocka_unit_test(test_pays),        cmocka_unit_test(test_groups),
		cmocka_unit_test(test_last_number), cmocka_unit_test(test_new_tokens),
		cmocka_unit_test(test_random),      cmocka_unit_test(test_units),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
