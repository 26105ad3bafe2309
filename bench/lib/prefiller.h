/*
 * A client that has a daemon prefill, over and over: attention over a prompt, bf16, 32 query and
 * 8 key heads of 128, causal. It is a process of its own with tensors of its own on the GPU, and
 * has two requests in flight, so that the daemon always knows of the next one. One thread.
 */
#pragma once

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

#define FA_PREFILLER_DAEMONS 2

struct fa_prefiller_options {
	/* Of the daemons that it asks in turn; NULL: none. */
	const char *sockets[FA_PREFILLER_DAEMONS];
	uint32_t tokens;
};

struct fa_prefiller;

/* When this returns, the client has had an answer of each daemon. */
int fa_prefiller_start(const struct fa_prefiller_options *options, struct fa_error *error,
                       struct fa_prefiller **ret_prefiller);
/* Ends the process. Takes NULL, returns NULL. */
struct fa_prefiller *fa_prefiller_free(struct fa_prefiller *prefiller);

/* Has it ask the @daemon-th, and returns when the first answer is there. */
int fa_prefiller_go(struct fa_prefiller *prefiller, int daemon, struct fa_error *error);
/*
 * Lets what is in flight end. *ret_ns: what one took on the average, from the first answer until
 * this was called; 0 if there was no further one. The last result must be that of the first
 * request ever, to the bit.
 */
int fa_prefiller_stop(struct fa_prefiller *prefiller, struct fa_error *error, double *ret_ns);

/* The process itself, which is started as fabench --prefiller @fd; its exit status. */
int fa_prefiller_main(int fd);
