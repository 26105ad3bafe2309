/*
 * Tests the order of a ragged batch's units (kernels/cuda/plan-ragged.c) without a GPU: each block
 * of rows is computed once, the last ones have the fewest keys, and thread blocks get equal shares.
 */
#include "tests/unit/cuda-ragged-scene.h"

#include <stdlib.h>

static struct fa_cuda_ragged_unit list[2 * FA_CUDA_RAGGED_UNITS_MAX];

static void plan(void)
{
	plan_on(&hopper);
	if (batch.launch.list_units > 0)
		assert_true(fa_cuda_ragged_list(&batch.launch, hopper.l2_bytes, list));
}

/* Counts keys one by one. */
static uint64_t tiles_of(const struct fa_cuda_ragged_unit *block)
{
	const struct fa_cuda_attention *args = &batch.launch.args;
	const uint32_t b = block->triple / (uint32_t)(args->heads * args->slices);
	const int64_t n_q = batch.cu_q[b + 1] - batch.cu_q[b];
	const int64_t n_k = batch.cu_k[b + 1] - batch.cu_k[b], keys = batch.launch.kernel->keys;
	const int64_t end = block->row + batch.launch.kernel->rows;
	uint64_t tiles = 0;

	for (int64_t tile = 0; tile * keys < n_k; tile++) {
		bool seen = false;

		for (int64_t key = tile * keys; key < n_k && key < (tile + 1) * keys; key++)
			for (int64_t row = block->row; !seen && row < n_q && row < end; row++)
				seen = key - (row + n_k - n_q) <= args->window_right &&
				       (row + n_k - n_q) - key <= args->window_left;
		tiles += seen;
	}
	return tiles;
}

/* Checks that units cover all blocks of rows, and that thread blocks go through the heads, @together
 * at a time (0: any). Returns the largest share of a thread block, in tiles, over an equal one. */
static double check(uint32_t together)
{
	const struct fa_cuda_launch *launch = &batch.launch;
	const struct fa_cuda_attention *args = &launch->args;
	const uint32_t heads = (uint32_t)(args->heads * args->slices), grid = launch->grid;
	const uint32_t rows = (uint32_t)launch->kernel->rows;
	uint64_t all = 0, most = 0;
	uint8_t *seen[BATCH_MAX];
	uint32_t blocks[BATCH_MAX];

	assert_true(launch->list_units > 0);
	assert_int_equal(launch->list_units % grid, 0);
	for (int b = 0; b < batch.params.batch; b++) {
		blocks[b] = (batch.cu_q[b + 1] - batch.cu_q[b] + rows - 1) / rows;
		seen[b] = calloc((size_t)blocks[b] + 1, heads);
		assert_non_null(seen[b]);
	}
	for (uint32_t thread_block = 0; thread_block < grid; thread_block++) {
		uint64_t share = 0, before = UINT64_MAX;
		uint32_t section = 0;
		bool ended = false;

		for (uint32_t i = thread_block; i < launch->list_units; i += grid) {
			const struct fa_cuda_ragged_unit *unit = &list[i];
			const uint32_t b = unit->triple / heads, head = unit->triple % heads;
			uint64_t tiles;

			if (unit->row == FA_CUDA_RAGGED_NONE) {
				ended = true;
				continue;
			}
			assert_false(ended);
			tiles = tiles_of(unit);
			if (together > 0) {
				assert_true(head / together > section || tiles <= before);
				assert_true(head / together >= section);
				section = head / together;
			}
			before = tiles;
			assert_int_equal(unit->row % rows, 0);
			assert_true(unit->row / rows < blocks[b]);
			assert_int_equal(seen[b][unit->row / rows * heads + head]++, 0);
			share += tiles;
		}
		most = share > most ? share : most;
		all += share;
	}
	for (int b = 0; b < batch.params.batch; b++) {
		for (uint32_t i = 0; i < blocks[b] * heads; i++)
			assert_int_equal(seen[b][i], 1);
		free(seen[b]);
	}
	return all > 0 ? (double)most * grid / (double)all : 1;
}

static void test_lognormal(void **state)
{
	static const uint32_t lengths[] = { 2744, 312, 808, 95,  1530, 441, 1022, 618,
		                            206,  777, 64,  390, 1204, 555, 130,  903 };

	make(128, 32, 8);
	for (int b = 0; b < 16; b++)
		add(lengths[b], lengths[b]);
	plan();
	assert_int_equal(batch.launch.kernel->kind, FA_CUDA_BAND);
	assert_in_range(batch.launch.grid, 132, 4 * 132);
	assert_true(check(32) < 1.02);
}

/* K and V of a head have 8 MB, so that 16 heads exceed L2, and 3 of them fit half of it. */
static void test_sections(void **state)
{
	make(128, 16, 16);
	add(9000, 9000);
	add(7500, 7500);
	plan();
	assert_true(check(3) < 1.05);
}

/* A launch is cut to as many thread blocks as one that can be preempted, and its list with it. */
static void test_long(void **state)
{
	make(128, 32, 8);
	add(20000, 20000);
	add(20000, 20000);
	plan();
	assert_int_equal(batch.launch.grid, 132 * FA_CUDA_PREEMPT_BLOCKS_AN_SM);
	assert_true(check(32) < 1.1);
}

/* A prompt beside conversations, lengths of zero, rows that see no key. */
static void test_lengths(void **state)
{
	for (int causal = 0; causal < 2; causal++) {
		for (int window = -1; window < 600; window += 300) {
			make(64, 24, 8);
			batch.params.causal = causal;
			batch.params.window_left = window;
			for (int b = 0; b < 9; b++)
				add(b % 4 == 1 ? 0 : (uint32_t)(37 * b + 1),
				    b % 3 == 2 ? 0 : (uint32_t)(211 * b + 5));
			plan();
			check(0);
		}
	}
	make(128, 40, 8);
	add(4000, 4000);
	for (int b = 1; b < 5; b++)
		add(1, 2000);
	plan();
	check(0);
}

static void test_random(void **state)
{
	srand(7);
	for (int i = 0; i < 40; i++) {
		const int kv_heads = 1 + rand() % 8, n = 1 + rand() % 20;

		make(i % 3 == 0   ? 64
		     : i % 3 == 1 ? 128
		                  : 256,
		     kv_heads * (1 + rand() % 6), kv_heads);
		for (int b = 0; b < n; b++)
			add((uint32_t)rand() % 700, (uint32_t)rand() % 700);
		plan();
		if (batch.launch.list_units > 0)
			check(0);
		else
			assert_in_range(batch.launch.grid, 0, 132);
	}
}

/* Where there is no list, units are those of the longest length. */
static void test_without(void **state)
{
	const struct fa_cuda_attention *args = &batch.launch.args;

	make(128, 64, 64);
	for (int b = 0; b < 40; b++)
		add(32000, 32000);
	plan();
	assert_int_equal(batch.launch.list_units, 0);
	assert_int_equal(batch.launch.grid, args->units_m * args->triples);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lognormal), cmocka_unit_test(test_sections),
		cmocka_unit_test(test_long),      cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_random),    cmocka_unit_test(test_without),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
