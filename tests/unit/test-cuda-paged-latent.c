/*
 * Tests without a GPU which steps are decoded by sm90's kernel for MLA, and how row blocks of a
 * sequence are divided over teams of thread blocks: each meets every tile of keys once.
 */
#include "kernels/cuda/common/packed-args.h"
#include "tests/unit/cuda-paged-scene.h"

static void latent_init(struct scene *scene, int32_t heads, int32_t batch, uint32_t n_new,
                        uint32_t length)
{
	scene_init(scene, batch);
	scene->cache.dtype = FA_ATTENTION_BF16;
	scene->cache.kv_heads = 1;
	scene->cache.head_dim = 576;
	scene->cache.head_dim_v = 512;
	scene->cache.v_offset = 0;
	scene->cache.page_tokens = 64;
	scene->request.attention.heads = heads;
	for (int32_t b = 0; b < batch; b++) {
		scene->cu_new[b + 1] = scene->cu_new[b] + n_new;
		scene->lengths[b] = length;
	}
}

static bool is_latent(struct scene *scene, const struct fa_cuda_chip *chip)
{
	struct fa_cuda_paged_plan plan;

	scene_plan(scene, chip, &plan);
	free(scene->blob);
	return plan.decode && plan.decode->kind == FA_CUDA_PAGED_LATENT;
}

static void test_choice(void **state)
{
	struct scene scene;
	float some[256] = { 0 };

	(void)state;
	latent_init(&scene, 128, 8, 1, 4096);
	assert_true(is_latent(&scene, &h200));
	assert_false(is_latent(&scene, &portable_h200));
	assert_false(is_latent(&scene, &newer));
	scene.request.attention.sinks = some;
	assert_true(is_latent(&scene, &h200));
	scene.request.attention.alibi_slopes = some;
	assert_false(is_latent(&scene, &h200));
	scene.request.attention.alibi_slopes = NULL;
	scene.request.attention.softcap = 30;
	assert_false(is_latent(&scene, &h200));
	scene.request.attention.softcap = 0;
	scene.request.attention.scale = -1;
	assert_false(is_latent(&scene, &h200));
	scene.request.attention.scale = 1;
	scene.request.attention.deterministic = true;
	assert_false(is_latent(&scene, &h200));
	scene.request.attention.deterministic = false;
	scene.cache.dtype = FA_ATTENTION_F32;
	assert_false(is_latent(&scene, &h200));
	scene.cache.dtype = FA_ATTENTION_F16;
	assert_true(is_latent(&scene, &h200));
	scene.cache.dtype = FA_ATTENTION_BF16;
	scene.cache.v_offset = 64 * 576 * 2;
	assert_false(is_latent(&scene, &h200));
	scene.cache.v_offset = 0;
	scene.cache.head_dim_v = 448;
	assert_false(is_latent(&scene, &h200));
}

/* Each kind of pages has its kernel; only that of codes does without a tensor map. */
static void test_stores(void **state)
{
	static const struct {
		enum fa_paged_store store;
		enum fa_attention_dtype dtype;
		const char *symbol; /* NULL: portable kernels */
	} cases[] = {
		{ FA_PAGED_PLAIN, FA_ATTENTION_BF16, "fa_sm90_paged_latent_bf16" },
		{ FA_PAGED_PLAIN, FA_ATTENTION_F16, "fa_sm90_paged_latent_f16" },
		{ FA_PAGED_E4M3, FA_ATTENTION_BF16, "fa_sm90_paged_latent_e4m3" },
		{ FA_PAGED_E4M3, FA_ATTENTION_F16, NULL },
		{ FA_PAGED_INT8, FA_ATTENTION_BF16, NULL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		latent_init(&scene, 16, 3, 1, 1000);
		scene.cache.store = cases[i].store;
		scene.cache.dtype = cases[i].dtype;
		scene_plan(&scene, &h200, &plan);
		if (cases[i].symbol) {
			assert_string_equal(plan.decode->symbol, cases[i].symbol);
			assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 4096,
			                                        1 << 20, 1, launches),
			                 1);
			assert_int_equal(launches[0].n_maps,
			                 cases[i].store == FA_PAGED_PLAIN ? FA_CUDA_MAPS : 0);
		} else {
			assert_int_not_equal(plan.decode->kind, FA_CUDA_PAGED_LATENT);
		}
		free(scene.blob);
	}
}

/* Codes have no prefill: all rows of a prompt decode, but not more than fp32 can number. */
static void test_prompts_of_codes(void **state)
{
	struct scene scene;

	(void)state;
	latent_init(&scene, 128, 2, 8192, 8192);
	scene.cache.store = FA_PAGED_E4M3;
	assert_true(is_latent(&scene, &h200));
	latent_init(&scene, 128, 2, 8193, 8193);
	scene.cache.store = FA_PAGED_E4M3;
	assert_false(is_latent(&scene, &h200));
	/* Sequences of plain pages that are prefilled do not count. */
	latent_init(&scene, 128, 2, 1, 20000);
	scene.cu_new[2] = 10001;
	assert_true(is_latent(&scene, &h200));
}

/* Walks all teams, as the kernel does. */
static void check_teams(struct scene *scene, const struct fa_cuda_paged_plan *plan)
{
	const uint32_t heads = (uint32_t)scene->request.attention.heads;
	const struct fa_cuda_paged_item *items = plan->decode_items <= FA_CUDA_PAGED_INLINE_ITEMS
	                                                 ? plan->first_items
	                                                 : (const void *)(scene->blob +
	                                                                  plan->decode_items_at);
	uint64_t tiles = 0;

	for (uint32_t i = 0; i < plan->decode_items; i++) {
		const uint32_t rows = items[i].n_q * heads;

		assert_int_equal(items[i].tile, tiles);
		assert_int_equal(items[i].parts, items[i].row_blocks);
		/* A team has a row block more than the rows need only if it is not full. */
		assert_true(items[i].parts * plan->team * 64 >= rows);
		assert_true((items[i].parts - 1) * plan->team * 64 < rows);
		/* Tiles without tokens are fewer than a range. */
		assert_true(items[i].tiles - plan->epilogue_tiles >= (items[i].n_k + 63) / 64);
		assert_true(items[i].tiles - plan->epilogue_tiles - (items[i].n_k + 63) / 64 <
		            plan->tiles_each);
		tiles += (uint64_t)items[i].parts * items[i].tiles;
	}
	assert_int_equal(tiles, (uint64_t)plan->tiles_each * plan->decode_grid + plan->tiles_extra);
}

static void test_teams(void **state)
{
	static const struct {
		int32_t heads;
		uint32_t n_new, team;
	} cases[] = { { 16, 1, 1 },  { 64, 1, 1 },   { 128, 1, 2 }, { 128, 2, 4 },
		      { 64, 2, 2 },  { 16, 2, 1 },   { 24, 8, 3 },  { 128, 4, 4 },
		      { 100, 1, 2 }, { 128, 40, 4 }, { 1, 1, 1 } };

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (int32_t batch = 1; batch < 300; batch += 1 + batch * 3) {
			struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
			struct fa_cuda_paged_plan plan;
			struct scene scene;

			latent_init(&scene, cases[i].heads, batch, cases[i].n_new,
			            100 + 577 * (uint32_t)i);
			scene_plan(&scene, &h200, &plan);
			assert_int_equal(plan.decode->kind, FA_CUDA_PAGED_LATENT);
			assert_int_equal(plan.team, cases[i].team);
			check_teams(&scene, &plan);
			assert_int_equal(fa_cuda_paged_launches(&plan, &scene.request, 4096,
			                                        1 << 20, 1, launches),
			                 1);
			assert_int_equal(launches[0].grid_x, plan.decode_grid * plan.team);
			assert_true(launches[0].grid_x <= 132);
			assert_int_equal(launches[0].args.attention.loaders, plan.team);
			assert_true(launches[0].args.attention.join_wait_ns > 0);
			/* The kernel's second half of the blocks' counters. */
			assert_true(launches[0].grid_x <= FA_CUDA_PAGED_BLOCKS / 2);
			assert_true(plan.workspace_bytes >=
			            FA_CUDA_PAGED_COUNTERS_BYTES +
			                    (size_t)2 * launches[0].grid_x * 64 * 514 * 4);
			free(scene.blob);
		}
}

/* Ranges of tiles end where sequences do, if that takes less time. */
static void test_ranges(void **state)
{
	static const struct {
		int32_t heads, batch;
		uint32_t n_new, length, grid, each;
	} cases[] = {
		{ 128, 32, 1, 4096, 64, 32 },   { 128, 32, 1, 4097, 64, 33 },
		{ 128, 32, 2, 4096, 32, 64 },   { 128, 8, 1, 4096, 64, 8 },
		{ 128, 128, 1, 4096, 64, 128 }, { 64, 128, 1, 4096, 128, 64 },
		{ 16, 1, 1, 4096, 32, 2 },      { 16, 1, 1, 64, 1, 2 },
		{ 16, 300, 1, 64, 100, 3 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		latent_init(&scene, cases[i].heads, cases[i].batch, cases[i].n_new,
		            cases[i].length);
		scene_plan(&scene, &h200, &plan);
		check_teams(&scene, &plan);
		assert_int_equal(plan.decode_grid, cases[i].grid);
		assert_int_equal(plan.tiles_each, cases[i].each);
		assert_int_equal(plan.tiles_extra, 0);
		free(scene.blob);
	}
	/* No part has more results than the kernel can count. */
	{
		struct fa_cuda_chip large = h200;
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		large.sms = 400;
		latent_init(&scene, 16, 1, 1, 200000);
		scene_plan(&scene, &large, &plan);
		check_teams(&scene, &plan);
		assert_true(plan.decode_grid <= FA_CUDA_SHARE_PARTS_MAX);
		free(scene.blob);
	}
	/* All blocks get a part of one long sequence among short ones. */
	{
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		latent_init(&scene, 16, 40, 1, 700);
		scene.lengths[7] = 60000;
		scene_plan(&scene, &h200, &plan);
		check_teams(&scene, &plan);
		assert_true(plan.decode_grid > 120);
		assert_true(plan.tiles_each < 15);
		free(scene.blob);
	}
}

/* A box of keys lies in one page. */
static void test_boxes(void **state)
{
	static const struct {
		int32_t page;
		uint32_t first, box;
	} cases[] = { { 64, 0, 64 },   { 16, 0, 16 },  { 48, 0, 16 },   { 32, 0, 32 },
		      { 128, 64, 64 }, { 64, 63, 16 }, { 256, 96, 32 }, { 64, 130, 64 } };

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		latent_init(&scene, 16, 3, 1, 1000);
		scene.cache.page_tokens = cases[i].page;
		scene.first[1] = cases[i].first;
		scene_plan(&scene, &h200, &plan);
		fa_cuda_paged_launches(&plan, &scene.request, 4096, 1 << 20, 1, launches);
		assert_int_equal(launches[0].args.attention.box_keys, cases[i].box);
		assert_int_equal(launches[0].maps[FA_CUDA_MAP_K].box[1], cases[i].box);
		assert_int_equal(launches[0].maps[FA_CUDA_MAP_K].dims[0], 576);
		assert_int_equal(launches[0].maps[FA_CUDA_MAP_K].strides[0], 1152);
		free(scene.blob);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_choice),           cmocka_unit_test(test_stores),
		cmocka_unit_test(test_prompts_of_codes), cmocka_unit_test(test_teams),
		cmocka_unit_test(test_ranges),           cmocka_unit_test(test_boxes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
