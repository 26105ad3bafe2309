/* fuzz-session, for a run without libFuzzer. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

/* Stops the daemon by a client's message, at the end of the run. */
void session_drain(void);

/* Prints counts per kind of message. Returns false if less than half of all messages succeeded, or
 * none of some kind. */
bool session_report(void);
