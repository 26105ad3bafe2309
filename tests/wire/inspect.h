/* Looks at messages as a mistrustful reader does. Used by tests and fuzz targets. */
#pragma once

#include "schema/wire.h"

/*
 * NULL if both say the same (what they point to compared by content, NaN equal
 * to NaN), else the name of a field that differs.
 */
const char *fa_inspect_difference(const struct fa_wire_message *a, const struct fa_wire_message *b);

/*
 * Reads every byte that a decoded message gives or points to, and returns
 * their sum. Aborts, after a line on stderr, if anything points outside of the
 * bytes that it was decoded from, is misaligned, is not ended by a zero byte or is longer
 * than allowed.
 */
uint64_t fa_inspect_read(const struct fa_wire_message *message, const void *bytes, size_t length);
