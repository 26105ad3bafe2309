/*
 * Turns the fuzzer's input into choices, so that coverage guides them. After the last byte every
 * choice is 0.
 */
#pragma once

#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void choose_from(const uint8_t *bytes, size_t length);
bool choose_has_more(void);

/* Returns a number below @bound, which is at most 65536. */
uint32_t pick(uint32_t bound);

/* True once in @n times, and never after the last byte. */
bool once_in(uint32_t n);

/* Changes a number: a little, to a small one, or to a boundary value. */
uint64_t spoil_number(uint64_t number);

/* Changes one field of @message, its gates, timeout or announced descriptors included. Vectors then
 * point to static memory, which the next call changes. */
void spoil_message(struct fa_wire_message *message);
