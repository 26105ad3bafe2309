/*
 * One client of the KV demo, in a process of its own. It talks to the driver in lines, on
 * stdout
 *   middle             something of it is in progress: kill the daemon now
 *   result TOKENS STEPS AGAIN MILLISECONDS ERROR PART RESUMED VERDICT       (with tabs)
 *   failed SENTENCE
 * and on stdin it gets "go" once the daemon is dead, and "stop" once it may leave.
 */
#pragma once

#include <stdint.h>

enum demo_role {
	DEMO_PREFILL, /* writes the text and gives it a name */
	DEMO_DECODE,  /* goes on from all of it */
	DEMO_FORK,    /* goes its own way from token DEMO_FORK_AT on */
	DEMO_ROLES,
};

#define DEMO_FORK_AT 3001 /* in the middle of a page */
#define DEMO_CACHE "demo"
#define DEMO_SEQUENCE "demo/text"

const char *demo_role_name(enum demo_role role);

/* Returns the exit status. */
int demo_role_run(enum demo_role role);
