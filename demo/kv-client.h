/*
 * One client process of the KV demo. It writes these lines to stdout for the driver:
 *   midway             a step is in flight: kill the daemon now
 *   result TOKENS STEPS RETRIES MILLISECONDS ERROR FRACTION RESUMED VERDICT       (with tabs)
 *   failed TEXT
 * and reads "go" after the daemon's death and "stop" at the end from stdin.
 */
#pragma once

#include <stdint.h>

enum demo_role {
	DEMO_PREFILL, /* writes the text and names it */
	DEMO_DECODE,  /* continues the text */
	DEMO_FORK,    /* continues the first DEMO_FORK_AT tokens */
	DEMO_ROLES,
};

#define DEMO_FORK_AT 3001 /* in the middle of a page */
#define DEMO_CACHE "demo"
#define DEMO_SEQUENCE "demo/text"

const char *demo_role_name(enum demo_role role);

int demo_role_run(enum demo_role role);
