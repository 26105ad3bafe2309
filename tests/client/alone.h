/*
 * What a group of tests has that wants no more than a daemon of its own and one client of it.
 */
#pragma once

#include "client/faclient.h"
#include "tests/lib/daemon.h"

#include <stdbool.h>
#include <stdint.h>

extern struct fa_test_daemon alone_daemon;
extern struct fa_client *alone_client;

/* Of cmocka's group. */
int alone_setup(void **state);
int alone_teardown(void **state);

/* Fails, with what the library says, if @r is an error. */
void must(int r, const char *what);

/* Whether the daemon has a GPU, be it the tests' own. */
bool alone_on_gpu(void);
/* What the daemon's status says of the client's session. */
uint64_t alone_status(const char *key);
