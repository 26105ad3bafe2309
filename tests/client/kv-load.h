/*
 * Threads that append to sequences, fork, truncate, read and free them, while the daemon,
 * which has a supervisor, dies under them again and again. Whatever was committed is there
 * afterwards, bit by bit; what was under way has happened or has not, and the library tells
 * which. A check that fails ends the process.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Two clients of two threads each. @may_drop: the device is lost now and then, and with it
 * the sequences that a step was writing to; no others.
 */
void kv_load_begin(const char *socket, bool may_drop);
/* Operations so far. */
uint64_t kv_load_progress(void);
/* Checks everything once more, says what happened, and disconnects. */
void kv_load_end(void);
