/*
 * Tests without a GPU how paged kernels divide integers by multiplying, with factors that the
 * planner computes; where they divide in fp32, for which the planner ensures that numbers are small
 * enough; and how many thread blocks share a sequence.
 */
#include "kernels/cuda/sm90/paged_kernels.h"
#include "tests/unit/cuda-paged-scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The kernels divide by multiplying with a factor from the planner. */
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

/* Hopper's kernels compute a row's token in fp32, with a reciprocal that may be off by one step. */
static void test_rows(void **state)
{
	const struct {
		uint32_t n_new;
		const char *prefix;
	} cases[] = { { 16, "fa_sm90_paged_decode_bf16_d128" },
		      { 17, "fa_sm80_paged_decode_bf16" } };
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	for (uint32_t group = 1; group <= 65536; group += group < 300 ? 1 : 257) {
		const float factor = 1 / (float)group;
		const float factors[] = { nextafterf(factor, 0), factor, nextafterf(factor, 2) };

		for (uint32_t at = 0; at < FA_SM90_PAGED_ROWS_MAX; at += group)
			for (int i = 0; i < 3; i++) {
				const uint32_t last = at + group - 1;

				assert_int_equal((uint32_t)(((float)at + 0.5f) * factors[i]),
				                 at / group);
				assert_int_equal((uint32_t)(((float)last + 0.5f) * factors[i]),
				                 at / group);
			}
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		scene_init(&scene, 1);
		scene.cache.kv_heads = 1;
		scene.request.attention.heads = 65536;
		scene.cu_new[1] = cases[i].n_new;
		scene.lengths[0] = 100;
		scene_plan(&scene, &h200, &plan);
		assert_memory_equal(plan.decode->symbol, cases[i].prefix, strlen(cases[i].prefix));
		free(scene.blob);
	}
}

/* A long sequence of one KV head is shared by all thread blocks. Where it has many partial
 * results, another kernel ("levels") is chosen. */
static void test_levels(void **state)
{
	static const struct {
		int32_t kv_heads, dim;
		enum fa_paged_store store;
		const struct fa_cuda_chip *chip;
		uint32_t length, grid;
		const char *symbol;
	} cases[] = {
		{ 1, 128, FA_PAGED_PLAIN, &h200, 16384, 128, "fa_sm90_paged_levels_bf16_d128_a1" },
		{ 1, 64, FA_PAGED_PLAIN, &h200, 131072, 128, "fa_sm90_paged_levels_bf16_d64_a1" },
		{ 1, 256, FA_PAGED_PLAIN, &h200, 33 * 64, 33, "fa_sm90_paged_levels_bf16_d256_a1" },
		{ 1, 256, FA_PAGED_PLAIN, &h200, 32 * 64, 32, "fa_sm90_paged_decode_bf16_d256_a1" },
		{ 2, 128, FA_PAGED_PLAIN, &h200, 16384, 128, "fa_sm90_paged_levels_bf16_d128_a1" },
		{ 4, 128, FA_PAGED_PLAIN, &h200, 16384, 128, "fa_sm90_paged_decode_bf16_d128_a1" },
		{ 1, 128, FA_PAGED_E4M3, &h200, 16384, 128, "fa_sm90_codes_levels_e4m3_d128_a1" },
		{ 1, 128, FA_PAGED_PLAIN, &portable_h200, 16384, 64,
		  "fa_sm80_paged_decode_bf16_d128" },
	};
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		scene_init(&scene, 1);
		scene.cache.kv_heads = cases[i].kv_heads;
		scene.cache.store = cases[i].store;
		scene.cache.head_dim = scene.cache.head_dim_v = cases[i].dim;
		scene.request.attention.heads = 8;
		scene.cu_new[1] = 1;
		scene.lengths[0] = cases[i].length;
		scene_plan(&scene, cases[i].chip, &plan);
		assert_int_equal(plan.decode_grid, cases[i].grid);
		assert_memory_equal(plan.decode->symbol, cases[i].symbol, strlen(cases[i].symbol));
		free(scene.blob);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_magic),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_levels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
