/*
 * Which of the Vulkan kernels computes a request: those with matrices where the device has them and they cover
 * it, and the scalar one otherwise. Needs no device.
 */
#include "kernels/vulkan/tile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* An H100's. */
static const struct fa_vulkan_matrices gpu = {
	.f16 = true,
	.bf16 = true,
	.m = 16,
	.n = 16,
	.k = 16,
	.subgroup = 32,
	.shared_bytes = 48 << 10,
	.narrow = { .subgroups = 4, .row_tiles = 2, .keys = 32 },
	.wide = { .subgroups = 4, .row_tiles = 1, .keys = 32 },
};

static const struct fa_vulkan_request usual = {
	.source = FA_VULKAN_POOL,
	.dtype = FA_ATTENTION_F16,
	.store = FA_PAGED_PLAIN,
	.head_dim = 128,
	.head_dim_v = 128,
	.most_rows = 4096,
	.longest = 4096,
	.aligned_k = true,
};

static struct fa_vulkan_tile choose(const struct fa_vulkan_matrices *matrices,
                                    const struct fa_vulkan_request *request)
{
	struct fa_vulkan_tile tile;

	fa_vulkan_choose_tile(matrices, request, &tile);
	return tile;
}

static void test_covered(void **state)
{
	struct fa_vulkan_request r = usual;
	struct fa_vulkan_tile tile = choose(&gpu, &r);

	assert_int_equal(tile.kernel, FA_VULKAN_MATRIX_F16);
	assert_int_equal(tile.rows, 64);
	assert_int_equal(tile.constants[10], 128); /* invocations */
	assert_true(tile.constants[2]);            /* aligned */
	assert_true(tile.constants[3]);            /* simple */

	r.dtype = FA_ATTENTION_BF16;
	r.head_dim = r.head_dim_v = 64;
	r.begins = 8;
	r.adjusts_scores = true;
	tile = choose(&gpu, &r);
	assert_int_equal(tile.kernel, FA_VULKAN_MATRIX_BF16);
	assert_int_equal(tile.rows, 128);
	assert_false(tile.constants[2]);
	assert_false(tile.constants[3]);

	r.most_rows = 16;
	assert_int_equal(choose(&gpu, &r).rows, 16);
	r.most_rows = 17;
	assert_int_equal(choose(&gpu, &r).rows, 128);
	r.most_rows = UINT64_MAX;
	assert_int_equal(choose(&gpu, &r).rows, 128);
}

/* Each request differs from the usual one in what no kernel with matrices covers. */
static void test_not_covered(void **state)
{
	struct fa_vulkan_request requests[8];

	for (int i = 0; i < 8; i++)
		requests[i] = usual;
	requests[0].dtype = FA_ATTENTION_F32;
	requests[1].store = FA_PAGED_E4M3;
	requests[2].head_dim = requests[2].head_dim_v = 96;
	requests[3].head_dim_v = 64;
	requests[4].most_rows = 1;
	requests[5].masks = true;
	requests[6].longest = (int64_t)INT32_MAX + 1;
	requests[7].head_dim = requests[7].head_dim_v = 256;
	for (int i = 0; i < 8; i++)
		assert_int_equal(choose(&gpu, &requests[i]).kernel, FA_VULKAN_ATTEND);
	assert_int_equal(choose(&gpu, &requests[4]).rows, 1);
	assert_int_equal(choose(&gpu, &requests[7]).rows, 4);
}

/* Few rows go to the kernel that splits keys, which has as many workgroups as fill the device. */
static void test_splits(void **state)
{
	const struct fa_vulkan_splits splits = {
		.groups = 2048,
		.least_keys = 128,
		.most_keys = UINT32_MAX,
		.halves = true,
	};
	const struct fa_vulkan_attend arguments = { .q = 0 };
	struct fa_vulkan_writer writer = { .splits = &splits };
	struct fa_vulkan_request r = usual;
	struct fa_vulkan_tile tile;

	r.splits = &splits;
	r.most_rows = 3;
	tile = choose(&gpu, &r);
	assert_int_equal(tile.kernel, FA_VULKAN_DECODE);
	assert_int_equal(tile.rows, 4);
	fa_vulkan_add_attention(&writer, &tile, &arguments, 256, 1e6);
	assert_int_equal(writer.n_dispatches, 2);
	assert_int_equal(writer.dispatches[0].groups, 256 * 8);
	assert_int_equal(writer.dispatches[1].kernel, FA_VULKAN_COMBINE);
	assert_int_equal(writer.dispatches[1].groups, 256 * 4);
	assert_int_equal(writer.parts_bytes, 256 * 4 * 8 * (128 + 2) * 4);

	/* Tiles that fill the device, and keys that are too few, are not split. */
	writer.n_dispatches = 0;
	fa_vulkan_add_attention(&writer, &tile, &arguments, 4096, 1e6);
	assert_int_equal(writer.n_dispatches, 1);
	r.longest = 128;
	tile = choose(&gpu, &r);
	writer.n_dispatches = 0;
	fa_vulkan_add_attention(&writer, &tile, &arguments, 1, 1e6);
	assert_int_equal(writer.n_dispatches, 1);

	r.most_rows = 9; /* of few keys */
	assert_int_equal(choose(&gpu, &r).kernel, FA_VULKAN_MATRIX_F16);
	r.longest = 4096;
	assert_int_equal(choose(&gpu, &r).rows, 8);
	r.most_rows = UINT64_MAX;
	assert_int_equal(choose(&gpu, &r).kernel, FA_VULKAN_MATRIX_F16);
	r.most_rows = 1;
	r.begins = 8;
	assert_int_equal(choose(&gpu, &r).kernel, FA_VULKAN_ATTEND);
	r.begins = 0;
	r.head_dim = r.head_dim_v = 96;
	assert_int_equal(choose(&gpu, &r).kernel, FA_VULKAN_ATTEND);
	r.head_dim = r.head_dim_v = 256;
	r.most_rows = 8; /* more than shared memory holds */
	assert_int_equal(choose(&gpu, &r).kernel, FA_VULKAN_ATTEND);
}

/* The device lacks something. */
static void test_devices(void **state)
{
	struct fa_vulkan_matrices m = gpu;
	struct fa_vulkan_request r = usual;

	assert_int_equal(choose(NULL, &r).kernel, FA_VULKAN_ATTEND);
	assert_int_equal(choose(&(struct fa_vulkan_matrices){ 0 }, &r).kernel, FA_VULKAN_ATTEND);
	m.bf16 = false;
	assert_int_equal(choose(&m, &r).kernel, FA_VULKAN_MATRIX_F16);
	r.dtype = FA_ATTENTION_BF16;
	assert_int_equal(choose(&m, &r).kernel, FA_VULKAN_ATTEND);
	m = gpu;
	m.shared_bytes = 16 << 10;
	assert_int_equal(choose(&m, &r).kernel, FA_VULKAN_ATTEND);
	m = gpu;
	m.subgroup = 8; /* fewer invocations than rows of a matrix */
	assert_int_equal(choose(&m, &r).kernel, FA_VULKAN_ATTEND);
}

/* Lavapipe leaves long loops early; and what must not depend on the step must not change kernels there. */
static void test_lavapipe(void **state)
{
	const struct fa_vulkan_matrices m = {
		.f16 = true,
		.m = 8,
		.n = 8,
		.k = 8,
		.subgroup = 8,
		.exact = true,
		.shared_bytes = 32 << 10,
		.narrow = { .subgroups = 4, .row_tiles = 2, .keys = 16 },
		.wide = { .subgroups = 4, .row_tiles = 1, .keys = 8 },
	};
	struct fa_vulkan_request r = usual;

	assert_int_equal(choose(&m, &r).kernel, FA_VULKAN_ATTEND);
	r.longest = 500;
	assert_int_equal(choose(&m, &r).kernel, FA_VULKAN_MATRIX_F16);
	r.most_rows = UINT64_MAX;
	assert_int_equal(choose(&m, &r).kernel, FA_VULKAN_ATTEND);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_covered),  cmocka_unit_test(test_not_covered),
		cmocka_unit_test(test_splits),   cmocka_unit_test(test_devices),
		cmocka_unit_test(test_lavapipe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
