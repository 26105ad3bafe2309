/*
 * Directories in /tmp. A process that outlives the test removes them even if the test is killed.
 * Any thread.
 */
#pragma once

#include <stddef.h>

/* Empty, with mode 0700; @size is 24 at least. */
void fa_test_dir_make(char *path, size_t size);

/* Removes a directory with its contents. "": does nothing. */
void fa_test_dir_remove(const char *path);
