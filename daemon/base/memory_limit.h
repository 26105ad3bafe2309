/*
 * How much memory this process may use: the machine's, or less by the limits of its cgroup and of all
 * cgroups above that are visible (memory.max and memory.high; version 1: memory.limit_in_bytes). Any
 * thread.
 */
#pragma once

#include <stdint.h>

/* Reads the limit anew. */
uint64_t fa_memory_limit(void);

/* Free memory, but at most the limit. */
uint64_t fa_memory_limit_free(void);

/* The least limit of the cgroups, or UINT64_MAX. @root is put before all paths; "": none. */
uint64_t fa_memory_limit_of_cgroup(const char *root);
