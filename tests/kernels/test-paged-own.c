/*
 * Tests attention over pages that a client manages: the checks of a request.
 */
#include "kernels/paged.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static const struct fa_paged_own good_pages = {
	.dtype = FA_ATTENTION_BF16,
	.kv_heads = 2,
	.head_dim = 64,
	.head_dim_v = 64,
	.page_tokens = 3,
	.pages = 10,
	.store = FA_PAGED_PLAIN,
};

static const struct fa_paged_own_attention good_attention = {
	.batch = 2,
	.heads = 4,
	.table_columns = 4,
	.max_q = 3,
	.total_q = 6,
	.max_k = 12,
	.scale = 0.1f,
	.window_left = -1,
	.window_right = -1,
};

#define REFUSED(error, sentence, ...)                                                              \
	do {                                                                                       \
		struct fa_paged_own pages = good_pages;                                            \
		struct fa_paged_request request = { .op = FA_PAGED_ATTEND_OWN,                     \
			                            .own_attention = good_attention };             \
		struct fa_paged_own_attention *p = &request.own_attention;                         \
		char text[256] = "";                                                               \
                                                                                                   \
		p->pages = &pages;                                                                 \
		__VA_ARGS__;                                                                       \
		assert_int_equal(fa_paged_check(&request, text, sizeof(text)), error);             \
		assert_string_equal(text, sentence);                                               \
	} while (0)

static void test_refusals(void **state)
{
	static const int32_t cu_q[3];

	REFUSED(0, "", (void)p);
	REFUSED(0, "", p->cu_q = cu_q; p->total_q = 5);
	REFUSED(0, "", pages.page_tokens = 1; pages.store = FA_PAGED_E4M3);
	REFUSED(-ENOTSUP, "dtype 9 is not supported: fp32 (1), fp16 (2) or bf16 (3)",
	        pages.dtype = (enum fa_attention_dtype)9);
	REFUSED(-EINVAL, "kv_heads 0 is not positive", pages.kv_heads = 0);
	REFUSED(-ENOTSUP, "head_dim 12 is not supported: at most 256, a multiple of 8",
	        pages.head_dim = 12);
	REFUSED(-ENOTSUP, "head_dim_v 520 is not supported: at most 512, a multiple of 8",
	        pages.head_dim_v = 520);
	REFUSED(-EINVAL, "page_tokens 0 is not positive", pages.page_tokens = 0);
	REFUSED(-ENOTSUP, "page_tokens 257 is not supported: at most 256", pages.page_tokens = 257);
	REFUSED(-EINVAL, "pages 0 is not positive", pages.pages = 0);
	REFUSED(-ENOTSUP, "store 2 is not supported in a client's pages: plain (0) or e4m3 (1)",
	        pages.store = FA_PAGED_INT8);
	REFUSED(-EINVAL, "batch 0 is not positive", p->batch = 0);
	REFUSED(-EINVAL, "heads 5 is not a multiple of kv_heads 2", p->heads = 5);
	REFUSED(-EINVAL, "max_q -1 is negative", p->max_q = -1);
	REFUSED(-ENOTSUP, "max_q 536870913 is not supported: at most 536870912",
	        p->max_q = (1 << 29) + 1);
	REFUSED(-EINVAL, "total_q -1 is negative", p->total_q = -1);
	REFUSED(-EINVAL, "max_k -1 is negative", p->max_k = -1);
	REFUSED(-ENOTSUP, "max_k 536870913 is not supported: at most 536870912",
	        p->max_k = (1 << 29) + 1);
	REFUSED(-EINVAL, "total_q 5 is not batch 2 x max_q 3, as it is without cu_q",
	        p->total_q = 5);
	REFUSED(-EINVAL, "table_columns -1 is negative", p->table_columns = -1);
	REFUSED(-EINVAL, "scale inf is not finite", p->scale = INFINITY);
	REFUSED(-EINVAL, "softcap -1 is not a finite number of at least 0", p->softcap = -1);
	REFUSED(-EINVAL, "window_left -2 is below -1", p->window_left = -2);
	REFUSED(-EINVAL, "window_right -2 is below -1", p->window_right = -2);
}

static void test_append_refusals(void **state)
{
	struct fa_paged_own pages = good_pages;
	struct fa_paged_request request = { .op = FA_PAGED_APPEND_OWN,
		                            .own_append = { .pages = &pages, .tokens = 3 } };
	char text[256] = "";

	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), 0);
	request.own_append.tokens = -1;
	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), -EINVAL);
	assert_string_equal(text, "tokens -1 is negative");
	request.own_append.tokens = 3;
	pages.pages = -1;
	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), -EINVAL);
	assert_string_equal(text, "pages -1 is not positive");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_append_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
