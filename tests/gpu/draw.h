/*
 * Selects a part of a test's cases, as all of them take long on the emulator. FAD_TEST_DRAW=K/N
 * selects the K-th of N draws, 1 <= K <= N. Cases are numbered in the order in which the program
 * reaches them; any N in a row are in N different draws, so the N draws together have every case
 * once. Without the variable all cases run. Single-threaded.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Counts a case; returns true if it is selected. */
bool fa_draw(void);

/* Returns true if all cases are selected. */
bool fa_draw_is_whole(void);

/* Returns the seed of random cases: FAD_TEST_SEED, or the time. */
uint64_t fa_draw_seed(void);
