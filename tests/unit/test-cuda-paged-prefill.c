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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_short),
		cmocka_unit_test(test_pairs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
