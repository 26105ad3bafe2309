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

/* Begins a step of that client's. */
struct fa_step *alone_begin(const struct fa_step_item *items, uint32_t n);

/* @n numbers of bf16 between -1.7 and 1.7 that follow from *state, which goes on. */
void alone_fill(uint64_t *state, void *to, size_t n);

/* Whether the daemon has a GPU, be it the tests' own. */
bool alone_on_gpu(void);
/* What the daemon's status says of the client's session. */
uint64_t alone_status(const char *key);
