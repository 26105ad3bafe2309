/*
 * Whether views share memory, against marked bytes: random views, and layouts that programs use.
 */
#include "schema/overlap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BYTES 8192

static uint64_t state = 1;

static int64_t below(int64_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (int64_t)((state >> 33) % (uint64_t)n);
}

static int64_t bytes_of(const struct fa_wire_view *view)
{
	return view->dtype == FA_WIRE_DTYPE_F32 ? 4 : 2;
}

static void mark(const struct fa_wire_view *view, uint64_t base, unsigned char *map)
{
	int64_t at[FA_WIRE_RANK_MAX] = { 0 }, bytes = bytes_of(view);

	for (unsigned int i = 0; i < view->rank; ++i)
		if (!view->shape[i])
			return;
	for (;;) {
		int64_t from = (int64_t)(base + view->offset);
		unsigned int i = 0;

		for (unsigned int k = 0; k < view->rank; ++k)
			from += at[k] * view->strides[k] * bytes;
		assert_true(from + bytes <= BYTES);
		memset(map + from, 1, (size_t)bytes);
		while (i < view->rank && ++at[i] == view->shape[i])
			at[i++] = 0;
		if (i == view->rank)
			return;
	}
}

static bool share(const struct fa_wire_view *a, uint64_t a_base, const struct fa_wire_view *b,
                  uint64_t b_base)
{
	static unsigned char of_a[BYTES], of_b[BYTES];

	memset(of_a, 0, sizeof(of_a));
	memset(of_b, 0, sizeof(of_b));
	mark(a, a_base, of_a);
	mark(b, b_base, of_b);
	for (int i = 0; i < BYTES; ++i)
		if (of_a[i] && of_b[i])
			return true;
	return false;
}

static struct fa_wire_view random_view(void)
{
	static const int64_t strides[] = { 0, 1, 2, 3, 4, 5, 8, 12, 16, 24, 48 };
	struct fa_wire_view view = {
		.dtype = below(2) ? FA_WIRE_DTYPE_F32 : FA_WIRE_DTYPE_BF16,
		.rank = (uint8_t)(1 + below(FA_WIRE_RANK_MAX)),
	};

	view.offset = (uint64_t)(below(100) * bytes_of(&view));
	for (unsigned int i = 0; i < view.rank; ++i) {
		view.shape[i] = below(20) ? 1 + below(5) : 0;
		view.strides[i] = strides[below((int64_t)(sizeof(strides) / sizeof(*strides)))];
	}
	view.strides[view.rank - 1] = 1;
	return view;
}

static void test_random(void **unused)
{
	int n_shared = 0;

	for (int i = 0; i < 200000; ++i) {
		const struct fa_wire_view a = random_view(), b = random_view();
		const uint64_t a_base = (uint64_t)below(300), b_base = (uint64_t)below(300);
		const bool expected = share(&a, a_base, &b, b_base);

		n_shared += expected;
		if (fa_wire_views_overlap(&a, a_base, &b, b_base) != expected)
			fail_msg("case %d: expected %d", i, expected);
	}
	assert_true(n_shared > 20000 && n_shared < 180000);
}

/* [tokens][@heads][dim] of a tensor with @row elements per token. */
static struct fa_wire_view tokens(int64_t at, int64_t n, int64_t heads, int64_t dim, int64_t row)
{
	return (struct fa_wire_view){ .offset = (uint64_t)at * 2,
		                      .dtype = FA_WIRE_DTYPE_BF16,
		                      .rank = 3,
		                      .shape = { n, heads, dim },
		                      .strides = { row, dim, 1 } };
}

static void test_layouts(void **unused)
{
	enum {
		N = 1 << 20,
		DIM = 128,
		ROW = (8 + 2 + 2 + 8) * DIM,
	};
	/* q, k, v and out side by side in each token's row */
	const struct fa_wire_view q = tokens(0, N, 8, DIM, ROW);
	const struct fa_wire_view k = tokens(8 * DIM, N, 2, DIM, ROW);
	const struct fa_wire_view out = tokens(12 * DIM, N, 8, DIM, ROW);
	struct fa_wire_view other;

	assert_false(fa_wire_views_overlap(&q, 0, &k, 0));
	assert_false(fa_wire_views_overlap(&out, 0, &q, 0));
	assert_false(fa_wire_views_overlap(&k, 0, &out, 0));
	assert_true(fa_wire_views_overlap(&q, 0, &q, 0));
	other = tokens(11 * DIM, N, 8, DIM, ROW);
	assert_false(fa_wire_views_overlap(&other, 0, &k, 0));
	assert_true(fa_wire_views_overlap(&other, 0, &out, 0));
	/* one head too many, and one that reaches into the next row */
	other = tokens(12 * DIM, N, 9, DIM, ROW);
	assert_true(fa_wire_views_overlap(&other, 0, &q, 0));
	other = tokens(12 * DIM, 1, 9, DIM, ROW);
	assert_true(fa_wire_views_overlap(&other, 0, &q, 0));
	other = tokens(12 * DIM + (int64_t)N * ROW - ROW, 1, 9, DIM, ROW);
	assert_false(fa_wire_views_overlap(&other, 0, &q, 0));
	/* the same in another buffer that starts where this memory does, or behind it */
	assert_true(fa_wire_views_overlap(&out, 4096, &out, 4096));
	assert_false(fa_wire_views_overlap(&out, 0, &out, (uint64_t)N * ROW * 2));
	assert_false(fa_wire_views_overlap(&out, (uint64_t)N * ROW * 2, &out, 0));
	/* Strides without a common measure take too long: the views count as overlapping. */
	other = tokens(0, N, 1, 8, ROW + 8);
	(void)fa_wire_views_overlap(&out, 0, &other, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_layouts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
