/* Each test case is in exactly one of N draws, and draws are equally large. */
#include "tests/gpu/draw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
	CASES = 1000,
};

/* In a child, as the variable is read once. Returns its exit status. */
static int draw(const char *value, bool *ret_drawn)
{
	int ends[2], status;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		bool drawn[CASES];

		if (value)
			setenv("FAD_TEST_DRAW", value, 1);
		else
			unsetenv("FAD_TEST_DRAW");
		for (int i = 0; i < CASES; i++)
			drawn[i] = fa_draw();
		_exit(write(ends[1], drawn, sizeof(drawn)) != sizeof(drawn));
	}
	close(ends[1]);
	if (read(ends[0], ret_drawn, CASES * sizeof(bool)) != CASES * sizeof(bool))
		memset(ret_drawn, 0, CASES * sizeof(bool));
	close(ends[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_partition(void **state)
{
	for (int n = 1; n <= 5; n++) {
		int of[CASES] = { 0 };

		for (int k = 1; k <= n; k++) {
			bool drawn[CASES];
			char value[16];
			int count = 0;

			snprintf(value, sizeof(value), "%d/%d", k, n);
			assert_int_equal(draw(value, drawn), 0);
			for (int i = 0; i < CASES; i++) {
				of[i] += drawn[i];
				count += drawn[i];
			}
			assert_in_range(count, CASES / n, CASES / n + 1);
		}
		for (int i = 0; i < CASES; i++)
			assert_int_equal(of[i], 1);
	}
}

/* Lengths of loops are multiples of N: a draw must not pick the same position in each. */
static void test_mixed(void **state)
{
	int turns[4] = { 0 };
	bool drawn[CASES];

	assert_int_equal(draw("1/4", drawn), 0);
	for (int i = 0; i < CASES; i++)
		turns[i % 4] += drawn[i];
	for (int turn = 0; turn < 4; turn++)
		assert_in_range(turns[turn], CASES / 32, CASES / 8);
}

static void test_whole(void **state)
{
	bool drawn[CASES];

	assert_int_equal(draw(NULL, drawn), 0);
	for (int i = 0; i < CASES; i++)
		assert_true(drawn[i]);
}

static void test_wrong(void **state)
{
	static const char *const values[] = { "", "1", "0/4", "5/4", "x/4", "1/0" };
	bool drawn[CASES];

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		assert_int_equal(draw(values[i], drawn), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_partition),
		cmocka_unit_test(test_mixed),
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_wrong),
	};

	return cmocka_run_group_tests_name("draw", tests, NULL, NULL);
}
