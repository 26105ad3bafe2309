/*
 * Load for a supervised daemon that dies again and again: threads append, fork, truncate, read
 * and free sequences. Committed tokens survive bit by bit; a step in flight has happened or not,
 * and the library tells which. A failed check ends the process.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Two clients with two threads each. @may_drop: the device may be lost, and with it the sequences
 * that a step was writing; no others.
 */
void kv_load_begin(const char *socket, bool may_drop);
uint64_t kv_load_progress(void);
void kv_load_end(void);
