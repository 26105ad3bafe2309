/*
 * A client process that loads a daemon with causal prefills of one prompt, bf16, 32/8 heads, head
 * dim 128, two requests in flight: the daemon always knows the next. One thread.
 */
#pragma once

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

#define FA_PREFILLER_DAEMONS 2

struct fa_prefiller_options {
	/* sockets of the daemons to load; NULL: none */
	const char *sockets[FA_PREFILLER_DAEMONS];
	uint32_t tokens;
};

struct fa_prefiller;

/* Starts the client, and waits for each daemon's first answer. */
int fa_prefiller_start(const struct fa_prefiller_options *options, struct fa_error *error,
                       struct fa_prefiller **ret_prefiller);
struct fa_prefiller *fa_prefiller_free(struct fa_prefiller *prefiller);

/* Begins to load @daemon; returns with the first answer. */
int fa_prefiller_go(struct fa_prefiller *prefiller, int daemon, struct fa_error *error);
/* Stops the load and lets requests in flight end. *ret_ns: mean time of a prefill after the
 * first answer; 0: none ended. Fails unless the last result has the same bits as the very first. */
int fa_prefiller_stop(struct fa_prefiller *prefiller, struct fa_error *error, double *ret_ns);

/* Main function of the client process: fabench --prefiller @fd. */
int fa_prefiller_main(int fd);
