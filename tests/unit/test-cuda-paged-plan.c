/*
 * The division of a step's work over blocks, without a GPU: every tile of every sequence
 * belongs to exactly one block, every block of rows is there once, and nothing is beyond
 * what kernels count with. The walk is the kernels', written again.
 */
#include "kernels/cuda/paged-plan.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BATCH_MAX 300

static const struct fa_cuda_chip h200 = {
	.arch = 90, .shared_bytes_max = 232448, .l2_bytes = 50 << 20, .sms = 132
};
static const struct fa_cuda_chip rtx = {
	.arch = 89, .shared_bytes_max = 101376, .l2_bytes = 72 << 20, .sms = 128
};

static uint64_t random_state = 88172645463325252ull;

static uint32_t below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)((random_state >> 20) % n);
}

struct scene {
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	struct fa_paged_request request;
	uint32_t cu_new[BATCH_MAX + 1], lengths[BATCH_MAX], before[BATCH_MAX], first[BATCH_MAX];
	uint32_t table_start[BATCH_MAX], tree_start[BATCH_MAX];
	char *blob;
	size_t blob_bytes;
};

static void scene_init(struct scene *scene, int32_t batch)
{
	memset(scene, 0, sizeof(*scene));
	scene->cache = (struct fa_paged_cache){
		.dtype = FA_ATTENTION_BF16,
		.pool = (void *)(uintptr_t)(1 << 20),
		.layers = 2,
		.kv_heads = 8,
		.head_dim = 128,
		.head_dim_v = 128,
		.page_tokens = 64,
		.layer_stride = 1 << 20,
		.v_offset = 1 << 19,
	};
	scene->step = (struct fa_paged_step){
		.batch = batch,
		.cu_new = scene->cu_new,
		.lengths = scene->lengths,
		.lengths_before = scene->before,
		.first = scene->first,
		.table_start = scene->table_start,
		.table_entries = UINT32_MAX,
	};
	scene->request.op = FA_PAGED_ATTEND;
	scene->request.attention = (struct fa_paged_attention){
		.cache = &scene->cache,
		.step = &scene->step,
		.heads = 32,
		.scale = 1,
		.causal = true,
		.window_left = -1,
		.window_right = -1,
	};
}

static void scene_plan(struct scene *scene, const struct fa_cuda_chip *chip,
                       struct fa_cuda_paged_plan *plan)
{
	char text[256] = "";

	for (int32_t b = 0; b < scene->step.batch; b++)
		scene->before[b] = scene->lengths[b];
	assert_int_equal(fa_paged_check(&scene->request, text, sizeof(text)), 0);
	scene->blob_bytes = fa_cuda_paged_blob_bytes(&scene->request);
	scene->blob = malloc(scene->blob_bytes + 64);
	memset(scene->blob, 0x5a, scene->blob_bytes + 64);
	assert_int_equal(
		fa_cuda_paged_plan(chip, &scene->request, scene->blob, text, sizeof(text), plan),
		0);
	assert_true(plan->blob_bytes <= scene->blob_bytes);
	for (int i = 0; i < 64; i++)
		assert_int_equal(scene->blob[scene->blob_bytes + (size_t)i], 0x5a);
}

/* Counts for each tile of each part how many blocks compute it. */
static void check_decode(const struct scene *scene, const struct fa_cuda_paged_plan *plan)
{
	const struct fa_cuda_paged_item *items = (const void *)(scene->blob +
	                                                        plan->decode_items_at);
	const uint32_t *block_items = (const void *)(scene->blob + plan->block_items_at);
	uint64_t total = 0, covered = 0;

	for (uint32_t i = 0; i < plan->decode_items; i++) {
		assert_int_equal(items[i].tile, total);
		assert_true(items[i].tiles >= 1 && items[i].parts >= 1);
		total += (uint64_t)items[i].tiles * items[i].parts;
	}
	for (uint32_t block = 0; block < plan->decode_grid; block++) {
		const uint32_t extra = block < plan->tiles_extra ? block : plan->tiles_extra;
		uint64_t at = (uint64_t)block * plan->tiles_each + extra;
		uint32_t left = plan->tiles_each + (block < plan->tiles_extra);
		uint32_t index = block_items[block], part, tile;

		assert_int_equal(at, covered);
		assert_true(left >= 1);
		assert_true(at >= items[index].tile);
		part = (uint32_t)(at - items[index].tile) / items[index].tiles;
		tile = (uint32_t)(at - items[index].tile) % items[index].tiles;
		while (left > 0) {
			const uint32_t there = items[index].tiles - tile;
			const uint32_t n = there < left ? there : left;

			assert_true(part < items[index].parts);
			left -= n;
			covered += n;
			tile = 0;
			if (left > 0 && ++part == items[index].parts) {
				part = 0;
				index++;
				assert_true(index < plan->decode_items);
			}
		}
	}
	assert_int_equal(covered, total);
}

static void check_forward(const struct scene *scene, const struct fa_cuda_paged_plan *plan)
{
	const struct fa_cuda_paged_item *items = (const void *)(scene->blob +
	                                                        plan->forward_items_at);
	const struct fa_cuda_paged_block *blocks = (const void *)(scene->blob +
	                                                          plan->forward_blocks_at);
	uint32_t rows = 0, seen_before = UINT32_MAX;

	for (uint32_t i = 0; i < plan->forward_blocks; i++) {
		const struct fa_cuda_paged_item *item = &items[blocks[i].item];
		uint32_t last, seen;

		assert_true(blocks[i].item < plan->forward_items);
		assert_true(blocks[i].row < item->n_q);
		assert_int_equal(blocks[i].row % (uint32_t)plan->forward->rows, 0);
		for (uint32_t j = 0; j < i; j++)
			assert_false(blocks[i].item == blocks[j].item &&
			             blocks[i].row == blocks[j].row);
		last = blocks[i].row + (uint32_t)plan->forward->rows;
		last = last < item->n_q ? last : item->n_q;
		rows += last - blocks[i].row;
		seen = last + item->n_k - item->n_q;
		if (scene->request.attention.window_left < 0) {
			assert_true(seen <= seen_before);
			seen_before = seen;
		}
	}
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
		scene_plan(&scene, i % 2 ? &h200 : &rtx, &plan);
		assert_int_equal(plan.decode_items, decoding);
		assert_true(plan.decode_grid <= 132);
		check_decode(&scene, &plan);
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
	assert_string_equal(plan.decode->symbol, "fa_sm80_paged_decode_bf16_d128_v128_a1_w8");
	assert_null(plan.forward);
	free(scene.blob);
}

static void test_kernels(void **state)
{
	static const struct {
		uint32_t n_new;
		int32_t heads, dim;
		const struct fa_cuda_chip *chip;
		const char *symbol;
	} cases[] = {
		{ 1, 8, 64, &h200, "fa_sm80_paged_decode_bf16_d64_v64_a1_w8" },
		{ 1, 8, 64, &rtx, "fa_sm80_paged_decode_bf16_d64_v64_a1_w4" },
		{ 4, 64, 128, &h200, "fa_sm80_paged_decode_bf16_d128_v128_a2_w8" },
		{ 4, 64, 128, &rtx, "fa_sm80_paged_decode_bf16_d128_v128_a2_w4" },
		{ 4, 64, 192, &h200, "fa_sm80_paged_decode_bf16_d256_v256_a1_w4" },
		{ 4, 64, 256, &rtx, "fa_sm80_paged_decode_bf16_d256_v256_a1_w2" },
		{ 1, 40, 96, &h200, "fa_sm80_paged_decode_bf16_d128_v128_a1_w8" },
		{ 500, 32, 128, &h200, "fa_sm80_paged_forward_bf16_d128_v128_band" },
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
	}
}

static void test_forward_kind(void **state)
{
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	struct fa_cuda_paged_plan plan;
	struct scene scene;
	uint32_t tree_start = 0;

	scene_init(&scene, 2);
	scene.cu_new[1] = 1;
	scene.cu_new[2] = 101;
	scene.lengths[0] = scene.lengths[1] = 300;
	scene_plan(&scene, &h200, &plan);
	assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 4096, 1 << 20, 7, launches),
	                 2);
	assert_string_equal(launches[0].kernel->symbol,
	                    "fa_sm80_paged_forward_bf16_d128_v128_band");
	assert_int_equal(launches[0].grid_x, 32);
	assert_int_equal(launches[1].args.attention.epoch, 7);
	free(scene.blob);

	scene.request.attention.softcap = 3;
	scene_plan(&scene, &h200, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm80_paged_forward_bf16_d128_v128_rich");
	free(scene.blob);

	/* Rows too far from each other for offsets in 32 bits, and backwards. */
	scene.request.attention.softcap = 0;
	for (int i = 0; i < 3; i++) {
		static const int64_t strides[] = { (1 << 21) - 8, 1 << 21, -4096 };

		scene.request.attention.q.data = (void *)4096;
		scene.request.attention.q.stride_token = strides[i];
		scene_plan(&scene, &h200, &plan);
		assert_int_equal(
			fa_cuda_paged_launches(&plan, &scene.request, 4096, 1 << 20, 7, launches),
			2);
		assert_string_equal(plan.forward->symbol,
		                    i == 0 ? "fa_sm80_paged_forward_bf16_d128_v128_band"
		                           : "fa_sm80_paged_forward_bf16_d128_v128_rich");
		free(scene.blob);
	}
	scene.request.attention.q = (struct fa_attention_tensor){ 0 };

	/* V's rows unlike K's. */
	scene.cache.head_dim_v = 64;
	scene_plan(&scene, &h200, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm80_paged_forward_bf16_d128_v128_rich");
	free(scene.blob);
	scene.cache.v_offset = 0;
	scene_plan(&scene, &h200, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm80_paged_forward_bf16_d128_v128_band");
	free(scene.blob);

	/* Trees and fp32 decode, however many rows they have. */
	scene.request.attention.tree = &tree_start;
	scene.tree_start[0] = FA_PAGED_NO_TREE;
	scene.request.attention.tree_start = scene.tree_start;
	scene_plan(&scene, &h200, &plan);
	assert_null(plan.forward);
	assert_int_equal(plan.decode_items, 2);
	check_decode(&scene, &plan);
	free(scene.blob);
	scene.request.attention.tree = NULL;
	scene.cache.dtype = FA_ATTENTION_F32;
	scene_plan(&scene, &h200, &plan);
	assert_null(plan.forward);
	free(scene.blob);
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

static void test_table(void **state)
{
	bool images[FA_CUDA_PAGED_IMAGES] = { false };

	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++) {
		const struct fa_cuda_paged_kernel *kernel = &fa_cuda_paged_kernels[i];

		assert_in_range(kernel->image, 0, FA_CUDA_PAGED_IMAGES - 1);
		images[kernel->image] = true;
		assert_true(kernel->shared_bytes <= h200.shared_bytes_max);
		assert_true(kernel->threads % 32 == 0 && kernel->threads > 0);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(kernel->symbol, fa_cuda_paged_kernels[j].symbol);
	}
	for (int i = 0; i < FA_CUDA_PAGED_IMAGES; i++)
		assert_true(images[i]);
}

/* The kernels divide by multiplying. */
static void test_magic(void **state)
{
	for (int32_t page = 16; page <= 256; page += 16) {
		struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
		const struct fa_cuda_pages *pages = &launches[0].args.attention.pages;
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		scene_init(&scene, 1);
		scene.cache.page_tokens = page;
		scene.cu_new[1] = 1;
		scene.lengths[0] = 1;
		scene_plan(&scene, &h200, &plan);
		fa_cuda_paged_launches(&plan, &scene.request, 0, 0, 1, launches);
		assert_int_equal(pages->page_strips, page / 16);
		for (int i = 0; i < 20000; i++) {
			uint32_t strip = i < 5000 ? (uint32_t)i : below(FA_PAGED_LENGTH_MAX / 16);

			assert_int_equal(strip * pages->page_magic >> 32,
			                 strip / pages->page_strips);
		}
		free(scene.blob);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),  cmocka_unit_test(test_even),
		cmocka_unit_test(test_kernels), cmocka_unit_test(test_forward_kind),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_table),
		cmocka_unit_test(test_magic),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
