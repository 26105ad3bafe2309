/*
 * Load for a supervised daemon that dies again and again. Committed tokens must survive bit by bit;
 * a step in flight took effect or did not, and the library must report which. A failed check ends
 * the process.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* @may_drop: the device may be lost, together with the sequences that a step was writing. */
void kv_load_begin(const char *socket, bool may_drop);
uint64_t kv_load_progress(void);
void kv_load_end(void);
