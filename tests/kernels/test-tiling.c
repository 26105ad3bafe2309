/*
 * Tests whether and where a request's keys are split: its shapes decide, and with enough tiles
 * nothing is split.
 */
#include "kernels/cpu/tiling.h"
#include "tests/kernels/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SEQUENCES_MAX 64

static struct fa_attention_params request(int32_t batch, int32_t heads, int32_t kv_heads,
                                          int64_t n_q, int64_t n_k)
{
	return (struct fa_attention_params){
		.dtype = FA_ATTENTION_F32,
		.batch = batch,
		.heads = heads,
		.kv_heads = kv_heads,
		.head_dim = 128,
		.head_dim_v = 128,
		.seqlen_q = n_q,
		.seqlen_k = n_k,
		.scale = 1,
		.window_left = -1,
		.window_right = -1,
	};
}

static int64_t split_keys_of(const struct fa_cpu_isa *isa, const struct fa_attention_params *params)
{
	struct fa_cpu_tiling tiling;

	fa_cpu_tiling_choose(isa, params, &tiling);
	assert_int_equal(!tiling.split_keys, !fa_cpu_attention_workspace_bytes(isa, params));
	return tiling.split_keys;
}

static void test_few_rows(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	static const struct {
		int32_t batch, heads, kv_heads;
		int64_t n_k, split_keys;
	} cases[] = {
		/* Keys are split 64 times, or as often as their number allows. */
		{ 1, 1, 1, 131072, 2048 },
		{ 1, 8, 1, 131072, 2048 },
		{ 1, 8, 8, 131072, 16384 },
		{ 1, 32, 8, 32768, 4096 },
		{ 4, 1, 1, 65536, 4096 },
		{ 1, 1, 1, 2048, 1024 },
		{ 1, 1, 1, 2049, 1280 },
		{ 1, 1, 1, 3100, 1280 },
		{ 1, 1, 1, 10000, 1280 },
		{ 31, 1, 1, 1 << 20, 1 << 19 },
		{ 1, 1, 1, INT64_C(1) << 32, 1 << 26 },
		/* There are too few keys, or enough tiles without splits. */
		{ 1, 1, 1, 0, 0 },
		{ 1, 8, 1, 2047, 0 },
		{ 1, 32, 32, 131072, 0 },
		{ 32, 8, 1, 1 << 20, 0 },
		{ 8, 32, 4, 1 << 20, 0 },
		{ 100000, 1, 1, 1 << 20, 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fa_attention_params params = request(cases[i].batch, cases[i].heads,
		                                            cases[i].kv_heads, 1, cases[i].n_k);

		/* Splits are the same for every instruction set and type. */
		for (size_t n = 0; isas[n]; n++) {
			params.dtype = (enum fa_attention_dtype)(1 + (i + n) % 3);
			assert_int_equal(split_keys_of(isas[n], &params), cases[i].split_keys);
		}
	}
}

static void test_many_rows(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t n = 0; isas[n]; n++) {
		struct fa_attention_params params = request(1, 8, 1, 4, 131072);
		int64_t tiles;

		assert_true(split_keys_of(isas[n], &params) >= 4096);
		tiles = fa_cpu_attention_tiles(isas[n], &params);
		assert_in_range(tiles, 24, 40);
		params.seqlen_k = 2000;
		assert_int_equal(split_keys_of(isas[n], &params), 0);

		/* Prefill has enough tiles without splits. */
		params = request(1, 8, 8, 2048, 2048);
		for (int causal = 0; causal < 2; causal++) {
			params.causal = causal;
			assert_int_equal(split_keys_of(isas[n], &params), 0);
		}
		params = request(1, 1, 1, 4000, 131072);
		assert_int_equal(split_keys_of(isas[n], &params), 0);
	}
}

/* Only keys that a window lets rows see count for splits. */
static void test_windows(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t n = 0; isas[n]; n++) {
		struct fa_attention_params params = request(1, 1, 1, 1, 131072);

		params.causal = true;
		params.window_left = 1000;
		assert_int_equal(split_keys_of(isas[n], &params), 0);
		params.window_left = 8191;
		assert_int_equal(split_keys_of(isas[n], &params), 1024);
		params.causal = false;
		params.window_right = 8192;
		assert_int_equal(split_keys_of(isas[n], &params), 1024);
		params.seqlen_k = INT64_C(1) << 31;
		params.window_left = params.window_right = INT64_MAX;
		assert_int_equal(split_keys_of(isas[n], &params), 1 << 25);
	}
}

/* The widest windows are unbounded: splits are as long as without a window. */
static void test_widest_windows(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t n = 0; isas[n]; n++) {
		struct fa_attention_params params = request(4, 8, 1, 4000, 1 << 20);
		struct fa_cpu_tiling without, tiling;

		for (int causal = 0; causal < 2; causal++) {
			params.causal = causal;
			params.window_left = params.window_right = -1;
			fa_cpu_tiling_choose(isas[n], &params, &without);
			params.window_left = params.window_right = INT64_MAX;
			fa_cpu_tiling_choose(isas[n], &params, &tiling);
			assert_int_equal(tiling.block, without.block);
			assert_int_equal(tiling.split_keys, without.split_keys);
		}
	}
}

/* In a ragged batch, long sequences have splits in proportion. */
static void test_ragged(void **state)
{
	static const uint32_t cu_q[] = { 0, 1, 1, 2, 3 };
	static const uint32_t cu_k[] = { 0, 500, 9000, 9000, 140072 };
	static const int64_t splits[] = { 1, 0, 1, 57 };
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t n = 0; isas[n]; n++) {
		struct fa_attention_params params = request(4, 2, 1, 1, 140000);
		struct fa_cpu_tiling_sequence sequence;
		struct fa_cpu_tiling tiling;

		params.cu_seqlens_q = cu_q;
		params.cu_seqlens_k = cu_k;
		fa_cpu_tiling_choose(isas[n], &params, &tiling);
		/* The second has no rows, so its keys do not count. */
		assert_int_equal(tiling.split_keys, 2304);
		for (int32_t b = 0; b < 4; b++) {
			fa_cpu_tiling_sequence(&params, &tiling, b, &sequence);
			assert_int_equal(sequence.n_k, cu_k[b + 1] - cu_k[b]);
			assert_int_equal(sequence.n_blocks, cu_q[b + 1] - cu_q[b]);
			assert_int_equal(sequence.n_blocks * sequence.n_splits, splits[b]);
		}
	}
}

/* Keys between the first and the last that a block's rows see. */
static int64_t keys_of(const struct fa_attention_params *params, const struct fa_cpu_tiling *tiling,
                       const struct fa_cpu_tiling_sequence *sequence, int64_t block)
{
	int64_t group = params->heads / params->kv_heads, rows = sequence->n_q * group;
	int64_t end = (block + 1) * tiling->block < rows ? (block + 1) * tiling->block : rows;
	int64_t shift = sequence->n_k - sequence->n_q;
	int64_t first = block * tiling->block / group + shift, last = (end - 1) / group + shift;
	int64_t chunk = params->chunk_tokens, least = 0, most = sequence->n_k - 1;

	if (chunk && last < 0)
		return 0;
	if (chunk) {
		least = (first > 0 ? first : 0) / chunk * chunk;
		if (last / chunk * chunk + chunk - 1 < most)
			most = last / chunk * chunk + chunk - 1;
	}
	first = params->window_left < 0 ? 0 : first - params->window_left;
	if (params->causal && params->prefix_lengths && params->window_right < 0)
		last = last > (int64_t)params->prefix_lengths[0] - 1
		               ? last
		               : (int64_t)params->prefix_lengths[0] - 1;
	else if (params->causal || params->window_right >= 0)
		last += params->causal ? 0 : params->window_right;
	else
		last = sequence->n_k;
	first = first > least ? first : least;
	last = last < most ? last : most;
	last = last < sequence->n_k - 1 ? last : sequence->n_k - 1;
	return last >= first ? last - first + 1 : 0;
}

/* Checks any request: splits cover all keys that rows see, are not tiny, and need bounded
 * memory. */
static void test_bounds(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	uint32_t cu_q[SEQUENCES_MAX + 1] = { 0 }, cu_k[SEQUENCES_MAX + 1] = { 0 };
	size_t most = 0, n_cut = 0;

	for (int i = 0; i < 20000; i++) {
		const struct fa_cpu_isa *isa = isas[0];
		int32_t kv_heads = (int32_t)problem_pick(1, 9);
		struct fa_attention_params params = request(
			(int32_t)problem_pick(1, problem_one_in(4) ? SEQUENCES_MAX : 9),
			kv_heads * (int32_t)problem_pick(1, 12), kv_heads,
			problem_pick(1, problem_one_in(2) ? 9 : 4000),
			problem_pick(0, 1u << problem_pick(1, 20)));
		struct fa_cpu_tiling_sequence sequence;
		int64_t tiles = 0, splits = 0, group = params.heads / kv_heads;
		uint32_t prefixes[SEQUENCES_MAX], prefix = problem_pick(0, 1u << 20);
		struct fa_cpu_tiling tiling;
		size_t bytes;

		for (size_t n = 0; isas[n] && problem_one_in(2); n++)
			isa = isas[n];
		params.head_dim_v = 8 * (int32_t)problem_pick(1, 64);
		params.causal = problem_one_in(2);
		if (problem_one_in(2))
			params.window_left = problem_pick(0, 1u << 16);
		if (problem_one_in(2))
			params.window_right = problem_pick(0, 1u << 16);
		if (problem_one_in(4))
			params.chunk_tokens = problem_pick(1, 1u << problem_pick(1, 17));
		if (problem_one_in(4)) {
			for (int32_t b = 0; b < params.batch; b++)
				prefixes[b] = prefix;
			params.prefix_lengths = prefixes;
		}
		for (int32_t b = 0; b < params.batch; b++) {
			cu_q[b + 1] = cu_q[b] + problem_pick(0, (uint32_t)params.seqlen_q);
			cu_k[b + 1] = cu_k[b] + problem_pick(0, (uint32_t)params.seqlen_k);
		}
		if (problem_one_in(2)) {
			params.cu_seqlens_q = cu_q;
			params.cu_seqlens_k = cu_k;
		}

		bytes = fa_cpu_attention_workspace_bytes(isa, &params);
		assert_true(bytes <= FA_CPU_WORKSPACE_BYTES_MAX);
		most = bytes > most ? bytes : most;
		fa_cpu_tiling_choose(isa, &params, &tiling);
		assert_int_equal(!tiling.split_keys, !bytes);
		if (!tiling.split_keys)
			continue;
		n_cut++;
		assert_true(tiling.split_keys >= 1024 && tiling.split_keys % 256 == 0);
		assert_int_equal(tiling.heads > 0, params.seqlen_q * group <= FA_CPU_FEW_ROWS_MAX);
		for (int32_t b = 0; b < params.batch; b++) {
			int64_t heads = tiling.heads > 0 ? tiling.heads : 1;

			fa_cpu_tiling_sequence(&params, &tiling, b, &sequence);
			for (int64_t block = 0; block < sequence.n_blocks; block++)
				assert_true(sequence.n_splits * tiling.split_keys >=
				            keys_of(&params, &tiling, &sequence, block));
			assert_true((sequence.n_splits - 1) * tiling.split_keys < sequence.n_k ||
			            sequence.n_splits == 1);
			tiles += sequence.n_blocks * ((kv_heads + heads - 1) / heads) *
			         sequence.n_splits;
			splits += sequence.n_blocks * kv_heads * sequence.n_splits;
		}
		assert_int_equal(fa_cpu_attention_tiles(isa, &params), tiles);
		assert_true(splits < 64 + 2 * 32);
	}
	/* The loop has had enough cases with splits. */
	assert_true(n_cut > 500 && most > FA_CPU_WORKSPACE_BYTES_MAX / 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_few_rows), cmocka_unit_test(test_many_rows),
		cmocka_unit_test(test_windows),  cmocka_unit_test(test_widest_windows),
		cmocka_unit_test(test_ragged),   cmocka_unit_test(test_bounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
