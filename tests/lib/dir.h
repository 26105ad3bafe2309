/*
 * Temporary directories in /tmp. A process that outlives the test removes them even if the test
 * is killed. Any thread.
 */
#pragma once

#include <stddef.h>

/* Makes an empty directory with mode 0700; @size must be at least 24. Fails the test on errors. */
void fa_test_dir_make(char *path, size_t size);

/* Removes the directory with its contents; "" is allowed. */
void fa_test_dir_remove(const char *path);
