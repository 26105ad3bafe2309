/* Chunks over tensors as ragged batches, and prefixes as causal or its absence. */
#include "kernels/cuda/plan.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BATCH_MAX 4

static uint64_t random_ = 30;

static uint32_t below(uint32_t bound)
{
	random_ = random_ * 6364136223846793005 + 1442695040888963407;
	return (uint32_t)(random_ >> 33) % bound;
}

static struct fa_attention_tensor packed(int64_t tokens, int64_t heads)
{
	/* The stride of one token may be anything. */
	return (struct fa_attention_tensor){
		.stride_batch = tokens * heads * 64,
		.stride_token = tokens == 1 ? 7 : heads * 64,
		.stride_head = 64,
	};
}

static struct fa_attention_params dense(int32_t batch, int64_t n_q, int64_t n_k, int64_t chunk)
{
	return (struct fa_attention_params){
		.dtype = FA_ATTENTION_BF16,
		.batch = batch,
		.heads = 4,
		.kv_heads = 2,
		.head_dim = 64,
		.head_dim_v = 64,
		.seqlen_q = n_q,
		.seqlen_k = n_k,
		.q = packed(n_q, 4),
		.k = packed(n_k, 2),
		.v = packed(n_k, 2),
		.out = packed(n_q, 4),
		.causal = true,
		.window_left = -1,
		.window_right = -1,
		.chunk_tokens = chunk,
	};
}

/* The part with row @row of all, and the row in it. */
static int32_t part_of(const struct fa_attention_params *divided, int64_t row, int64_t *ret_row)
{
	for (int32_t i = 0; i < divided->batch; i++) {
		if (row >= divided->cu_seqlens_q[i + 1])
			continue;
		*ret_row = row - divided->cu_seqlens_q[i];
		return i;
	}
	fail_msg("no part has row %lld", (long long)row);
	return -1;
}

/* Each row is at its position among just the keys of its chunk. */
static void check_sequence(const struct fa_attention_params *divided, int64_t chunk,
                           int64_t first_q, int64_t n_q, int64_t first_k, int64_t n_k)
{
	for (int64_t i = 0; i < n_q; i++) {
		const int64_t position = i + n_k - n_q;
		const int64_t begin = position / chunk * chunk;
		int64_t row = 0;
		const int32_t part = part_of(divided, first_q + i, &row);
		const uint32_t *k = divided->cu_seqlens_k + part;
		const uint32_t *q = divided->cu_seqlens_q + part;

		if (position < 0) {
			assert_int_equal(k[1], k[0]);
			continue;
		}
		assert_int_equal(k[0], first_k + begin);
		assert_int_equal(k[1], first_k + (begin + chunk < n_k ? begin + chunk : n_k));
		assert_int_equal(k[1] + row - (q[1] - q[0]), first_k + position);
	}
}

static void check_lengths(const struct fa_attention_params *divided, uint32_t total_q,
                          uint32_t total_k)
{
	const uint32_t *q = divided->cu_seqlens_q, *k = divided->cu_seqlens_k;
	int64_t longest_q = 0, longest_k = 0;

	for (int32_t i = 0; i < divided->batch; i++) {
		assert_true(q[i + 1] >= q[i] && k[i + 1] >= k[i]);
		longest_q = q[i + 1] - q[i] > longest_q ? q[i + 1] - q[i] : longest_q;
		longest_k = k[i + 1] - k[i] > longest_k ? k[i + 1] - k[i] : longest_k;
	}
	assert_int_equal(q[divided->batch], total_q);
	assert_int_equal(k[divided->batch], total_k);
	assert_int_equal(divided->seqlen_q, longest_q);
	assert_int_equal(divided->seqlen_k, longest_k);
	assert_int_equal(divided->chunk_tokens, 0);
}

static void one_random(void)
{
	const bool ragged = below(2);
	const uint32_t n_q = 1 + below(40), n_k = below(60);
	uint32_t cu_q[BATCH_MAX + 1] = { 0 }, cu_k[BATCH_MAX + 1] = { 0 }, *lengths = NULL;
	struct fa_attention_params params = dense(1 + (int32_t)below(BATCH_MAX), n_q, n_k,
	                                          1 + below(30)),
				   divided;
	const int32_t batch = params.batch;
	char text[256] = "";

	for (int32_t b = 0; b < batch; b++) {
		cu_q[b + 1] = cu_q[b] + (ragged ? below(n_q + 1) : n_q);
		cu_k[b + 1] = cu_k[b] + (ragged ? below(n_k + 1) : n_k);
	}
	if (ragged) {
		params.cu_seqlens_q = cu_q;
		params.cu_seqlens_k = cu_k;
	}
	divided = params;
	if (fa_cuda_masks_rewrite(&divided, 4096, text, sizeof(text), &lengths) != 0)
		fail_msg("%s", text);
	if (!lengths) { /* they hide nothing */
		assert_memory_equal(&divided, &params, sizeof(params));
		for (int32_t b = 0; b < batch; b++)
			assert_true(cu_k[b + 1] - cu_k[b] <= params.chunk_tokens ||
			            cu_q[b + 1] == cu_q[b]);
		return;
	}
	check_lengths(&divided, cu_q[batch], cu_k[batch]);
	for (int32_t b = 0; b < batch; b++)
		check_sequence(&divided, params.chunk_tokens, cu_q[b], cu_q[b + 1] - cu_q[b],
		               cu_k[b], cu_k[b + 1] - cu_k[b]);
	free(lengths);
}

static void test_random(void **state)
{
	for (int i = 0; i < 2000; i++)
		one_random();
}

static void refused(const struct fa_attention_params *params, int32_t most, const char *part)
{
	struct fa_attention_params rewritten = *params;
	char text[256] = "";
	uint32_t *lengths = NULL;

	assert_int_equal(fa_cuda_masks_rewrite(&rewritten, most, text, sizeof(text), &lengths),
	                 -ENOTSUP);
	if (!strstr(text, part))
		fail_msg("'%s' does not say '%s'", text, part);
	assert_memory_equal(&rewritten, params, sizeof(rewritten));
	assert_null(lengths);
}

static void test_refused(void **state)
{
	const uint32_t mixed[] = { 0, 100 }, among[] = { 50, 50 };
	struct fa_attention_params params = dense(2, 100, 100, 10);
	struct fa_attention_tensor *const tensors[] = { &params.q, &params.k, &params.v,
		                                        &params.out };
	static const char *const names[] = { "q do", "k do", "v do", "out do" };
	float lse;

	refused(&params, 19, "more than 19 parts");
	for (size_t i = 0; i < 4; i++) {
		tensors[i]->stride_batch += 64;
		refused(&params, 4096, names[i]);
		tensors[i]->stride_batch -= 64;
	}
	params.lse = &lse;
	params.lse_stride_batch = 400;
	params.lse_stride_token = 1;
	refused(&params, 4096, "lse do");
	params.lse = NULL;
	params.chunk_tokens = 0;
	params.prefix_lengths = among;
	refused(&params, 4096, "one ends among the rows");
	params.prefix_lengths = mixed;
	refused(&params, 4096, "and another one behind them");

	/* All sequences have the same keys. */
	params = dense(64, 1, 1 << 26, 1 << 25);
	params.k.stride_batch = params.k.stride_token = 0;
	params.v = params.k;
	refused(&params, 4096, "more than 2^32");
}

static bool causal_with(int64_t n_q, int64_t n_k, const uint32_t *prefixes)
{
	struct fa_attention_params params = dense(2, n_q, n_k, 0);
	char text[256] = "";
	uint32_t *lengths = NULL;

	params.prefix_lengths = prefixes;
	assert_int_equal(fa_cuda_masks_rewrite(&params, 4096, text, sizeof(text), &lengths), 0);
	assert_null(lengths);
	assert_null(params.prefix_lengths);
	return params.causal;
}

static void test_prefixes(void **state)
{
	const uint32_t prefixes[] = { 9, 0 }, second[] = { 0, 0, 5 }, all[] = { 0, 5, 10 };
	struct fa_attention_params params = dense(2, 5, 5, 0);
	char text[256] = "";
	uint32_t *unused;

	/* The first row sees 21 keys. */
	assert_true(causal_with(100, 120, (const uint32_t[]){ 0, 21 }));
	assert_false(causal_with(100, 120, (const uint32_t[]){ 120, UINT32_MAX }));
	/* The first rows see none. */
	assert_true(causal_with(100, 20, (const uint32_t[]){ 0, 0 }));
	assert_false(causal_with(100, 20, (const uint32_t[]){ 20, 20 }));
	/* A sequence without rows, or without keys, leaves the batch causal. */
	for (int i = 0; i < 2; i++) {
		params.causal = true;
		params.prefix_lengths = prefixes;
		params.cu_seqlens_q = i ? all : second;
		params.cu_seqlens_k = i ? second : all;
		assert_int_equal(fa_cuda_masks_rewrite(&params, 4096, text, sizeof(text), &unused),
		                 0);
		assert_true(params.causal);
	}
}

static const struct fa_cuda_chip hopper = { .arch = 90,
	                                    .shared_bytes_max = 232448,
	                                    .l2_bytes = 50 << 20,
	                                    .sms = 132,
	                                    .workspace = true },
				 ada = { .arch = 89, .shared_bytes_max = 101376, .sms = 128 };

static void refuse_plan(const struct fa_attention_params *params, const char *wanted)
{
	struct fa_attention_params rewritten = *params;
	struct fa_cuda_launch launch;
	uint32_t *lengths = NULL;
	char text[256] = "";

	if (fa_cuda_masks_rewrite(&rewritten, 4096, text, sizeof(text), &lengths) == 0)
		assert_int_equal(
			fa_cuda_attention_plan(&hopper, &rewritten, text, sizeof(text), &launch),
			-ENOTSUP);
	assert_string_equal(text, wanted);
}

/* Blocks, patterns and bits take a kernel of their own, with all numbers of the request. */
static void test_masks(void **state)
{
	static const int32_t lists[8];
	static const uint32_t words[8];
	static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_F16, FA_ATTENTION_BF16 };
	static const int32_t dims[] = { 64, 80, 128, 192, 256 };
	struct fa_attention_params params = dense(2, 1000, 3000, 0), other;
	struct fa_cuda_launch launch;
	char text[256] = "";

	params.scale = 0.125f;
	params.blocks = (struct fa_attention_blocks){ 128, 64, lists, lists + 4, 4, 1, 2, 3, 5 };
	params.bits = (struct fa_attention_bits){ words, 94, 6, 7, 8 };
	params.pattern = (struct fa_attention_pattern){ 32, 1, 2, -3, 4 };
	for (int i = 0; i < 20; i++) {
		const struct fa_cuda_mask *mask = &launch.masked.mask;

		params.dtype = dtypes[i % 2];
		params.head_dim = params.head_dim_v = dims[i / 2 % 5];
		assert_int_equal(fa_cuda_attention_plan(i < 10 ? &hopper : &ada, &params, text,
		                                        sizeof(text), &launch),
		                 0);
		assert_int_equal(launch.kernel->kind, FA_CUDA_MASKED);
		/* Hopper's kernels have head dims to 128. */
		assert_int_equal(launch.kernel->keys > 0, i < 10 && dims[i / 2 % 5] <= 128);
		assert_true(launch.kernel->keys > 0 ||
		            launch.kernel->shared_bytes <= ada.shared_bytes_max);
		assert_int_equal(fa_cuda_kernel_args_bytes(launch.kernel), sizeof(launch.masked));
		assert_ptr_equal(mask->offsets, lists);
		assert_ptr_equal(mask->columns, lists + 4);
		assert_true(mask->n_columns == 4 && mask->block_rows == 128 &&
		            mask->block_keys == 64);
		assert_true(mask->offsets_batch == 1 && mask->offsets_head == 2 &&
		            mask->columns_batch == 3 && mask->columns_head == 5);
		assert_ptr_equal(mask->bits, words);
		assert_true(mask->row_words == 94 && mask->bits_batch == 6 &&
		            mask->bits_head == 7 && mask->bits_row == 8);
		assert_true(mask->pattern_tokens == 32 && mask->pattern_local == 1 &&
		            mask->pattern_stride == 2 && mask->pattern_step == -3 &&
		            mask->pattern_first == 4);
	}
	other = params;
	other.dtype = FA_ATTENTION_F32;
	other.head_dim = 64;
	refuse_plan(&other,
	            "block-sparse masks are not supported on a GPU with dtype 1 and head_dim "
	            "64: fp16 or bf16, and at most 256");
	other = params;
	other.blocks.rows = 0;
	other.head_dim = 512;
	refuse_plan(&other,
	            "patterns of blocks are not supported on a GPU with dtype 3 and head_dim "
	            "512: fp16 or bf16, and at most 256");
	other = params;
	other.chunk_tokens = 128;
	refuse_plan(&other, "chunk_tokens 128 is not supported on a GPU together with block-sparse "
	                    "masks");
	other = params;
	other.seqlen_k = 64 * 8192 + 1;
	refuse_plan(&other,
	            "seqlen_k 524289 has 8193 key blocks of 64, GPU kernels take at most 8192");
}

static bool is_for_hopper(const struct fa_attention_params *params)
{
	const struct fa_cuda_kernel *kernel = fa_cuda_attention_kernel(&hopper, params);

	assert_non_null(kernel);
	assert_int_equal(kernel->kind, FA_CUDA_MASKED);
	return kernel->keys > 0;
}

/* Where Hopper's kernels with masks do not cover a request, the plan has a portable kernel. */
static void test_hopper(void **state)
{
	static const int32_t lists[8];
	static const uint32_t words[8], lengths[3] = { 0, 1000, 2000 };
	static const float values[64] = { 1 };
	struct fa_attention_params params = dense(2, 1000, 3000, 0), other;
	struct fa_cuda_launch launch;
	char text[256] = "";

	params.scale = 0.125f;
	params.blocks = (struct fa_attention_blocks){ 64, 128, lists, lists + 4, 4, 0, 0, 0, 0 };
	assert_true(is_for_hopper(&params));
	assert_int_equal(fa_cuda_attention_plan(&hopper, &params, text, sizeof(text), &launch), 0);
	/* A tile is loaded in halves. */
	assert_int_equal(launch.maps[FA_CUDA_MAP_K].box[1], 64);
	assert_int_equal(launch.maps[FA_CUDA_MAP_V].box[1], 64);
	assert_int_equal(launch.maps[FA_CUDA_MAP_Q].box[1], 64);

	other = params;
	other.sinks = values;
	assert_true(is_for_hopper(&other));
	other.softcap = 30;
	assert_false(is_for_hopper(&other));
	other = params;
	other.alibi_slopes = values;
	assert_false(is_for_hopper(&other));
	other = params;
	other.scale = -1;
	assert_false(is_for_hopper(&other));
	other = params;
	other.cu_seqlens_q = other.cu_seqlens_k = lengths;
	assert_false(is_for_hopper(&other));
	other = params;
	other.q.data = (void *)(uintptr_t)2;
	assert_false(is_for_hopper(&other));

	other = params;
	other.pattern = (struct fa_attention_pattern){ 16, 1, 2, 0, 0 };
	other.seqlen_k = 131072;
	assert_true(is_for_hopper(&other));
	other.seqlen_k++;
	assert_false(is_for_hopper(&other));
	other = params;
	other.blocks.rows = 0;
	other.bits = (struct fa_attention_bits){ words, 94, 6, 7, 8 };
	other.seqlen_k = 64 * 8192;
	assert_true(is_for_hopper(&other));
	other.seqlen_k++;
	assert_false(is_for_hopper(&other));
}

static struct fa_cuda_launch plan_on_hopper(const struct fa_attention_params *params)
{
	struct fa_cuda_launch launch;
	char text[256] = "";

	assert_int_equal(fa_attention_check(params, text, sizeof(text)), 0);
	assert_int_equal(fa_cuda_attention_plan(&hopper, params, text, sizeof(text), &launch), 0);
	assert_true(launch.kernel->keys > 0);
	return launch;
}

/* The estimate of a launch's time, by which it yields, does not trust lists: they may name each key
 * block for all rows, whatever the number of columns. Patterns hide what they hide. */
static void test_work(void **state)
{
	static const int32_t lists[8];
	struct fa_attention_params params = dense(2, 65536, 65536, 0), other;
	struct fa_cuda_launch launch;
	uint64_t all, sparse;
	uint32_t grid;

	(void)state;
	params.scale = 0.125f;
	params.blocks = (struct fa_attention_blocks){ 128, 128, lists, lists + 4, 262144 };
	launch = plan_on_hopper(&params);
	all = launch.work_ns;
	grid = launch.grid;
	params.blocks.n_columns = 512;
	launch = plan_on_hopper(&params);
	assert_int_equal(launch.work_ns, all);
	/* The number of thread blocks is a matter of speed. */
	assert_true(launch.grid < grid);

	params.blocks = (struct fa_attention_blocks){ 0 };
	params.pattern = (struct fa_attention_pattern){ 64, 16, 64, 1, 0 };
	sparse = plan_on_hopper(&params).work_ns;
	assert_true(sparse > 0 && sparse < all / 10);
	/* All later keys are local. */
	other = params;
	other.causal = false;
	assert_int_equal(plan_on_hopper(&other).work_ns, 2 * all);
	/* A block of all keys, which the stride meets. */
	other = params;
	other.pattern = (struct fa_attention_pattern){ 65536, 0, 1 << 30, -1, 0 };
	assert_int_equal(plan_on_hopper(&other).work_ns, all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),   cmocka_unit_test(test_refused),
		cmocka_unit_test(test_prefixes), cmocka_unit_test(test_masks),
		cmocka_unit_test(test_hopper),   cmocka_unit_test(test_work),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
