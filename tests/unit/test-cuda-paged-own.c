/*
 * Tests plans of attention over a client's own pages, without a GPU: which kernels run, that grids
 * come from bounds, and what is refused.
 */
#include "kernels/cuda/paged-plan.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct fa_cuda_chip h200 = {
	.arch = 90, .shared_bytes_max = 232448, .l2_bytes = 50 << 20, .sms = 132
};
static const struct fa_cuda_chip a10 = {
	.arch = 86, .shared_bytes_max = 101376, .l2_bytes = 6 << 20, .sms = 72
};

struct scene {
	struct fa_paged_own pages;
	struct fa_paged_request request;
	struct fa_cuda_paged_plan plan;
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	char text[256];
};

static struct fa_attention_tensor rows_of(uint64_t at, int32_t heads)
{
	return (struct fa_attention_tensor){ (void *)(uintptr_t)at, 0, heads * 128, 128 };
}

/* A decode of @batch sequences over NHD pages of bf16. */
static void scene_init(struct scene *scene, int32_t batch, int32_t page_tokens)
{
	const int64_t page = (int64_t)page_tokens * 8 * 128;

	memset(scene, 0, sizeof(*scene));
	scene->pages = (struct fa_paged_own){
		.dtype = FA_ATTENTION_BF16,
		.kv_heads = 8,
		.head_dim = 128,
		.head_dim_v = 128,
		.page_tokens = page_tokens,
		.pages = 1000,
		.k = { (void *)(uintptr_t)(1 << 20), page, 8 * 128, 128 },
		.v = { (void *)(uintptr_t)(1 << 30), page, 8 * 128, 128 },
	};
	scene->request.op = FA_PAGED_ATTEND_OWN;
	scene->request.own_attention = (struct fa_paged_own_attention){
		.pages = &scene->pages,
		.batch = batch,
		.heads = 32,
		.table = (void *)(uintptr_t)4096,
		.table_columns = 1 << 14,
		.table_stride = 1 << 14,
		.lengths = (void *)(uintptr_t)8192,
		.max_q = 1,
		.total_q = batch,
		.max_k = 4096,
		.q = rows_of(1 << 16, 32),
		.out = rows_of(1 << 17, 32),
		.scale = 0.1f,
		.causal = true,
		.window_left = -1,
		.window_right = -1,
	};
}

static int plan(struct scene *scene, const struct fa_cuda_chip *chip)
{
	assert_int_equal(fa_paged_check(&scene->request, scene->text, sizeof(scene->text)), 0);
	return fa_cuda_paged_plan(chip, &scene->request, NULL, scene->text, sizeof(scene->text),
	                          &scene->plan);
}

/* Plans, and returns the number of launches. */
static int launches(struct scene *scene, const struct fa_cuda_chip *chip)
{
	assert_int_equal(plan(scene, chip), 0);
	assert_int_equal(fa_cuda_paged_blob_bytes(&scene->request), 0);
	return fa_cuda_paged_launches(&scene->plan, &scene->request, 0, 1 << 20, 1,
	                              scene->launches);
}

static bool is(const struct fa_cuda_paged_launch *launch, const char *symbol)
{
	return !strncmp(launch->kernel->symbol, symbol, strlen(symbol));
}

static void test_decode(void **state)
{
	struct scene scene;

	/* NHD: boxes of 16 rows; few sequences need no launch that plans. */
	scene_init(&scene, 128, 16);
	assert_int_equal(launches(&scene, &h200), 1);
	assert_true(is(&scene.launches[0], "fa_sm90_own_decode_bf16_d128_a1"));
	assert_int_equal(scene.launches[0].n_maps, FA_CUDA_MAPS);
	assert_true(scene.launches[0].args.own.own.in_boxes);
	assert_null(scene.launches[0].args.own.own.ranges);
	assert_int_equal(scene.launches[0].maps[FA_CUDA_MAP_K].box[0], 128);
	assert_int_equal(scene.launches[0].maps[FA_CUDA_MAP_V].box[1], 16);
	assert_int_equal(scene.launches[0].maps[FA_CUDA_MAP_K].strides[0], 8 * 128 * 2);
	assert_int_equal(scene.launches[0].maps[FA_CUDA_MAP_K].dims[3], 1000);

	scene_init(&scene, 129, 16);
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[0], "fa_sm80_own_plan"));
	assert_non_null(scene.launches[1].args.own.own.ranges);

	/* HND: as in the pool. */
	scene_init(&scene, 1, 64);
	scene.pages.k.stride_token = scene.pages.v.stride_token = 128;
	scene.pages.k.stride_head = scene.pages.v.stride_head = 64 * 128;
	assert_int_equal(launches(&scene, &h200), 1);
	assert_true(scene.launches[0].args.own.own.in_strips);
	assert_int_equal(scene.launches[0].n_maps, 0);

	/* Rows that no strip has, and rows that are not aligned. */
	scene_init(&scene, 1, 17);
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[1], "fa_sm80_own_decode_bf16_d128"));
	assert_true(scene.launches[1].args.own.own.aligned);
	scene.pages.k.data = (void *)(uintptr_t)((1 << 20) + 2);
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[1], "fa_sm80_own_decode_bf16_d128"));
	assert_false(scene.launches[1].args.own.own.aligned);

	scene_init(&scene, 1, 16);
	assert_int_equal(launches(&scene, &a10), 2);
	assert_true(is(&scene.launches[1], "fa_sm80_own_decode_bf16_d128"));
}

static void test_prefill(void **state)
{
	struct scene scene;

	/* Few blocks of rows plan for themselves. */
	scene_init(&scene, 4, 16);
	scene.request.own_attention.max_q = 8192;
	scene.request.own_attention.cu_q = (void *)(uintptr_t)4096;
	scene.request.own_attention.total_q = 7995;
	scene.request.own_attention.max_k = 8192;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[0], "fa_sm90_own_decode_bf16_d128"));
	assert_int_equal(scene.launches[0].args.own.own.plan.forward_from, 48);
	assert_true(is(&scene.launches[1], "fa_sm90_own_prefill_bf16_d128_v128_band"));
	assert_null(scene.launches[1].args.own.own.ranges);
	assert_int_equal(scene.launches[1].maps[FA_CUDA_MAP_K].box[1], 16);
	assert_int_equal(scene.launches[1].args.own.own.plan.forward_from, 48);
	assert_int_equal(scene.launches[1].args.own.own.plan.forward_blocks_max, 7995 / 128 + 4);
	/* Without cu_q all sequences have many rows. */
	scene.request.own_attention.cu_q = NULL;
	scene.request.own_attention.max_q = 2000;
	scene.request.own_attention.total_q = 8000;
	assert_int_equal(launches(&scene, &h200), 1);
	assert_true(is(&scene.launches[0], "fa_sm90_own_prefill_bf16_d128_v128_band"));
	assert_int_equal(scene.launches[0].args.own.own.plan.forward_blocks_max, 4 * 16);

	scene.request.own_attention.max_q = 8192;
	scene.request.own_attention.cu_q = (void *)(uintptr_t)4096;
	scene.request.own_attention.total_q = 20000;
	assert_int_equal(launches(&scene, &h200), 3);
	assert_true(is(&scene.launches[0], "fa_sm80_own_plan"));
	assert_int_equal(scene.launches[0].args.own_plan.forward_from, 48);
	assert_non_null(scene.launches[1].args.own.own.ranges);
	assert_true(is(&scene.launches[2], "fa_sm90_own_prefill_bf16_d128_v128_band"));
	assert_non_null(scene.launches[2].args.own.own.ranges);
	scene.request.own_attention.softcap = 30;
	assert_int_equal(launches(&scene, &h200), 3);
	assert_true(is(&scene.launches[2], "fa_sm90_own_prefill_bf16_d128_v128_rich"));
	scene.pages.page_tokens = 24;
	assert_int_equal(launches(&scene, &h200), 3);
	assert_true(is(&scene.launches[2], "fa_sm80_own_forward_bf16_d128"));
	/* Sequences over codes decode, however many rows there are. */
	scene_init(&scene, 4, 16);
	scene.pages.store = FA_PAGED_E4M3;
	scene.request.own_attention.max_q = 2048;
	scene.request.own_attention.total_q = 4 * 2048;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[1], "fa_sm90_own_decode_e4m3_d128_a2"));
}

/* Few new tokens on many keys: rows of several heads in a block, and keys divided over blocks. */
static void test_extends(void **state)
{
	const struct fa_cuda_paged_attention *args;
	struct scene scene;

	scene_init(&scene, 1, 16);
	scene.request.own_attention.max_q = 64;
	scene.request.own_attention.total_q = 64;
	scene.request.own_attention.max_k = 32768;
	assert_int_equal(launches(&scene, &h200), 1);
	assert_true(is(&scene.launches[0], "fa_sm90_own_prefill_bf16_d128_v128_packed"));
	args = &scene.launches[0].args.attention;
	assert_int_equal(scene.launches[0].grid_x, 128);
	assert_int_equal(args->n_units, 128);
	assert_int_equal(scene.launches[0].args.own.own.units, 16);
	assert_int_equal(scene.launches[0].args.own.own.plan.forward_from, 1);
	assert_int_equal((64 >> args->pack_shift) * args->pack_sets, 4);
	assert_int_equal(scene.launches[0].maps[FA_CUDA_MAP_Q].box[1], 1 << args->pack_shift);
	assert_int_equal(scene.launches[0].maps[FA_CUDA_MAP_Q].box[2], 64 >> args->pack_shift);
	assert_true(args->join_wait_ns > 0);
	/* The places of partial results of all units are in the workspace. */
	assert_true((uint64_t)(uintptr_t)args->unit_partials +
	                    128 * (uint64_t)scene.launches[0].kernel->state_bytes <=
	            (1 << 20) + scene.plan.workspace_bytes);

	/* Garbage lengths within bounds. */
	scene.request.own_attention.max_k = FA_PAGED_LENGTH_MAX;
	assert_int_equal(launches(&scene, &h200), 1);
	assert_int_equal(scene.launches[0].grid_x, 128);

	/* One of many sequences has many rows: the others decode. */
	scene_init(&scene, 100, 16);
	scene.request.own_attention.cu_q = (void *)(uintptr_t)4096;
	scene.request.own_attention.max_q = 64;
	scene.request.own_attention.total_q = 64 + 99;
	scene.request.own_attention.max_k = 32768;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[0], "fa_sm90_own_decode_bf16_d128"));
	assert_null(scene.launches[0].args.own.own.ranges);
	assert_int_equal(scene.launches[0].args.own.own.plan.forward_from, 48);
	assert_true(is(&scene.launches[1], "fa_sm90_own_prefill_bf16_d128_v128_packed"));
	assert_int_equal(scene.launches[1].args.own.own.plan.forward_from, 48);

	/* Rows are not packed if results must not depend on other sequences, for few rows, or
	 * without TMA. */
	scene.request.own_attention.deterministic = true;
	assert_int_equal(launches(&scene, &h200), 3);
	assert_true(is(&scene.launches[2], "fa_sm90_own_prefill_bf16_d128_v128_band"));
	scene_init(&scene, 1, 16);
	scene.request.own_attention.max_q = 4;
	scene.request.own_attention.total_q = 4;
	assert_int_equal(launches(&scene, &h200), 1);
	assert_true(is(&scene.launches[0], "fa_sm90_own_decode_bf16_d128"));
	scene.request.own_attention.max_q = 64;
	scene.request.own_attention.total_q = 64;
	scene.pages.page_tokens = 8;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[1], "fa_sm80_own_decode_bf16_d128"));
	scene.request.own_attention.max_q = 1024;
	scene.request.own_attention.total_q = 1024;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[1], "fa_sm80_own_forward_bf16_d128"));
}

/* MLA in plain form. */
static void test_plain_mla(void **state)
{
	struct fa_paged_own_attention *p;
	struct scene scene;

	scene_init(&scene, 4, 64);
	p = &scene.request.own_attention;
	scene.pages.kv_heads = p->heads = 16;
	scene.pages.head_dim = 192;
	scene.pages.k = (struct fa_attention_tensor){ (void *)(uintptr_t)(1 << 20), 64 * 16 * 192,
		                                      16 * 192, 192 };
	scene.pages.v.stride_batch = 64 * 16 * 128;
	scene.pages.v.stride_token = 16 * 128;
	p->q.stride_token = 16 * 192;
	p->q.stride_head = 192;
	p->out.stride_token = 16 * 128;
	p->max_q = 2000;
	p->total_q = 8000;
	p->max_k = 8192;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[0], "fa_sm80_own_plan"));
	assert_true(is(&scene.launches[1], "fa_sm90_own_prefill_bf16_d192_v128_band"));
	assert_int_equal(scene.launches[1].maps[FA_CUDA_MAP_K].dims[0], 192);
	assert_int_equal(scene.launches[1].maps[FA_CUDA_MAP_V].dims[0], 128);
	p->batch = 1;
	p->max_q = 64;
	p->total_q = 64;
	p->max_k = 32768;
	assert_int_equal(launches(&scene, &h200), 1);
	assert_true(is(&scene.launches[0], "fa_sm90_own_prefill_bf16_d192_v128_packed"));
	p->deterministic = true;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[1], "fa_sm90_own_prefill_bf16_d192_v128_band"));
}

/* Grids and the workspace do not grow with bounds that are far above what there is. */
static void test_bounds(void **state)
{
	struct scene scene;
	size_t bytes;

	scene_init(&scene, 8, 16);
	assert_int_equal(launches(&scene, &h200), 1);
	bytes = scene.plan.workspace_bytes;
	assert_int_equal(scene.launches[0].grid_x, 132);
	scene.request.own_attention.max_k = FA_PAGED_LENGTH_MAX;
	scene.request.own_attention.table_columns = 1 << 24;
	assert_int_equal(launches(&scene, &h200), 1);
	assert_int_equal(scene.launches[0].grid_x, 132);
	assert_int_equal(scene.plan.workspace_bytes, bytes);
	/* A table bounds lengths, too; one tile of each head is all there may be. */
	scene.request.own_attention.batch = 1;
	scene.request.own_attention.total_q = 1;
	scene.request.own_attention.table_columns = 2;
	assert_int_equal(launches(&scene, &h200), 1);
	assert_int_equal(scene.launches[0].grid_x, 8);
	assert_int_equal(scene.launches[0].args.own.own.plan.max_k, 32);

	scene.request.own_attention.max_q = 0;
	scene.request.own_attention.total_q = 0;
	assert_int_equal(launches(&scene, &h200), 0);
}

/* Chunks and prefixes divide sequences, which a launch does unless each has one row. */
static void test_parts(void **state)
{
	struct fa_paged_own_attention *p;
	struct scene scene;

	scene_init(&scene, 128, 16);
	p = &scene.request.own_attention;
	p->chunk_tokens = 1024;
	p->prefix_lengths = (void *)(uintptr_t)4096;
	assert_int_equal(launches(&scene, &h200), 1);
	assert_true(is(&scene.launches[0], "fa_sm90_own_decode_bf16_d128_a1"));
	assert_null(scene.launches[0].args.own.own.ranges);
	assert_int_equal(scene.launches[0].args.own.own.plan.chunk, 1024);
	assert_int_equal(scene.launches[0].args.own.own.plan.items_max, 128);
	/* One row sees its whole sequence. */
	assert_null(scene.launches[0].args.own.own.plan.prefixes);

	/* Up to 4 rows: in two chunks, or before the first key, or before and behind a prefix's
	 * end. */
	p->max_q = 4;
	p->total_q = 400;
	p->cu_q = (void *)(uintptr_t)4096;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[0], "fa_sm80_own_plan"));
	assert_ptr_equal(scene.launches[0].args.own_plan.prefixes, p->prefix_lengths);
	assert_int_equal(scene.launches[0].args.own_plan.items_max, 400);
	assert_int_equal(scene.launches[1].args.own.attention.attention.n_items, 400);
	assert_non_null(scene.launches[1].args.own.own.ranges);

	/* Of many rows those of a prefix are apart. */
	scene_init(&scene, 2, 16);
	p = &scene.request.own_attention;
	p->max_q = 3000;
	p->total_q = 6000;
	p->prefix_lengths = (void *)(uintptr_t)4096;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[0], "fa_sm80_own_plan"));
	assert_int_equal(scene.launches[0].args.own_plan.items_max, 4);
	assert_int_equal(scene.launches[0].args.own_plan.forward_blocks_max, 6000 / 128 + 4);
	assert_true(is(&scene.launches[1], "fa_sm90_own_prefill_bf16_d128_v128_band"));
	p->chunk_tokens = 1000;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_int_equal(scene.launches[0].args.own_plan.items_max, 2 * (2999 / 1000 + 4));
	assert_int_equal(launches(&scene, &a10), 2);
	assert_true(is(&scene.launches[1], "fa_sm80_own_forward_bf16_d128"));
	/* With a window, decode computes prefixes. */
	p->window_left = 100;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[1], "fa_sm90_own_decode_bf16_d128"));
	/* Without causal they have no effect. */
	p->causal = false;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[1], "fa_sm90_own_prefill_bf16_d128_v128_band"));
	assert_null(scene.launches[0].args.own_plan.prefixes);

	p->chunk_tokens = 1;
	p->max_q = 20000;
	p->total_q = 40000;
	assert_int_equal(plan(&scene, &h200), -ENOTSUP);
	assert_non_null(strstr(scene.text, "chunk_tokens 1 divides 40000 rows into more than "
	                                   "16384 parts"));
}

/* Patterns are decoded by portable kernels, rows of a few tokens at a time. */
static void test_patterns(void **state)
{
	const struct fa_cuda_own *own;
	struct fa_paged_own_attention *p;
	struct scene scene;

	scene_init(&scene, 100, 16);
	p = &scene.request.own_attention;
	p->pattern = (struct fa_attention_pattern){ 64, 16, 8, -1, 5 };
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[0], "fa_sm80_own_plan"));
	assert_int_equal(scene.launches[0].args.own_plan.pattern_stride, 8);
	assert_int_equal(scene.launches[0].args.own_plan.pattern_step, -1);
	assert_int_equal(scene.launches[0].args.own_plan.pattern_first, 5);
	assert_int_equal(scene.launches[0].args.own_plan.heads, 32);
	assert_int_equal(scene.launches[0].args.own_plan.items_max, 100);
	assert_true(is(&scene.launches[1], "fa_sm80_own_decode_bf16_d128"));
	own = &scene.launches[1].args.own.own;
	assert_int_equal(own->pattern_strips, 4);
	assert_int_equal(own->pattern_tokens, 64);
	assert_int_equal(own->pattern_local, 16);
	assert_ptr_equal(own->columns, scene.launches[0].args.own_plan.columns);
	assert_true((uint64_t)(uintptr_t)(own->columns + 32) <=
	            (1 << 20) + scene.plan.workspace_bytes);

	/* Numbers far above any position. */
	p->pattern = (struct fa_attention_pattern){ INT32_MAX / 16 * 16, INT32_MAX, 1, 0, 0 };
	assert_int_equal(launches(&scene, &h200), 2);
	assert_int_equal(own->pattern_tokens, 1 << 30);
	assert_int_equal(own->pattern_local, 1);
	p->pattern = (struct fa_attention_pattern){ 16, INT32_MAX, 1, 0, 0 };
	assert_int_equal(launches(&scene, &h200), 2);
	assert_int_equal(own->pattern_local, 1 << 26);

	/* A kernel for codes has no registers for patterns. */
	scene_init(&scene, 1, 16);
	scene.pages.store = FA_PAGED_E4M3;
	scene.pages.head_dim = scene.pages.head_dim_v = 160;
	assert_int_equal(launches(&scene, &a10), 2);
	assert_true(is(&scene.launches[1], "fa_sm80_own_decode_e4m3_d256"));
	scene.request.own_attention.pattern = (struct fa_attention_pattern){ 64, 16, 8, 1, 0 };
	assert_int_equal(launches(&scene, &a10), 2);
	assert_true(is(&scene.launches[1], "fa_sm80_own_decode_e4m3_d640"));

	/* Of many rows groups of 4 query heads have 8 tokens each. */
	scene_init(&scene, 2, 16);
	p = &scene.request.own_attention;
	p->pattern = (struct fa_attention_pattern){ 64, 16, 8, 1, 0 };
	p->max_q = 3000;
	p->total_q = 6000;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_true(is(&scene.launches[1], "fa_sm80_own_decode_bf16_d128"));
	assert_int_equal(scene.launches[0].args.own_plan.part_tokens, 8);
	assert_int_equal(scene.launches[0].args.own_plan.items_max, 2 * (1 + 3000 / 8));
	/* Without causal rows see keys behind themselves. */
	p->causal = false;
	assert_int_equal(launches(&scene, &h200), 2);
	assert_int_equal(scene.launches[0].args.own_plan.part_tokens, 0);
	assert_int_equal(scene.launches[0].args.own_plan.items_max, 2);
}

static void test_refused(void **state)
{
	struct scene scene;

	scene_init(&scene, 2, 16);
	scene.request.own_attention.table_stride = (int64_t)1 << 32;
	assert_int_equal(plan(&scene, &h200), -ENOTSUP);
	assert_non_null(strstr(scene.text, "table_stride"));
	scene_init(&scene, 1 << 20, 16);
	scene.request.own_attention.table_stride = 16;
	scene.request.own_attention.table_columns = 16;
	scene.request.own_attention.max_k = 256;
	assert_int_equal(plan(&scene, &h200), 0);
	scene.request.own_attention.max_k = FA_PAGED_LENGTH_MAX;
	scene.request.own_attention.table_columns = INT32_MAX;
	scene.request.own_attention.table_stride = 0;
	assert_int_equal(plan(&scene, &h200), -ENOTSUP);
	assert_non_null(strstr(scene.text, "tiles"));
	scene_init(&scene, 1, 16);
	scene.pages.store = FA_PAGED_E4M3;
	scene.pages.head_dim = scene.pages.head_dim_v = 72;
	assert_int_equal(plan(&scene, &h200), -ENOTSUP);
	assert_non_null(strstr(scene.text, "multiples of 16"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode),  cmocka_unit_test(test_prefill),
		cmocka_unit_test(test_extends), cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_plain_mla),
		cmocka_unit_test(test_parts),   cmocka_unit_test(test_patterns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
