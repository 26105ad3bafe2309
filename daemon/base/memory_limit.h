/*
 * How much memory this process may use: the machine's, or less by the limits of its cgroup and of
 * visible ones above it (memory.max and memory.high; version 1: memory.limit_in_bytes). Any thread.
 */
#pragma once

#include <stdint.h>

uint64_t fa_memory_limit(void);

uint64_t fa_memory_limit_free(void);

/* Returns the least limit, or UINT64_MAX. @root is put before all paths. */
uint64_t fa_memory_limit_of_cgroup(const char *root);
