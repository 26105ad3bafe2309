/*
 * Tests without a GPU how a step's work is divided over thread blocks: every tile of every sequence
 * belongs to exactly one block, every row block occurs once, and no number exceeds what kernels can
 * count. The checks repeat the kernels' walk over tiles.
 */
#include "tests/unit/cuda-paged-scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Checks that there is room for the partial results of @item's rows, if blocks share its parts. */
static void check_parted(const struct scene *scene, const struct fa_cuda_paged_plan *plan,
                         const struct fa_cuda_paged_item *item)
{
	const uint32_t group = (uint32_t)(scene->request.attention.heads / scene->cache.kv_heads);
	const uint32_t rows = item->n_q * group, most = (uint32_t)plan->decode->rows;

	assert_true(plan->part_rows >= (rows < most ? rows : most));
	assert_true(plan->part_rows <= most && plan->partial_rows == most);
}

/* Checks that every tile of each part is computed once. Returns the time of the slowest thread
 * block, in tiles; the end of a part takes as long as @end tiles. */
static uint32_t check_decode(const struct scene *scene, const struct fa_cuda_paged_plan *plan,
                             uint32_t end)
{
	const bool here = plan->decode_items <= FA_CUDA_PAGED_INLINE_ITEMS;
	const struct fa_cuda_paged_item *items =
		here ? plan->first_items : (const void *)(scene->blob + plan->decode_items_at);
	const uint32_t *block_items = (const void *)(scene->blob + plan->block_items_at);
	uint64_t total = 0, covered = 0, there = 0, computed = 0;
	uint32_t longest = 0;

	assert_true(plan->epilogue_tiles == 0 || plan->epilogue_tiles < plan->tiles_each);
	for (uint32_t i = 0; i < plan->decode_items; i++) {
		assert_int_equal(items[i].tile, total);
		assert_true(items[i].tiles > plan->epilogue_tiles && items[i].parts >= 1);
		total += (uint64_t)items[i].tiles * items[i].parts;
		there += (uint64_t)(items[i].tiles - plan->epilogue_tiles) * items[i].parts;
	}
	for (uint32_t block = 0; block < plan->decode_grid; block++) {
		const uint32_t extra = block < plan->tiles_extra ? block : plan->tiles_extra;
		uint64_t at = (uint64_t)block * plan->tiles_each + extra;
		uint32_t left = plan->tiles_each + (block < plan->tiles_extra);
		uint32_t index = 0, part, tile, cost = 0;

		if (here)
			while (index + 1 < plan->decode_items && items[index + 1].tile <= at)
				index++;
		else
			index = block_items[block];
		assert_int_equal(at, covered);
		assert_true(left >= 1);
		assert_true(at >= items[index].tile);
		part = (uint32_t)(at - items[index].tile) / items[index].tiles;
		tile = (uint32_t)(at - items[index].tile) % items[index].tiles;
		while (left > 0) {
			const uint32_t rest = items[index].tiles - tile;
			const uint32_t n = rest < left ? rest : left;
			const uint32_t begin = tile > plan->epilogue_tiles ? tile
			                                                   : plan->epilogue_tiles;

			assert_true(part < items[index].parts);
			if (tile + n > begin) {
				const uint32_t real = tile + n - begin;

				computed += real;
				cost += real + end;
				if (real < items[index].tiles - plan->epilogue_tiles)
					check_parted(scene, plan, &items[index]);
			}
			left -= n;
			covered += n;
			tile = 0;
			if (left > 0 && ++part == items[index].parts) {
				part = 0;
				index++;
				assert_true(index < plan->decode_items);
			}
		}
		assert_true(cost > end);
		longest = cost > longest ? cost : longest;
	}
	assert_int_equal(covered, total);
	assert_int_equal(computed, there);
	return longest;
}

static int compare_seen(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x > y ? -1 : x < y;
}

static uint32_t longest_pair(const uint32_t *seen, uint32_t n)
{
	uint32_t longest = 0;

	for (uint32_t i = 0; i < (n + 1) / 2; i++) {
		const uint32_t pair = seen[i] + (i == n - 1 - i ? 0 : seen[n - 1 - i]);

		longest = pair > longest ? pair : longest;
	}
	return longest;
}

/* Checks the order of row blocks. @all: the keys that each sees, in launch order. TMA kernels
 * pair the first block with the last, the second with the last but one. For other kernels the
 * longest come first. */
static void check_order(const struct fa_cuda_paged_plan *plan, uint32_t *all)
{
	const uint32_t n = plan->forward_blocks, longest = longest_pair(all, n);

	if (plan->forward->keys == 0)
		for (uint32_t i = 1; i < n; i++)
			assert_true(all[i] <= all[i - 1]);
	qsort(all, n, sizeof(*all), compare_seen);
	assert_true(longest <= longest_pair(all, n) / 8 * 9 + 9);
}

static void check_forward(const struct scene *scene, const struct fa_cuda_paged_plan *plan)
{
	const struct fa_cuda_paged_item *items = (const void *)(scene->blob +
	                                                        plan->forward_items_at);
	const struct fa_cuda_paged_block *blocks = (const void *)(scene->blob +
	                                                          plan->forward_blocks_at);
	uint32_t *seen = calloc(plan->forward_blocks + 1, sizeof(*seen)), rows = 0;

	for (uint32_t i = 0; i < plan->forward_blocks; i++) {
		const struct fa_cuda_paged_item *item = &items[blocks[i].item];
		uint32_t last;

		assert_true(blocks[i].item < plan->forward_items);
		assert_true(blocks[i].row < item->n_q);
		assert_int_equal(blocks[i].row % (uint32_t)plan->forward->rows, 0);
		for (uint32_t j = 0; j < i; j++)
			assert_false(blocks[i].item == blocks[j].item &&
			             blocks[i].row == blocks[j].row);
		last = blocks[i].row + (uint32_t)plan->forward->rows;
		last = last < item->n_q ? last : item->n_q;
		rows += last - blocks[i].row;
		seen[i] = last + item->n_k - item->n_q;
	}
	if (plan->forward && scene->request.attention.window_left < 0)
		check_order(plan, seen);
	free(seen);
	for (uint32_t i = 0; i < plan->forward_items; i++)
		rows -= items[i].n_q;
	assert_int_equal(rows, 0);
}

static void test_random(void **state)
{
	for (int i = 0; i < 300; i++) {
		struct fa_cuda_paged_plan plan;
		struct scene scene;
		uint32_t decoding = 0;

		scene_init(&scene, 1 + (int32_t)below(i % 10 ? 20 : BATCH_MAX));
		scene.request.attention.heads = (int32_t)(1 + below(8)) * 8;
		scene.request.attention.window_left = below(3) ? -1 : (int64_t)below(500);
		scene.cache.head_dim_v = below(4) ? 128 : 512;
		for (int32_t b = 0; b < scene.step.batch; b++) {
			const uint32_t n_new = below(3) ? 1 : below(2) ? below(40) : below(600);

			scene.cu_new[b + 1] = scene.cu_new[b] + n_new;
			scene.lengths[b] = n_new + below(below(2) ? 200 : 20000);
			scene.first[b] = below(4) ? 0 : below(scene.lengths[b] + 1);
			decoding += n_new > 0 && n_new < 48;
		}
		scene_plan(&scene, i % 2 ? &unpacked_h200 : &rtx, &plan);
		assert_int_equal(plan.decode_items, decoding);
		assert_true(plan.decode_grid <= 132);
		check_decode(&scene, &plan, 0);
		check_forward(&scene, &plan);
		free(scene.blob);
	}
}

/* All blocks have equal work, whatever the lengths. */
static void test_even(void **state)
{
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	scene_init(&scene, 32);
	for (int32_t b = 0; b < 32; b++) {
		scene.cu_new[b + 1] = (uint32_t)b + 1;
		scene.lengths[b] = 4096;
	}
	scene_plan(&scene, &h200, &plan);
	assert_int_equal(plan.decode_grid, 132);
	assert_int_equal(plan.tiles_each, 32 * 8 * 64 / 132);
	assert_string_equal(plan.decode->symbol, "fa_sm90_paged_decode_bf16_d128_a1");
	assert_null(plan.forward);
	assert_int_equal(plan.part_rows, 4);
	free(scene.blob);

	/* Every block computes two whole parts, so no part is shared. */
	for (int32_t b = 0; b < 32; b++)
		scene.lengths[b] = 1024;
	scene_plan(&scene, &h200, &plan);
	assert_int_equal(plan.decode_grid, 128);
	assert_int_equal(plan.part_rows, 0);
	free(scene.blob);
}

/* Thread blocks with many short sequences get fewer tiles, because the end of each part takes
 * time. */
static void test_ends(void **state)
{
	static const struct {
		int32_t dim;
		enum fa_paged_store store;
		const struct fa_cuda_chip *chip;
		uint32_t end;
	} cases[] = {
		{ 128, FA_PAGED_PLAIN, &h200, 3 },
		{ 64, FA_PAGED_PLAIN, &h200, 5 },
		{ 256, FA_PAGED_PLAIN, &h200, 1 },
		{ 128, FA_PAGED_E4M3, &h200, 7 },
		{ 64, FA_PAGED_E4M3, &h200, 8 },
		{ 128, FA_PAGED_PLAIN, &rtx, 0 },
		{ 128, FA_PAGED_PLAIN, &portable_h200, 3 },
		{ 128, FA_PAGED_PLAIN, &newer, 0 },
	};
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const uint32_t end = cases[i].end ? cases[i].end : 3;
		uint32_t equal, cost = 0;

		scene_init(&scene, 64);
		scene.cache.store = cases[i].store;
		scene.cache.head_dim = scene.cache.head_dim_v = cases[i].dim;
		for (int32_t b = 0; b < 64; b++) {
			const uint32_t tiles = 2u << (b * 37 % 64 / 8);

			scene.cu_new[b + 1] = (uint32_t)b + 1;
			scene.lengths[b] = 64 * tiles;
			cost += 8 * (tiles + end);
		}
		scene_plan(&scene, cases[i].chip, &plan);
		assert_int_equal(plan.epilogue_tiles, cases[i].end);
		equal = check_decode(&scene, &plan, end);
		cost /= plan.decode_grid;
		/* One more end is allowed, for a part that ends within a block's range. */
		if (cases[i].end > 0)
			assert_true(equal <= cost + end + 1);
		else
			assert_true(equal > cost + end + 1);
		free(scene.blob);
		/* With sequences of equal length all blocks have about as many ends, so ends
		 * cost no tiles. */
		for (int32_t b = 0; b < 64; b++)
			scene.lengths[b] = 4096;
		scene_plan(&scene, cases[i].chip, &plan);
		assert_int_equal(plan.epilogue_tiles, 0);
		free(scene.blob);
		/* With short sequences a block has few tiles, so ends cost no tiles. */
		for (int32_t b = 0; b < 64; b++)
			scene.lengths[b] = 64 * (1 + (uint32_t)b % 5);
		scene_plan(&scene, cases[i].chip, &plan);
		assert_int_equal(plan.epilogue_tiles, 0);
		free(scene.blob);
	}
}

static void test_kernels(void **state)
{
	static const struct {
		uint32_t n_new;
		int32_t heads, dim;
		const struct fa_cuda_chip *chip;
		const char *symbol;
	} cases[] = {
		{ 1, 8, 64, &h200, "fa_sm90_paged_decode_bf16_d64_a1" },
		{ 1, 8, 40, &h200, "fa_sm80_paged_decode_bf16_d64_v64_a1_w8" },
		{ 1, 8, 64, &portable_h200, "fa_sm80_paged_decode_bf16_d64_v64_a1_w8" },
		{ 1, 8, 64, &newer, "fa_sm80_paged_decode_bf16_d64_v64_a1_w8" },
		{ 5, 64, 64, &h200, "fa_sm90_paged_decode_bf16_d64_a2" },
		{ 5, 64, 64, &portable_h200, "fa_sm80_paged_decode_bf16_d64_v64_a2_w8" },
		{ 1, 8, 64, &rtx, "fa_sm80_paged_decode_bf16_d64_v64_a1_w4" },
		{ 4, 64, 128, &h200, "fa_sm90_paged_decode_bf16_d128_a2" },
		{ 4, 64, 128, &portable_h200, "fa_sm80_paged_decode_bf16_d128_v128_a2_w8" },
		{ 4, 64, 256, &h200, "fa_sm90_paged_decode_bf16_d256_a1" },
		{ 4, 64, 128, &rtx, "fa_sm80_paged_decode_bf16_d128_v128_a2_w4" },
		{ 4, 64, 192, &h200, "fa_sm80_paged_decode_bf16_d256_v256_a1_w4" },
		{ 4, 64, 256, &rtx, "fa_sm80_paged_decode_bf16_d256_v256_a1_w2" },
		{ 1, 40, 96, &h200, "fa_sm80_paged_decode_bf16_d128_v128_a1_w8" },
		{ 500, 32, 128, &unpacked_h200, "fa_sm90_paged_prefill_bf16_d128_v128_band" },
		{ 500, 32, 96, &unpacked_h200, "fa_sm90_paged_prefill_bf16_d96_v96_band" },
		{ 500, 32, 192, &unpacked_h200, "fa_sm90_paged_prefill_bf16_d192_v192_band" },
		{ 500, 32, 120, &unpacked_h200, "fa_sm90_paged_prefill_bf16_d128_v128_band" },
		{ 500, 32, 40, &unpacked_h200, "fa_sm90_paged_prefill_bf16_d64_v64_band" },
		{ 500, 32, 256, &unpacked_h200, "fa_sm90_paged_prefill_bf16_d256_v256_band" },
		{ 500, 32, 128, &rtx, "fa_sm80_paged_forward_bf16_d128_v128_band" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct fa_cuda_paged_kernel *kernel;
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		scene_init(&scene, 1);
		scene.cu_new[1] = cases[i].n_new;
		scene.lengths[0] = 5000;
		scene.request.attention.heads = cases[i].heads;
		scene.cache.head_dim = scene.cache.head_dim_v = cases[i].dim;
		scene_plan(&scene, cases[i].chip, &plan);
		kernel = plan.decode ? plan.decode : plan.forward;
		assert_string_equal(kernel->symbol, cases[i].symbol);
		free(scene.blob);
		if (cases[i].n_new > 1 || cases[i].dim != 64 || cases[i].chip != &h200)
			continue;
		/* Split decode stays on the portable kernel; other features do not force that. */
		scene.request.attention.deterministic = true;
		scene_plan(&scene, &h200, &plan);
		assert_string_equal(plan.decode->symbol, "fa_sm80_paged_pieces_bf16_d64_v64_a2_w8");
		free(scene.blob);
		scene.request.attention.deterministic = false;
		scene.request.attention.softcap = 30;
		scene.request.attention.window_left = 100;
		scene.cache.dtype = FA_ATTENTION_F16;
		scene_plan(&scene, &h200, &plan);
		assert_string_equal(plan.decode->symbol, "fa_sm90_paged_decode_f16_d64_a1");
		free(scene.blob);
	}
}

static void test_forward_kind(void **state)
{
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	struct fa_cuda_paged_plan plan;
	struct scene scene;
	struct fa_cuda_chip portable = h200;
	uint32_t tree_start = 0;

	portable.portable_paged = true;
	scene_init(&scene, 2);
	scene.cu_new[1] = 1;
	scene.cu_new[2] = 101;
	scene.lengths[0] = scene.lengths[1] = 300;
	scene_plan(&scene, &portable, &plan);
	assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 4096, 1 << 20, 7, launches),
	                 2);
	assert_string_equal(launches[0].kernel->symbol,
	                    "fa_sm80_paged_forward_bf16_d128_v128_band");
	assert_int_equal(launches[0].grid_x, 32);
	assert_int_equal(launches[1].args.attention.epoch, 7);
	/* A few items are passed in the launch's arguments. */
	assert_int_equal(launches[1].args.attention.inline_items, 1);
	assert_int_equal(launches[1].args.attention.first_items[0].n_k, 300);
	free(scene.blob);

	scene.request.attention.softcap = 3;
	scene_plan(&scene, &portable, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm80_paged_forward_bf16_d128_v128_rich");
	free(scene.blob);

	/* Strides too large for 32-bit offsets, and negative ones. */
	scene.request.attention.softcap = 0;
	for (int i = 0; i < 3; i++) {
		static const int64_t strides[] = { (1 << 21) - 8, 1 << 21, -4096 };

		scene.request.attention.q.data = (void *)4096;
		scene.request.attention.q.stride_token = strides[i];
		scene_plan(&scene, &portable, &plan);
		assert_int_equal(
			fa_cuda_paged_launches(&plan, &scene.request, 4096, 1 << 20, 7, launches),
			2);
		assert_string_equal(plan.forward->symbol,
		                    i == 0 ? "fa_sm80_paged_forward_bf16_d128_v128_band"
		                           : "fa_sm80_paged_forward_bf16_d128_v128_rich");
		free(scene.blob);
	}
	scene.request.attention.q = (struct fa_attention_tensor){ 0 };

	/* V has shorter rows than K, or lies inside K's rows. */
	scene.cache.head_dim_v = 64;
	scene_plan(&scene, &portable, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm80_paged_forward_bf16_d128_v128_rich");
	free(scene.blob);
	scene.cache.v_offset = 0;
	scene_plan(&scene, &portable, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm80_paged_forward_bf16_d128_v128_band");
	free(scene.blob);

	/* Trees and fp32 take the decode kernels, however many rows there are. */
	scene.request.attention.tree = &tree_start;
	scene.tree_start[0] = FA_PAGED_NO_TREE;
	scene.request.attention.tree_start = scene.tree_start;
	scene_plan(&scene, &portable, &plan);
	assert_null(plan.forward);
	assert_int_equal(plan.decode_items, 2);
	check_decode(&scene, &plan, 0);
	free(scene.blob);
	scene.request.attention.tree = NULL;
	scene.cache.dtype = FA_ATTENTION_F32;
	scene_plan(&scene, &portable, &plan);
	assert_null(plan.forward);
	free(scene.blob);
}

/* Checks which steps the TMA kernels take, and which go to other kernels. */
static void test_hopper(void **state)
{
	static const int32_t pages[] = { 16, 32, 48, 64, 80, 112, 128, 256 };
	static const int32_t boxes[] = { 16, 32, 16, 64, 16, 16, 128, 128 };
	static const uint32_t loaders[] = { 4, 4, 4, 2, 4, 4, 1, 1 };
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	const struct fa_cuda_paged_attention *args = &launches[0].args.attention;
	struct fa_cuda_chip next = h200;
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
		const struct fa_cuda_map *map = &launches[0].maps[FA_CUDA_MAP_K];

		scene_init(&scene, 1);
		scene.cache.page_tokens = pages[i];
		scene.cu_new[1] = 1000;
		scene.lengths[0] = 3000;
		scene_plan(&scene, &unpacked_h200, &plan);
		assert_int_equal(
			fa_cuda_paged_launches(&plan, &scene.request, 4096, 1 << 20, 7, launches),
			1);
		assert_int_equal(launches[0].n_maps, FA_CUDA_MAPS);
		assert_int_equal(args->box_keys, boxes[i]);
		assert_int_equal(args->loaders, loaders[i]);
		assert_int_equal(map->box[1], boxes[i]);
		assert_int_equal(map->dims[1], pages[i]);
		assert_int_equal(map->strides[2], 256);
		assert_true(map->data == args->pages.k);
		assert_int_equal(args->attention.blocks_m, 8);
		assert_int_equal(args->attention.units_m, 4);
		/* With fewer pairs than SMs, each block of threads has one pair. */
		assert_int_equal(launches[0].grid_x, 4 * scene.request.attention.heads < 132
		                                             ? 4 * scene.request.attention.heads
		                                             : 132);
		free(scene.blob);
	}

	/* At head dim 64 one warp loads both boxes. */
	scene_init(&scene, 1);
	scene.cache.head_dim = scene.cache.head_dim_v = 64;
	scene.cu_new[1] = 1000;
	scene.lengths[0] = 4000;
	scene_plan(&scene, &unpacked_h200, &plan);
	assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 4096, 1 << 20, 7, launches),
	                 1);
	assert_string_equal(plan.forward->symbol, "fa_sm90_paged_prefill_bf16_d64_v64_band");
	assert_int_equal(args->box_keys, 64);
	assert_int_equal(args->loaders, 1);
	free(scene.blob);

	/* Rows of V may differ from K's, and logits may be modified. */
	scene_init(&scene, 1);
	scene.cu_new[1] = 100;
	scene.lengths[0] = 300;
	scene.cache.head_dim_v = 64;
	scene_plan(&scene, &unpacked_h200, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm90_paged_prefill_bf16_d128_v128_band");
	free(scene.blob);
	scene.request.attention.softcap = 3;
	scene_plan(&scene, &unpacked_h200, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm90_paged_prefill_bf16_d128_v128_rich");
	free(scene.blob);
	scene.request.attention.softcap = 0;
	scene.request.attention.q.data = (void *)4096;
	scene.request.attention.q.stride_token = 8 * 128 + 4;
	scene_plan(&scene, &unpacked_h200, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm80_paged_forward_bf16_d128_v128_rich");
	free(scene.blob);
	scene.request.attention.q.data = NULL;
	/* The sm_90a code runs on no other chip. */
	next.arch = 100;
	scene_plan(&scene, &next, &plan);
	assert_true(plan.forward->keys == 0);
	free(scene.blob);
}

/* Checks what is passed in the launch's arguments: a few items, and a short table. */
static void test_carried(void **state)
{
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	const struct fa_cuda_paged_attention *args = &launches[0].args.attention;
	uint32_t table[FA_CUDA_PAGED_INLINE_TABLE + 1];
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	for (uint32_t i = 0; i <= FA_CUDA_PAGED_INLINE_TABLE; i++)
		table[i] = i * 7 + 3;
	for (int32_t batch = FA_CUDA_PAGED_INLINE_ITEMS; batch <= FA_CUDA_PAGED_INLINE_ITEMS + 1;
	     batch++)
		for (int i = 0; i < 5; i++) {
			/* Cases 0 to 4: a table at the size limit; a larger one; none on the host;
			 * a chip without such a kernel; and a sequence for another kernel. */
			const bool few = batch <= FA_CUDA_PAGED_INLINE_ITEMS, fits = few && i == 0;

			scene_init(&scene, batch);
			for (int32_t b = 0; b < batch; b++) {
				scene.cu_new[b + 1] = scene.cu_new[b] + (i == 4 && b == 1 ? 70 : 1);
				scene.lengths[b] = 1000;
				scene.table_start[b] = (uint32_t)b * 16;
			}
			scene.step.host_table = i == 2 ? NULL : table;
			scene.step.table_entries = FA_CUDA_PAGED_INLINE_TABLE + (i == 1);
			scene.step.table = (void *)(uintptr_t)4096;
			scene_plan(&scene, i == 3 ? &rtx : &h200, &plan);
			assert_int_equal(plan.inline_table, fits ? FA_CUDA_PAGED_INLINE_TABLE : 0);
			assert_int_equal(plan.decode->small, fits);
			if (i != 4)
				assert_int_equal(plan.blob_bytes == 0, few);
			check_decode(&scene, &plan, 0);
			assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 1 << 16,
			                                        1 << 20, 1, launches),
			                 i == 4 ? 2 : 1);
			args = &launches[i == 4].args.attention;
			/* The long sequence is not decoded, so it is not among the items. */
			assert_int_equal(args->inline_items, few || i == 4 ? plan.decode_items : 0);
			assert_int_equal(!args->items, few || i == 4);
			for (uint32_t n = 0; args->inline_items && n < FA_CUDA_PAGED_INLINE_ITEMS;
			     n++)
				assert_int_equal(args->first_tiles[n],
				                 n < args->inline_items ? args->first_items[n].tile
				                                        : UINT32_MAX);
			if (fits) {
				assert_string_equal(launches[0].kernel->symbol,
				                    "fa_sm90_paged_decode_bf16_d128_a1_small");
				assert_memory_equal(launches[0].args.small_attention.table, table,
				                    FA_CUDA_PAGED_INLINE_TABLE * sizeof(*table));
			}
			free(scene.blob);
		}
}

static void test_carried_append(void **state)
{
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	uint32_t table[FA_CUDA_PAGED_INLINE_TABLE + 1];
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	for (uint32_t i = 0; i <= FA_CUDA_PAGED_INLINE_TABLE; i++)
		table[i] = i * 5 + 1;
	for (int i = 0; i < 4; i++) {
		const int32_t batch = FA_CUDA_PAGED_INLINE_ITEMS + (i == 1);
		const bool fits = i == 0;

		scene_init(&scene, batch);
		for (int32_t b = 0; b < batch; b++) {
			scene.cu_new[b + 1] = (uint32_t)b + 1;
			scene.lengths[b] = 100 + (uint32_t)b;
			scene.table_start[b] = (uint32_t)b * 2;
		}
		scene.step.host_table = table;
		scene.step.table_entries = FA_CUDA_PAGED_INLINE_TABLE + (i == 2);
		scene.request = (struct fa_paged_request){
			.op = i == 3 ? FA_PAGED_READ : FA_PAGED_APPEND,
			.append = {
				.cache = &scene.cache,
				.step = &scene.step,
				.k = { (void *)(uintptr_t)4096, 0, 1024, 128 },
				.v = { (void *)(uintptr_t)8192, 0, 1024, 128 },
			},
		};
		scene_plan(&scene, &h200, &plan);
		assert_int_equal(plan.kernel->small, fits);
		assert_int_equal(plan.blob_bytes == 0, fits);
		assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 1 << 16, 1 << 20, 1,
		                                        launches),
		                 1);
		if (fits) {
			const struct fa_cuda_paged_small_append *args =
				&launches[0].args.small_append;

			assert_int_equal(args->plain.batch, batch);
			assert_int_equal(args->items[batch - 1].n_k, 100 + batch - 1);
			assert_int_equal(args->items[batch - 1].table_start, (batch - 1) * 2);
			assert_memory_equal(args->table, table,
			                    FA_CUDA_PAGED_INLINE_TABLE * sizeof(*table));
		}
		free(scene.blob);
	}
}

static void test_refused(void **state)
{
	const struct fa_cuda_chip old = { .arch = 75, .shared_bytes_max = 65536, .sms = 40 };
	struct fa_cuda_paged_plan plan;
	char text[256] = "";
	struct scene scene;
	char blob[65536];

	scene_init(&scene, 1);
	scene.cu_new[1] = 1;
	scene.lengths[0] = 100;
	assert_true(fa_cuda_paged_blob_bytes(&scene.request) <= sizeof(blob));
	assert_int_equal(fa_cuda_paged_plan(&old, &scene.request, blob, text, sizeof(text), &plan),
	                 -ENOTSUP);
	assert_non_null(strstr(text, "7.5"));
	scene.lengths[0] = FA_PAGED_LENGTH_MAX;
	scene.cache.kv_heads = scene.request.attention.heads = 1024;
	assert_int_equal(fa_cuda_paged_plan(&h200, &scene.request, blob, text, sizeof(text), &plan),
	                 -ENOTSUP);
	assert_non_null(strstr(text, "tiles"));
}

/* Checks which caches of codes have kernels, and how the arguments describe the codes. */
static void test_codes(void **state)
{
	struct fa_cuda_chip old = h200, small = h200;
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	float scales[2 * 3] = { 1, 2, 3, 4, 5, 6 };
	const uint32_t table[5] = { 7, 77, 777, 7777, 77777 };
	const struct {
		enum fa_paged_store store;
		int32_t dim, group;
		const struct fa_cuda_chip *chip;
		const char *symbol;
	} kernels[] = {
		{ FA_PAGED_E4M3, 128, 4, &h200, "fa_sm90_codes_decode_e4m3_d128_a1" },
		{ FA_PAGED_INT8, 128, 17, &h200, "fa_sm90_codes_decode_int8_d128_a2" },
		{ FA_PAGED_INT8, 64, 1, &h200, "fa_sm90_codes_decode_int8_d64_a1" },
		{ FA_PAGED_E4M3, 64, 32, &h200, "fa_sm90_codes_decode_e4m3_d64_a2" },
		{ FA_PAGED_E4M3, 256, 32, &h200, "fa_sm90_codes_decode_e4m3_d256_a1" },
		{ FA_PAGED_E4M3, 96, 4, &h200, "fa_sm80_codes_decode_e4m3_d128_a1_w8" },
		{ FA_PAGED_E4M3, 128, 4, &portable_h200, "fa_sm80_codes_decode_e4m3_d128_a1_w8" },
		{ FA_PAGED_E4M3, 128, 4, &newer, "fa_sm80_codes_decode_e4m3_d128_a1_w8" },
		{ FA_PAGED_INT8, 128, 4, &rtx, "fa_sm80_codes_decode_int8_d128_a1_w4" },
	};
	struct fa_cuda_paged_plan plan;
	struct fa_paged_cache cache, carried;
	struct scene scene;
	char text[256] = "";

	scene_init(&scene, 1);
	scene.cu_new[1] = 100; /* a step with many rows, too */
	scene.lengths[0] = 300;
	scene.cache.store = FA_PAGED_INT8;
	scene.cache.dtype = FA_ATTENTION_F16;
	scene.cache.layers = 2;
	scene.cache.kv_heads = 3;
	scene.cache.page_tokens = 64;
	scene.cache.head_dim = scene.cache.head_dim_v = 128;
	scene.request.attention.heads = 6;
	scene.request.attention.layer = 1;
	scene_plan(&scene, &h200, &plan);
	assert_null(plan.forward);
	assert_string_equal(plan.decode->symbol, "fa_sm90_codes_decode_int8_d128_a2");
	assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 0, 0, 1, launches), 1);
	assert_true(launches[0].args.attention_quantised.quantised.token_scales);
	assert_int_equal(launches[0].args.attention_quantised.quantised.k_scales_at, 3 * 64 * 128);
	assert_int_equal(launches[0].args.attention.pages.k_row, 128);
	free(scene.blob);
	scene.cache.store = FA_PAGED_E4M3;
	scene.cache.k_scales = scales;
	scene.cache.v_scales = scales;
	small.shared_bytes_max = 101376;
	scene_plan(&scene, &small, &plan);
	assert_string_equal(plan.decode->symbol, "fa_sm80_codes_decode_e4m3_d128_a2_w4");
	assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 0, 0, 1, launches), 1);
	assert_false(launches[0].args.attention_quantised.quantised.token_scales);
	assert_memory_equal(launches[0].args.attention_quantised.quantised.k_scales, scales + 3,
	                    12);
	free(scene.blob);
	carried = scene.cache;

	/* Chips and head dims with special kernels, and those with portable ones. */
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		scene.cache.store = kernels[i].store;
		scene.cache.head_dim = scene.cache.head_dim_v = kernels[i].dim;
		scene.cache.kv_heads = 1;
		scene.cache.v_scales = scene.cache.k_scales = i % 2 ? scales : NULL;
		scene.request.attention.heads = kernels[i].group;
		scene.cu_new[1] = 1;
		scene_plan(&scene, kernels[i].chip, &plan);
		assert_string_equal(plan.decode->symbol, kernels[i].symbol);
		free(scene.blob);
	}
	/* If a launch carries the table, it lies behind the codes' arguments. */
	scene.cache = carried;
	scene.request.attention.heads = 6;
	scene.step.host_table = table;
	scene.step.table_entries = 5;
	scene_plan(&scene, &h200, &plan);
	assert_string_equal(plan.decode->symbol, "fa_sm90_codes_decode_e4m3_d128_a1_small");
	assert_int_equal(plan.blob_bytes, 0);
	assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 0, 0, 1, launches), 1);
	assert_memory_equal(launches[0].args.small_attention_quantised.table, table, sizeof(table));
	assert_memory_equal(launches[0].args.attention_quantised.quantised.k_scales, scales + 3,
	                    12);
	free(scene.blob);

#define REFUSED(chip, change, part)                                                                \
	do {                                                                                       \
		cache = scene.cache;                                                               \
		change;                                                                            \
		assert_int_equal(fa_cuda_paged_check_cache(&chip, &cache, text, sizeof(text)),     \
		                 -ENOTSUP);                                                        \
		assert_non_null(strstr(text, part));                                               \
	} while (0)
	cache = scene.cache;
	assert_int_equal(fa_cuda_paged_check_cache(&h200, &cache, text, sizeof(text)), 0);
	assert_int_equal(fa_cuda_paged_check_cache(&small, &cache, text, sizeof(text)), 0);
	REFUSED(h200, cache.dtype = FA_ATTENTION_F32, "fp32");
	REFUSED(h200, cache.head_dim = 72, "72");
	REFUSED(h200, cache.head_dim_v = 8, "multiples of 16");
	REFUSED(h200, cache.kv_heads = 65, "65 KV heads");
	old.arch = 75;
	REFUSED(old, , "7.5");
	cache = scene.cache;
	cache.kv_heads = 65;
	cache.k_scales = cache.v_scales = NULL;
	assert_int_equal(fa_cuda_paged_check_cache(&h200, &cache, text, sizeof(text)), 0);
#undef REFUSED
}

/* Checks that two kernels agree in everything except what the caller compares. */
static void check_stands_for(const struct fa_cuda_paged_kernel *kernel,
                             const struct fa_cuda_paged_kernel *other)
{
	assert_int_equal(kernel->image, other->image);
	assert_int_equal(kernel->kind, other->kind);
	assert_int_equal(kernel->dtype, other->dtype);
	assert_int_equal(kernel->stores, other->stores);
	assert_int_equal(kernel->arch, other->arch);
	assert_int_equal(kernel->arch_end, other->arch_end);
	assert_int_equal(kernel->dim, other->dim);
	assert_int_equal(kernel->dim_v, other->dim_v);
	assert_int_equal(kernel->exact, other->exact);
	assert_int_equal(kernel->appends, other->appends);
	assert_int_equal(kernel->threads, other->threads);
	assert_int_equal(kernel->rows, other->rows);
	assert_int_equal(kernel->shared_bytes, other->shared_bytes);
	assert_int_equal(kernel->blocks, other->blocks);
}

static void test_table(void **state)
{
	bool images[FA_CUDA_PAGED_IMAGES] = { false };

	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];

		assert_in_range(kernel->image, 0, FA_CUDA_PAGED_IMAGES - 1);
		images[kernel->image] = true;
		assert_true(kernel->shared_bytes <= h200.shared_bytes_max);
		assert_true(kernel->threads % 32 == 0 && kernel->threads > 0);
		if (kernel->small) {
			assert_true(i > 0 && !kernel[-1].small);
			assert_int_equal(kernel->levels, kernel[-1].levels);
			check_stands_for(kernel, kernel - 1);
		}
		if (kernel->levels) {
			assert_true(i > 1 && !kernel[-2].levels);
			assert_int_equal(kernel->small, kernel[-2].small);
			check_stands_for(kernel, kernel - 2);
		}
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(kernel->symbol, fa_cuda_paged_kernels[j].symbol);
	}
	for (int i = 0; i < FA_CUDA_PAGED_IMAGES; i++)
		assert_true(images[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),  cmocka_unit_test(test_even),
		cmocka_unit_test(test_kernels), cmocka_unit_test(test_forward_kind),
		cmocka_unit_test(test_hopper),  cmocka_unit_test(test_refused),
		cmocka_unit_test(test_carried), cmocka_unit_test(test_carried_append),
		cmocka_unit_test(test_table),   cmocka_unit_test(test_codes),
		cmocka_unit_test(test_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
