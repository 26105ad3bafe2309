/*
 * A private daemon with one client, for test groups that need only that.
 */
#pragma once

#include "client/faclient.h"
#include "tests/lib/daemon.h"

#include <stdbool.h>
#include <stdint.h>

extern struct fa_test_daemon single_daemon;
extern struct fa_client *single_client;

int single_setup(void **state);
int single_teardown(void **state);

/* A private daemon with two clients, in place of single_client. */
extern struct fa_client *single_pair[2]; /* with and without a ring */

int single_pair_setup(void **state);
int single_pair_teardown(void **state);

void must(int r, const char *what);

struct fa_step *single_begin(const struct fa_step_item *items, uint32_t n);

/* Fills @to with @n bf16 numbers between -1.7 and 1.7, derived from @state, which advances. */
void single_fill(uint64_t *state, void *to, size_t n);

bool single_on_gpu(void);
uint64_t single_status(const char *key);
