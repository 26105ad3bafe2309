/*
 * One client of the demo, in a process of its own. It talks to the driver in
 * lines: on stdout
 *   ready              tensors are made, what should come out is known
 *   running            the first request is on its way
 *   result SHAPE MEMORY DTYPE MASK ROUNDS SECONDS FLOPS ERROR PART VERDICT   (with tabs)
 *   failed SENTENCE
 * and on stdin it gets "go", then "stop" once it is to finish.
 */
#pragma once

#include <stddef.h>

#define DEMO_CLIENTS 4           /* that check their numbers */
#define DEMO_VICTIM DEMO_CLIENTS /* the one whose request takes for ever */

const char *demo_client_name(int index);

/* Runs client @index to its end; returns the exit status. @data has the .npy files. */
int demo_client_run(int index, const char *data);
