/*
 * Directories of a test in /tmp, which are gone when the test is, even if it is
 * killed: a process that outlives it removes what it has left. Any thread.
 */
#pragma once

#include <stddef.h>

/* Makes an empty directory that only this user may enter; its path is cut at no size
 * of at least 24. Fails the test. */
void fa_test_dir_make(char *path, size_t size);

/* Removes it with all that is in it. "" is fine. */
void fa_test_dir_remove(const char *path);
