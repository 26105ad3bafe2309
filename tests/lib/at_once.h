/*
 * Groups of tests that wait most of their time: all tests of a group run at once, each in a
 * process of its own, with the group's setup and teardown. Their output comes in the order of
 * the tests, when all have ended. With FAD_TEST_BACKEND, as on a real GPU, which all of them
 * would share, they run one after another.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* As cmocka_run_group_tests_name(): returns how many tests failed. */
#define fa_test_run_at_once(name, tests, setup, teardown)                                          \
	fa_test_run_at_once_n(name, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

int fa_test_run_at_once_n(const char *name, const struct CMUnitTest *tests, size_t n,
                          CMFixtureFunction setup, CMFixtureFunction teardown);
