/*
 * A crowd of client processes at one daemon, each with a stream of requests whose results
 * say whether all of them were computed, each once and in its turn: each request reads what
 * the one before it wrote, and a number that nobody has seen before.
 *
 * And two clients that are a burden to a daemon: one whose requests wait for a number that
 * never comes, and one that is stopped in the middle of its work.
 *
 * One thread starts, watches and ends it; it has not used CUDA before, as its children are
 * forked. They die with it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FA_CROWD_CLIENTS_MAX 64
#define FA_CROWD_PHASES 2
#define FA_CROWD_SAMPLES 65536 /* that are kept of a client's, in each phase */

struct fa_crowd_options {
	const char *socket;
	const char *name; /* that the clients have */
	int clients;
	uint32_t flags; /* of fa_connect() */
	uint32_t depth; /* requests in flight of each client, at most FA_CROWD_DEPTH_MAX */
	/* Before each request a client sleeps between half of this and one and a half; 0: they
	 * ask as fast as they can. */
	uint64_t rest_ns;
};

#define FA_CROWD_DEPTH_MAX 64

struct fa_crowd;

/* Starts the processes; they are connected and have had answers when this returns, and wait.
 * -errno after a sentence on stderr. */
int fa_crowd_new(const struct fa_crowd_options *options, struct fa_crowd **ret_crowd);

/* Lets them go. */
void fa_crowd_go(struct fa_crowd *crowd);

/* From now on their samples are of this phase; a negative one: of none. */
void fa_crowd_phase(struct fa_crowd *crowd, int phase);

/* Requests of client @i that have ended well and with the right result, so far. */
uint64_t fa_crowd_done(const struct fa_crowd *crowd, int i);

struct fa_crowd_sum {
	uint64_t asked, right; /* requests of all, and those with the right result */
	uint64_t wrong;        /* results that are not what they are if all run in order */
	uint64_t failed;       /* that ended with an error, or never */
};

/* Has all of them end what they have begun, and sums up. -errno: of the first client that
 * failed; @ret_sum (may be NULL) is filled all the same. */
int fa_crowd_end(struct fa_crowd *crowd, struct fa_crowd_sum *ret_sum);

/* Copies the samples of a phase, of all clients, in nanoseconds from asking to having the
 * result; returns how many. The caller frees them; NULL if there are none. After the end. */
size_t fa_crowd_samples(const struct fa_crowd *crowd, int phase, uint64_t **ret_ns);

/* Ends it if it has not ended. Takes NULL, returns NULL. */
struct fa_crowd *fa_crowd_free(struct fa_crowd *crowd);

/* The two that are a burden, when both are as bad as they get; 0: not there. */
struct fa_crowd_burden {
	pid_t gated, stopped;
};

/* -errno after a sentence on stderr. */
int fa_crowd_burden_start(const char *socket, uint32_t flags, struct fa_crowd_burden *ret_burden);
/* Kills both. */
void fa_crowd_burden_end(struct fa_crowd_burden *burden);
