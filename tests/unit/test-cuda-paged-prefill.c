/*
 * Tests without a GPU which TMA kernel computes a step's sequences of many rows, and in which order
 * their row blocks are launched.
 */
#include "tests/unit/cuda-paged-scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Short sequences have their own kernel, except in deterministic steps. */
static void test_short(void **state)
{
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	for (int i = 0; i < 3; i++) {
		scene_init(&scene, 2);
		scene.cache.head_dim = scene.cache.head_dim_v = 64;
		for (int32_t b = 0; b < 2; b++) {
			scene.cu_new[b + 1] = scene.cu_new[b] + 100;
			scene.lengths[b] = b && i == 1 ? 3073 : 3072;
		}
		scene.request.attention.deterministic = i == 2;
		scene_plan(&scene, &unpacked_h200, &plan);
		assert_string_equal(plan.forward->symbol,
		                    i == 0 ? "fa_sm90_paged_prefill_bf16_d64_v64_band_short"
		                           : "fa_sm90_paged_prefill_bf16_d64_v64_band");
		free(scene.blob);
	}
}

/* The TMA kernels compute the row blocks of one sequence together, sequence after sequence,
 * unless that would make pairs of long blocks. */
static void test_pairs(void **state)
{
	/* blocks: the sequence and the number of each row block, in launch order. */
	static const struct {
		int32_t batch;
		uint32_t n_new[3], before[3];
		const char *blocks;
	} cases[] = {
		{ 3, { 512, 512, 512 }, { 0 }, "03 02 13 12 23 22 21 20 11 10 01 00" },
		/* The middle blocks of two sequences form a pair; a block without a partner is
		 * in the middle. */
		{ 3, { 300, 640, 128 }, { 0 }, "14 13 12 02 01 00 20 11 10" },
		/* Two long row blocks do not go to the same thread block. */
		{ 2, { 256, 256 }, { 8192, 0 }, "01 00 11 10" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct fa_cuda_paged_block *blocks;
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		scene_init(&scene, cases[i].batch);
		for (int32_t b = 0; b < cases[i].batch; b++) {
			scene.cu_new[b + 1] = scene.cu_new[b] + cases[i].n_new[b];
			scene.lengths[b] = cases[i].before[b] + cases[i].n_new[b];
		}
		scene_plan(&scene, &unpacked_h200, &plan);
		assert_string_equal(plan.forward->symbol,
		                    "fa_sm90_paged_prefill_bf16_d128_v128_band");
		assert_int_equal(3 * plan.forward_blocks, strlen(cases[i].blocks) + 1);
		blocks = (const void *)(scene.blob + plan.forward_blocks_at);
		for (uint32_t j = 0; j < plan.forward_blocks; j++) {
			assert_int_equal(blocks[j].item, cases[i].blocks[3 * j] - '0');
			assert_int_equal(blocks[j].row, 128 * (cases[i].blocks[3 * j + 1] - '0'));
		}
		free(scene.blob);
	}
}

/* Each sequence reads the rows that were widened for it. */
static void check_widened(const struct fa_cuda_paged_plan *plan,
                          const struct fa_cuda_paged_launch launches[2])
{
	const struct fa_cuda_paged_widen *widen = &launches[0].args.widen;
	const struct fa_cuda_paged_attention *forward = &launches[1].args.attention;

	for (uint32_t i = 0; i < plan->forward_items; i++) {
		const struct fa_cuda_paged_item *item = &forward->items[i], *from = widen->items;
		/* A row has as many bytes as slots are apart. */
		const uint32_t row = forward->pages.table[item->table_start];

		while (from->tile != row)
			from++;
		assert_int_equal(from->first_q, item->first_q);
		assert_int_equal(from->n_k - from->begin, item->n_k);
		assert_int_equal(widen->block_items[row / FA_CUDA_WIDEN_TOKENS],
		                 from - widen->items);
	}
}

/* Codes of prompts and long extends are widened for a kernel that reads bf16, if they fit. */
static void test_widen(void **state)
{
	static const struct {
		uint32_t n_new[2], lengths[2], first[2];
		int64_t left, chunk;
		enum fa_attention_dtype dtype;
		uint32_t rows;
	} cases[] = {
		{ { 4096, 1 }, { 4096, 500 }, { 0 }, -1, 0, FA_ATTENTION_BF16, 4096 },
		{ { 64, 70 }, { 8000, 130 }, { 0 }, -1, 0, FA_ATTENTION_BF16, 8064 + 256 },
		/* Dropped tokens, and those before a window, are not. */
		{ { 64, 1 }, { 8000, 9 }, { 5000 }, -1, 0, FA_ATTENTION_BF16, 3072 },
		{ { 64, 1 }, { 8000, 9 }, { 0 }, 1000, 0, FA_ATTENTION_BF16, 1088 + 64 },
		/* Attention chunks: 4 sequences instead of one. */
		{ { 4096, 1 }, { 4096, 500 }, { 0 }, -1, 1024, FA_ATTENTION_BF16, 4096 },
		/* Few rows, fp16, and more than the workspace holds. */
		{ { 63, 1 }, { 8000, 9 }, { 0 }, -1, 0, FA_ATTENTION_BF16, 0 },
		{ { 4096, 1 }, { 4096, 9 }, { 0 }, -1, 0, FA_ATTENTION_F16, 0 },
		{ { 64, 1 }, { 90000, 9 }, { 0 }, -1, 0, FA_ATTENTION_BF16, 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
		struct fa_cuda_paged_plan plan;
		struct scene scene;
		int n;

		scene_init(&scene, 2);
		scene.cache.store = FA_PAGED_E4M3;
		scene.cache.dtype = cases[i].dtype;
		scene.request.attention.window_left = cases[i].left;
		scene.request.attention.chunk_tokens = cases[i].chunk;
		for (int32_t b = 0; b < 2; b++) {
			scene.cu_new[b + 1] = scene.cu_new[b] + cases[i].n_new[b];
			scene.lengths[b] = cases[i].lengths[b];
			scene.first[b] = cases[i].first[b];
		}
		scene_plan(&scene, &h200, &plan);
		assert_int_equal(plan.wide_rows, cases[i].rows);
		n = fa_cuda_paged_launches(&plan, &scene.request, (uintptr_t)scene.blob, 1 << 24, 1,
		                           launches);
		if (cases[i].rows == 0) {
			assert_null(plan.forward);
			assert_int_equal(n, 1);
		} else {
			const struct fa_cuda_paged_item *item = launches[0].args.widen.items;

			/* Dropped tokens may be in no page. */
			assert_int_equal(item->first, cases[i].first[0]);
			assert_in_range(item->begin + plan.wide_rows, item->n_k, UINT32_MAX);
			assert_int_equal(launches[0].kernel->kind, FA_CUDA_PAGED_WIDEN);
			assert_int_equal(launches[0].grid_x * FA_CUDA_WIDEN_TOKENS, plan.wide_rows);
			assert_ptr_equal(launches[1].kernel, plan.forward);
			assert_ptr_equal(launches[1].args.attention.pages.k,
			                 launches[0].args.widen.k);
			assert_ptr_equal(launches[1].args.attention.pages.v,
			                 launches[0].args.widen.v);
			check_widened(&plan, launches);
			assert_int_equal(n, 2 + (plan.decode != NULL));
			assert_true(plan.workspace_bytes <= (size_t)512 << 20);
		}
		free(scene.blob);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_short),
		cmocka_unit_test(test_pairs),
		cmocka_unit_test(test_widen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
