/* The heap of deadlines against a plain search. */
#include "daemon/base/deadline_heap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define N 512

static const struct fa_deadline *earliest(const struct fa_deadline *nodes)
{
	const struct fa_deadline *best = NULL;

	for (int i = 0; i < N; i++)
		if (nodes[i].linked && (!best || nodes[i].at_ns < best->at_ns))
			best = &nodes[i];
	return best;
}

static void test_random(void **state)
{
	static struct fa_deadline nodes[N];
	struct fa_deadline_heap deadlines = { 0 };
	const struct fa_deadline *expected;
	struct fa_deadline *node;

	srandom(1);
	for (int i = 0; i < 100000; i++) {
		node = &nodes[random() % N];
		if (random() % 4 == 0 && deadlines.root)
			fa_deadline_heap_remove(&deadlines, deadlines.root);
		else if (node->linked)
			fa_deadline_heap_remove(&deadlines, node);
		else
			fa_deadline_heap_insert(&deadlines, node, (uint64_t)random() % 1000);
		if (i % 16)
			continue;
		expected = earliest(nodes);
		assert_int_equal(!expected, !deadlines.root);
		if (expected)
			assert_int_equal(expected->at_ns, deadlines.root->at_ns);
	}
}

static void test_removal_twice(void **state)
{
	struct fa_deadline_heap deadlines = { 0 };
	struct fa_deadline a = { 0 }, b = { 0 };

	fa_deadline_heap_remove(&deadlines, &a);
	fa_deadline_heap_insert(&deadlines, &a, 5);
	fa_deadline_heap_insert(&deadlines, &b, 3);
	assert_ptr_equal(deadlines.root, &b);
	fa_deadline_heap_remove(&deadlines, &a);
	fa_deadline_heap_remove(&deadlines, &a);
	assert_ptr_equal(deadlines.root, &b);
	fa_deadline_heap_remove(&deadlines, &b);
	assert_null(deadlines.root);
}

/* Half a million deadlines in order, with which quadratic code would take for ever. */
static void test_many(void **state)
{
	const size_t n = 500000;
	struct fa_deadline *nodes = calloc(n, sizeof(*nodes));
	struct fa_deadline_heap deadlines = { 0 };

	assert_non_null(nodes);
	for (size_t i = 0; i < n; i++)
		fa_deadline_heap_insert(&deadlines, &nodes[i], i);
	for (size_t i = 0; i < n; i++) {
		assert_ptr_equal(deadlines.root, &nodes[i]);
		fa_deadline_heap_remove(&deadlines, &nodes[i]);
	}
	assert_null(deadlines.root);
	free(nodes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_removal_twice),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
