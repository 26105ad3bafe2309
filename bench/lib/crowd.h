/*
 * Client processes at one daemon. Each request reads the previous result and a fresh random number,
 * so results show whether all were computed, once and in order. Also two misbehaving clients: one
 * waits for a gate that never opens, one is stopped in mid-work.
 *
 * Controlled by one thread, which must not have used CUDA, as clients are forked. They die with it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FA_CROWD_CLIENTS_MAX 64
#define FA_CROWD_PHASES 2
#define FA_CROWD_SAMPLES 65536 /* per client and phase */

struct fa_crowd_options {
	const char *socket;
	const char *name; /* the clients' name */
	int clients;
	uint32_t flags; /* fa_options.flags */
	uint32_t depth; /* requests in flight per client, at most FA_CROWD_DEPTH_MAX */
	/* Each request follows a pause of 0.5 to 1.5 times this; 0: none. */
	uint64_t rest_ns;
};

#define FA_CROWD_DEPTH_MAX 64

struct fa_crowd;

/*
 * Returns 0 when all clients have had answers and wait for fa_crowd_go(), or a negative errno after
 * a message.
 */
int fa_crowd_new(const struct fa_crowd_options *options, struct fa_crowd **ret_crowd);

void fa_crowd_go(struct fa_crowd *crowd);

/* Later samples belong to this phase; negative: keep none. */
void fa_crowd_phase(struct fa_crowd *crowd, int phase);

/* Returns the number of client @i's correct answers so far. */
uint64_t fa_crowd_done(const struct fa_crowd *crowd, int i);

struct fa_crowd_sum {
	uint64_t asked, correct;
	uint64_t wrong;  /* results that differ from execution in order */
	uint64_t failed; /* clients that ended with an error or got no answer */
};

/* Lets clients finish. Returns the first client's error; always fills @ret_sum (may be NULL). */
int fa_crowd_end(struct fa_crowd *crowd, struct fa_crowd_sum *ret_sum);

/* After the end: copies a phase's latencies in ns and returns their number. The caller frees them;
 * NULL: none. */
size_t fa_crowd_samples(const struct fa_crowd *crowd, int phase, uint64_t **ret_ns);

/* Ends a running crowd. */
struct fa_crowd *fa_crowd_free(struct fa_crowd *crowd);

/* Process ids of the misbehaving clients; 0: not running. */
struct fa_crowd_burden {
	pid_t gated, stopped;
};

/* Starts both misbehaving clients and returns when both misbehave. Returns a negative errno
 * after a message. */
int fa_crowd_burden_start(const char *socket, uint32_t flags, struct fa_crowd_burden *ret_burden);
/* Kills both. */
void fa_crowd_burden_end(struct fa_crowd_burden *burden);
