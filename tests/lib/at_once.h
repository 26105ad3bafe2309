/*
 * Runs a group's tests at once, for groups that mostly wait: each in its own process with the
 * group's setup and teardown. With FAD_TEST_BACKEND they run one after another, as all would share
 * one GPU.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Returns the number of failed tests. */
#define fa_test_run_at_once(name, tests, setup, teardown)                                          \
	fa_test_run_at_once_n(name, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

int fa_test_run_at_once_n(const char *name, const struct CMUnitTest *tests, size_t n,
                          CMFixtureFunction setup, CMFixtureFunction teardown);
