/*
 * One client process of the demo. It writes these lines to stdout for the driver:
 *   ready              tensors and expected results are computed
 *   running            the first request was submitted
 *   result SHAPE MEMORY DTYPE MASK ROUNDS SECONDS FLOPS ERROR FRACTION VERDICT   (with tabs)
 *   failed TEXT
 * and reads "go" and later "stop" from stdin.
 */
#pragma once

#include <stddef.h>

#define DEMO_CLIENTS 4           /* checking their results */
#define DEMO_VICTIM DEMO_CLIENTS /* killed during its request */

const char *demo_client_name(int index);

/* Returns the exit status. @data: the .npy files' folder. */
int demo_client_run(int index, const char *data);
