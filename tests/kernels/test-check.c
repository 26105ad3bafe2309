/*
 * Tests refusals and their texts, counted arithmetic, the choice of an instruction set, and numbers
 * of tiles.
 */
#include "tests/kernels/problem.h"
#include "tests/kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct fa_attention_params good = {
	.dtype = FA_ATTENTION_F32,
	.batch = 2,
	.heads = 8,
	.kv_heads = 2,
	.head_dim = 128,
	.head_dim_v = 128,
	.seqlen_q = 10,
	.seqlen_k = 20,
	.scale = 0.1f,
	.window_left = -1,
	.window_right = -1,
};

static void refused(const struct fa_attention_params *params, int error, const char *text)
{
	char got[256] = "";

	assert_int_equal(fa_attention_check(params, got, sizeof(got)), error);
	assert_string_equal(got, text);
	assert_int_equal(fa_attention_check(params, NULL, 0), error);
	/* The text is cut to fit a short buffer. */
	memset(got, '#', sizeof(got));
	assert_int_equal(fa_attention_check(params, got, 5), error);
	assert_int_equal(strlen(got), 4);
	assert_int_equal(got[5], '#');
}

#define REFUSED(error, text, ...)                                                                  \
	do {                                                                                       \
		struct fa_attention_params params = good;                                          \
                                                                                                   \
		__VA_ARGS__;                                                                       \
		refused(&params, error, text);                                                     \
	} while (0)

static void test_refusals(void **state)
{
	static const uint32_t fine[] = { 0, 5, 10 }, late[] = { 1, 5, 10 }, back[] = { 0, 5, 4 },
			      wide[] = { 0, 15, 16 };

	assert_int_equal(fa_attention_check(&good, NULL, 0), 0);
	REFUSED(-ENOTSUP, "dtype 4 is not supported: fp32 (1), fp16 (2) or bf16 (3)",
	        params.dtype = (enum fa_attention_dtype)4);
	REFUSED(-EINVAL, "batch 0 is not positive", params.batch = 0);
	REFUSED(-EINVAL, "heads -8 is not positive", params.heads = -8);
	REFUSED(-EINVAL, "kv_heads 0 is not positive", params.kv_heads = 0);
	REFUSED(-EINVAL, "heads 8 is not a multiple of kv_heads 3", params.kv_heads = 3);
	REFUSED(-EINVAL, "heads 8 is not a multiple of kv_heads 16", params.kv_heads = 16);
	REFUSED(-ENOTSUP, "head_dim 260 is not supported: at most 576, a multiple of 8",
	        params.head_dim = 260);
	REFUSED(-ENOTSUP, "head_dim 584 is not supported: at most 576, a multiple of 8",
	        params.head_dim = 584);
	REFUSED(-ENOTSUP, "head_dim 20 is not supported: at most 576, a multiple of 8",
	        params.head_dim = 20);
	REFUSED(-EINVAL, "head_dim 0 is not positive", params.head_dim = 0);
	REFUSED(-ENOTSUP, "head_dim_v 520 is not supported: at most 512, a multiple of 8",
	        params.head_dim_v = 520);
	REFUSED(-EINVAL, "head_dim_v -8 is not positive", params.head_dim_v = -8);
	REFUSED(-EINVAL, "seqlen_q -1 is negative", params.seqlen_q = -1);
	REFUSED(-ENOTSUP, "seqlen_k 4294967296 is not supported: at most 4294967295",
	        params.seqlen_k = 1ll << 32);
	REFUSED(-ENOTSUP, "heads 65544 is not supported: at most 65536", params.heads = 65544);
	REFUSED(-EINVAL, "batch 2147483647 x heads 65536 x seqlen_q 4294967295 overflows",
	        params.batch = INT32_MAX, params.heads = 65536, params.seqlen_q = UINT32_MAX);
	REFUSED(-EINVAL, "scale nan is not finite", params.scale = NAN);
	REFUSED(-EINVAL, "scale -inf is not finite", params.scale = -INFINITY);
	REFUSED(-EINVAL, "softcap -1 is not a finite number of at least 0", params.softcap = -1);
	REFUSED(-EINVAL, "softcap inf is not a finite number of at least 0",
	        params.softcap = INFINITY);
	REFUSED(-EINVAL, "window_left -2 is below -1", params.window_left = -2);
	REFUSED(-EINVAL, "window_right -9 is below -1", params.window_right = -9);
	REFUSED(-EINVAL, "chunk_tokens -1 is negative", params.chunk_tokens = -1);
	REFUSED(-EINVAL, "blocks.keys is 0, but blocks.rows is 64", params.blocks.rows = 64);
	REFUSED(-ENOTSUP, "blocks.rows 32 is not supported: 64 or 128", params.blocks.rows = 32,
	        params.blocks.keys = 64);
	REFUSED(-ENOTSUP, "blocks.keys 256 is not supported: 64 or 128", params.blocks.rows = 64,
	        params.blocks.keys = 256);
	REFUSED(-EINVAL, "blocks.n_columns -1 is not from 0 to 2147483647",
	        params.blocks.n_columns = -1);
	REFUSED(-EINVAL, "bits.row_words -1 is negative", params.bits.words = fine,
	        params.bits.row_words = -1);
	REFUSED(-EINVAL, "pattern.block_tokens 24 is not a multiple of 16",
	        params.pattern.block_tokens = 24);
	REFUSED(-EINVAL, "pattern.local_blocks -1 is negative", params.pattern.block_tokens = 16,
	        params.pattern.local_blocks = -1);
	REFUSED(-EINVAL, "pattern.vert_stride 0 is not positive", params.pattern.block_tokens = 16);
	REFUSED(-EINVAL, "pattern.first_head -1 is negative", params.pattern.block_tokens = 16,
	        params.pattern.vert_stride = 1, params.pattern.first_head = -1);
	REFUSED(-EINVAL, "cu_seqlens_q is given without cu_seqlens_k: a ragged batch needs both",
	        params.cu_seqlens_q = fine);
	REFUSED(-EINVAL, "cu_seqlens_k is given without cu_seqlens_q: a ragged batch needs both",
	        params.cu_seqlens_k = fine);
	REFUSED(-EINVAL, "cu_seqlens_q[0] is 1, not 0", params.cu_seqlens_q = late,
	        params.cu_seqlens_k = fine);
	REFUSED(-EINVAL, "cu_seqlens_k[2] 4 is below its predecessor 5", params.cu_seqlens_q = fine,
	        params.cu_seqlens_k = back);
	REFUSED(-EINVAL, "cu_seqlens_q gives sequence 0 15 tokens, more than the longest, 10",
	        params.cu_seqlens_q = wide, params.cu_seqlens_k = wide);
}

static void test_all_that_is_covered(void **state)
{
	for (int32_t dim = 8; dim <= 576; dim += 8) {
		struct fa_attention_params params = good;

		params.head_dim = dim;
		params.head_dim_v = dim <= 512 ? dim : 512;
		params.scale = -1;
		params.softcap = 3e38f;
		params.seqlen_k = dim % 16 ? 0 : UINT32_MAX;
		params.window_left = INT64_MAX;
		assert_int_equal(fa_attention_check(&params, NULL, 0), 0);
	}
}

static void test_flops(void **state)
{
	static const int64_t lengths[] = { 0, 1, 7, 20 };
	static const int64_t windows[] = { -1, 0, 3, 100, INT64_MAX };
	struct fa_attention_params params = good;
	uint32_t cu_q[] = { 0, 7, 7, 8 }, cu_k[] = { 0, 20, 21, 21 };

	for (int n = 0; n < 4 * 4 * 5 * 5 * 2; n++) {
		double pairs = 0;

		params.seqlen_q = lengths[n % 4];
		params.seqlen_k = lengths[n / 4 % 4];
		params.window_left = windows[n / 16 % 5];
		params.window_right = windows[n / 80 % 5];
		params.causal = n / 400;
		for (int64_t i = 0; i < params.seqlen_q; i++) {
			for (int64_t j = 0; j < params.seqlen_k; j++)
				pairs += reference_visible(&params, 0, i, 0, j);
		}
		assert_true(fa_attention_flops(&params) ==
		            pairs * params.batch * params.heads * 2 * (128 + 128));
	}

	for (int n = 0; n < 2000; n++) {
		const uint32_t prefixes[] = { problem_pick(0, 80), problem_pick(0, 80) };
		double pairs = 0;

		params.seqlen_q = problem_pick(0, 70);
		params.seqlen_k = problem_pick(0, 70);
		params.window_left = windows[problem_random(5)];
		params.window_right = windows[problem_random(5)];
		params.causal = problem_random(4) > 0;
		params.chunk_tokens = problem_random(3) ? problem_pick(1, 30) : 0;
		params.prefix_lengths = problem_random(3) ? prefixes : NULL;
		for (int32_t b = 0; b < params.batch; b++)
			for (int64_t i = 0; i < params.seqlen_q; i++)
				for (int64_t j = 0; j < params.seqlen_k; j++)
					pairs += reference_visible(&params, b, i, 0, j);
		assert_true(fa_attention_flops(&params) == pairs * params.heads * 2 * (128 + 128));
	}

	params.batch = 3;
	params.causal = false;
	params.window_left = params.window_right = -1;
	params.chunk_tokens = 0;
	params.prefix_lengths = NULL;
	params.cu_seqlens_q = cu_q;
	params.cu_seqlens_k = cu_k;
	assert_true(fa_attention_flops(&params) == 7.0 * 20 * 8 * 2 * 256);
}

static void test_instruction_sets(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	const struct fa_cpu_isa *isa = NULL;
	char text[200] = "";

	unsetenv("FAD_CPU_ISA");
	assert_int_equal(fa_cpu_isa_select(text, sizeof(text), &isa), 0);
	assert_ptr_equal(isa, isas[0]);
	setenv("FAD_CPU_ISA", "", 1);
	assert_int_equal(fa_cpu_isa_select(text, sizeof(text), &isa), 0);
	assert_ptr_equal(isa, isas[0]);

	isa = NULL;
	setenv("FAD_CPU_ISA", "mmx", 1);
	assert_int_equal(fa_cpu_isa_select(text, sizeof(text), &isa), -EINVAL);
	assert_non_null(strstr(text, "FAD_CPU_ISA=mmx"));
	assert_null(isa);
	unsetenv("FAD_CPU_ISA");
}

/* A causal request's last tiles see the fewest keys; a long request has enough tiles to share
 * out. */
static void test_tiles(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct fa_attention_params params = good;

	for (size_t i = 0; isas[i]; i++) {
		params.seqlen_q = params.seqlen_k = 2048;
		assert_true(fa_cpu_attention_tiles(isas[i], &params) >= 32);
		params.seqlen_q = 0;
		assert_int_equal(fa_cpu_attention_tiles(isas[i], &params), 0);
		params.seqlen_q = 1;
		assert_true(fa_cpu_attention_tiles(isas[i], &params) >= 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusals), cmocka_unit_test(test_all_that_is_covered),
		cmocka_unit_test(test_flops),    cmocka_unit_test(test_instruction_sets),
		cmocka_unit_test(test_tiles),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
