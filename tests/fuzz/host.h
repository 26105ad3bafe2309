/*
 * The daemon that a fuzz target runs in its own process: loop, engine and CPU backend, with tiny
 * limits so that inputs reach them. The calling thread is the daemon's loop thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Aborts with @what, which libFuzzer reports as a finding. */
void host_demand(bool condition, const char *what);

/* Starts the daemon at the first call. Notes which descriptors are open without clients. */
void host_begin(void);

/* Returns a connected socket. @other: as another user, if the process may become one. */
int host_connect(bool other);
bool host_has_users(void);

/* Runs the daemon's loop once, without blocking. */
void host_turn(void);
/* The same, but sleeps up to 1 ms for something to do. */
void host_wait(void);

/*
 * Runs the daemon until all sessions have ended, and removes the caches that outlive sessions. Then
 * demands that requests, accounts, pages and descriptors are released, and, with @check_pool, that
 * another daemon would find nothing wrong in the pool's state.
 */
void host_end(bool check_pool);

/* Frees the daemon after a drain. Aborts if it does not stop. */
void host_stop(void);
