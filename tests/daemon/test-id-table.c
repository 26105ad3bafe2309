#include "daemon/base/id_table.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define IDS 600
#define MANY (1u << 19)

static void test_empty(void **state)
{
	struct fa_id_table table = {};

	assert_null(fa_id_table_find(&table, 0));
	assert_null(fa_id_table_find(&table, 1));
	assert_null(fa_id_table_remove(&table, 1));
	assert_null(fa_id_table_pop(&table));
	fa_id_table_deinit(&table);
}

static void test_twice(void **state)
{
	struct fa_id_table table = {};
	int a, b;

	assert_int_equal(fa_id_table_add(&table, UINT32_MAX, &a), 0);
	assert_int_equal(fa_id_table_add(&table, UINT32_MAX, &b), -EEXIST);
	assert_ptr_equal(fa_id_table_find(&table, UINT32_MAX), &a);
	assert_ptr_equal(fa_id_table_remove(&table, UINT32_MAX), &a);
	assert_int_equal(fa_id_table_add(&table, UINT32_MAX, &b), 0);
	assert_ptr_equal(fa_id_table_pop(&table), &b);
	assert_null(fa_id_table_pop(&table));
	fa_id_table_deinit(&table);
}

static void compare(uint32_t step, unsigned int seed)
{
	struct fa_id_table table = {};
	char present[IDS] = { 0 }, values[IDS];
	size_t n = 0;

	srand(seed);
	for (int round = 0; round < 20000; ++round) {
		uint32_t i = (uint32_t)rand() % IDS, id = (i + 1) * step;

		if (rand() % 8 == 0) {
			char *value = fa_id_table_pop(&table);

			assert_int_equal(!value, !n);
			if (value) {
				assert_int_equal(present[value - values], 1);
				present[value - values] = 0;
				n--;
			}
		} else if (rand() % 2) {
			assert_int_equal(fa_id_table_add(&table, id, &values[i]),
			                 present[i] ? -EEXIST : 0);
			n += !present[i];
			present[i] = 1;
		} else {
			assert_ptr_equal(fa_id_table_remove(&table, id),
			                 present[i] ? &values[i] : NULL);
			n -= present[i];
			present[i] = 0;
		}
		assert_int_equal(table.n_used, n);
		i = (uint32_t)rand() % IDS;
		assert_ptr_equal(fa_id_table_find(&table, (i + 1) * step),
		                 present[i] ? &values[i] : NULL);
	}
	for (uint32_t i = 0; i < IDS; ++i)
		assert_ptr_equal(fa_id_table_find(&table, (i + 1) * step),
		                 present[i] ? &values[i] : NULL);
	while (n--) {
		char *value = fa_id_table_pop(&table);

		assert_non_null(value);
		assert_int_equal(present[value - values], 1);
		present[value - values] = 0;
	}
	assert_null(fa_id_table_pop(&table));
	fa_id_table_deinit(&table);
}

static void test_random(void **state)
{
	compare(1, 1);
	compare(0x9e3779b1u, 2);
	compare(1u << 20, 3);
}

/* One scan empties a large table; a scan per entry would take minutes. */
static void test_pop_all(void **state)
{
	struct fa_id_table table = {};
	clock_t start;
	char value;

	for (uint32_t id = 1; id <= MANY; ++id)
		assert_int_equal(fa_id_table_add(&table, id, &value), 0);
	start = clock();
	for (uint32_t i = 0; i < MANY; ++i) {
		assert_ptr_equal(fa_id_table_pop(&table), &value);
		if (i % 1024 == 0)
			assert_true(clock() - start < 20 * CLOCKS_PER_SEC);
	}
	assert_null(fa_id_table_pop(&table));
	assert_int_equal(fa_id_table_add(&table, 1, &value), 0);
	assert_ptr_equal(fa_id_table_pop(&table), &value);
	fa_id_table_deinit(&table);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_twice),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_pop_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
