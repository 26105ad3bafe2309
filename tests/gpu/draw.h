/*
 * A part of a test's cases, for kernels on the emulator, where all of them take long.
 * FAD_TEST_DRAW=K/N in the environment chooses the K-th of N draws, K from 1 to N. A case is
 * known by its number in the order in which the program reaches it: of each N cases in a row
 * one is in each draw, so that N draws together have every case once. Without the variable a
 * draw has all cases. Single-threaded.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Counts a case and returns true if it is to run. */
bool fa_draw(void);

/* Returns true if the draw has all cases. */
bool fa_draw_is_whole(void);

/* The seed of random cases: FAD_TEST_SEED, or else the time. */
uint64_t fa_draw_seed(void);
