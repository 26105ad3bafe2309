/*
 * Tests steps with extreme sizes, without a GPU: those too large for the kernels' counters are
 * refused, and nothing wraps around before.
 */
#include "tests/unit/cuda-paged-scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The number of row blocks, per KV head or in all, exceeds 2^32; no multiple of 2^32 may wrap to a
 * small count. */
static void test_rows(void **state)
{
	for (uint32_t shift = 16; shift <= 29; shift++)
		for (int32_t kv_heads = 1; kv_heads <= 65536; kv_heads *= 16) {
			struct fa_cuda_paged_plan plan;
			char text[256] = "", *blob;
			struct scene scene;
			int r;

			scene_init(&scene, 1);
			/* With fp32 even steps of many rows take the decode kernels. */
			scene.cache.dtype = FA_ATTENTION_F32;
			scene.cache.kv_heads = kv_heads;
			scene.request.attention.heads = 65536;
			scene.request.attention.deterministic = shift % 2;
			scene.cu_new[1] = scene.lengths[0] = scene.before[0] = 1u << shift;
			assert_int_equal(fa_paged_check(&scene.request, text, sizeof(text)), 0);
			blob = malloc(fa_cuda_paged_blob_bytes(&scene.request));
			assert_non_null(blob);
			r = fa_cuda_paged_plan(&h200, &scene.request, blob, text, sizeof(text),
			                       &plan);
			assert_int_equal(r, -ENOTSUP);
			assert_non_null(strstr(text, "tiles"));
			free(blob);
		}
}

/* The size that fa_cuda_paged_blob_bytes() asks for stops growing where prefixes are impossible, so
 * that a large step is not refused for want of memory that it does not need. */
static void test_blob(void **state)
{
	static const uint32_t table[1];
	struct scene scene;

	for (int deterministic = 0; deterministic < 2; deterministic++) {
		scene_init(&scene, 1);
		scene.cache.dtype = FA_ATTENTION_F32;
		scene.cache.kv_heads = 1;
		scene.request.attention.heads = 64;
		scene.request.attention.deterministic = deterministic;
		scene.step.host_table = table;
		scene.cu_new[1] = scene.lengths[0] = 1 << 18;
		assert_true(fa_cuda_paged_blob_bytes(&scene.request) <= 4 << 20);
	}
}

/* A window may be any number, and is unbounded if it is longer than a sequence. */
static void test_windows(void **state)
{
	static const int64_t windows[] = { FA_PAGED_LENGTH_MAX, INT32_MAX, UINT32_MAX,
		                           INT64_MAX - UINT32_MAX, INT64_MAX };

	for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
		for (int fp32 = 0; fp32 < 2; fp32++) {
			struct fa_cuda_paged_plan plans[2];

			for (int bounded = 0; bounded < 2; bounded++) {
				struct scene scene;

				scene_init(&scene, 3);
				scene.cache.dtype = fp32 ? FA_ATTENTION_F32 : FA_ATTENTION_BF16;
				scene.request.attention.window_left = bounded ? windows[i] : -1;
				scene.request.attention.window_right = bounded ? windows[i] : -1;
				scene.request.attention.causal = false;
				scene.cu_new[1] = 1;
				scene.lengths[0] = 5000;
				/* Sequences have more query rows than keys. */
				scene.cu_new[2] = 31;
				scene.lengths[1] = 7;
				scene.cu_new[3] = 31 + 200;
				scene.lengths[2] = 190;
				scene_plan(&scene, &h200, &plans[bounded]);
				free(scene.blob);
			}
			assert_ptr_equal(plans[0].decode, plans[1].decode);
			assert_ptr_equal(plans[0].forward, plans[1].forward);
			assert_int_equal(plans[0].forward_blocks, plans[1].forward_blocks);
			assert_memory_equal(plans[0].first_items, plans[1].first_items,
			                    3 * sizeof(plans[0].first_items[0]));
		}
}

static void refused(struct scene *scene, const char *part)
{
	struct fa_cuda_paged_plan plan;
	char text[256] = "", *blob;
	size_t bytes;

	memcpy(scene->before, scene->lengths, sizeof(scene->before));
	assert_int_equal(fa_paged_check(&scene->request, text, sizeof(text)), 0);
	bytes = fa_cuda_paged_blob_bytes(&scene->request);
	blob = malloc(bytes + 1);
	assert_non_null(blob);
	assert_int_equal(
		fa_cuda_paged_plan(&h200, &scene->request, blob, text, sizeof(text), &plan),
		-ENOTSUP);
	if (!strstr(text, part))
		fail_msg("'%s' does not say '%s'", text, part);
	free(blob);
}

/* Chunks divide a step into at most 4096 parts, and no tree. */
static void test_chunks(void **state)
{
	static const uint32_t tree[5], inside[] = { 10 }, around[] = { 13 };
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	scene_init(&scene, 1);
	scene.cu_new[1] = scene.lengths[0] = 8192;
	scene.request.attention.chunk_tokens = 2;
	scene_plan(&scene, &h200, &plan);
	assert_int_equal(plan.decode_items, 4096);
	free(scene.blob);
	scene.lengths[0]++;
	refused(&scene, "chunks of 2 tokens divide the step into more than 4096 parts");
	scene.request.attention.chunk_tokens = INT64_MAX;
	scene_plan(&scene, &h200, &plan);
	assert_int_equal(plan.decode_items, 0);
	free(scene.blob);

	scene.request.attention.tree = tree;
	scene.request.attention.tree_start = scene.tree_start;
	scene.request.attention.positions = tree;
	scene.request.attention.chunk_tokens = 4;
	scene.cu_new[1] = 5;
	scene.lengths[0] = 13;
	refused(&scene, "the tree of sequence 0 crosses the border of a chunk of 4 tokens");
	scene.request.attention.chunk_tokens = 8;
	scene_plan(&scene, &h200, &plan);
	assert_int_equal(plan.decode_items, 1);
	free(scene.blob);

	/* Prefixes of whole sequences are the same as no causal. */
	scene.request.attention.tree = NULL;
	scene.request.attention.chunk_tokens = 0;
	scene.request.attention.prefix_lengths = inside;
	refused(&scene, "prefix_lengths are not supported on a GPU where one ends among the rows");
	scene.request.attention.prefix_lengths = tree;
	scene_plan(&scene, &h200, &plan);
	assert_true(plan.causal);
	free(scene.blob);
	scene.request.attention.prefix_lengths = around;
	scene_plan(&scene, &h200, &plan);
	assert_false(plan.causal);
	free(scene.blob);
	scene.request.attention.causal = false;
	scene.request.attention.prefix_lengths = inside;
	scene_plan(&scene, &h200, &plan);
	assert_false(plan.causal);
	free(scene.blob);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_blob),
		cmocka_unit_test(test_windows),
		cmocka_unit_test(test_chunks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
