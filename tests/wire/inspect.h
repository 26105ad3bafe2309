/* Compares and checks messages, independently of schema/messages.def; for tests and fuzzing. */
#pragma once

#include "schema/wire.h"

/* Returns NULL if both are equal (pointers by content; NaN equals NaN), else the name of a field
 * that differs. */
const char *fa_inspect_difference(const struct fa_wire_message *a, const struct fa_wire_message *b);

/*
 * Reads every byte of a decoded message, also behind its pointers, and returns the sum of the
 * bytes. Aborts with a line on stderr if a pointer leads outside the decoded bytes or is
 * misaligned, or a string or vector is not terminated or too long.
 */
uint64_t fa_inspect_read(const struct fa_wire_message *message, const void *bytes, size_t length);
