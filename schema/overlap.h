/* Tells whether two views share memory. Pure functions, any thread. */
#pragma once

#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * True: an element of @a, which begins @a_base bytes behind some origin plus its offset, overlaps
 * one of @b. The views are in bounds of their buffers. Exact, but for strides so unlike that an
 * answer would take long: these count as overlapping. The first function takes from @steps, which
 * bounds many comparisons together; the second has its own.
 */
bool fa_wire_views_overlap_within(const struct fa_wire_view *a, uint64_t a_base,
                                  const struct fa_wire_view *b, uint64_t b_base, int *steps);
bool fa_wire_views_overlap(const struct fa_wire_view *a, uint64_t a_base,
                           const struct fa_wire_view *b, uint64_t b_base);
