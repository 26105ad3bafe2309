/*
 * Selects a part of a test's cases, as all of them take long on the emulator. FAD_TEST_DRAW=K/N
 * selects the K-th of N draws, 1 <= K <= N; without it all cases run. Cases are numbered as the
 * program reaches them, and the N draws together have every case once. Single-threaded.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Counts a case; returns true if it is selected. */
bool fa_draw(void);

bool fa_draw_is_whole(void);

/* Returns the seed of random cases: FAD_TEST_SEED, or the time. */
uint64_t fa_draw_seed(void);
