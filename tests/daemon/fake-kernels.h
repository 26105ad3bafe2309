/*
 * Kernels that a test controls, in place of kernels/cpu: a request's params.q.data
 * points at a struct fake_job, which says how many tiles it has and what they do,
 * and records what was run.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_job {
	int64_t n_tiles;
	size_t scratch_bytes;
	size_t workspace_bytes;  /* of one that is not paged; 0: it must have none */
	uint64_t tile_ns;        /* how long a tile sleeps */
	uint64_t begin_ns;       /* how long the beginning does, of a paged one */
	atomic_bool *gate;       /* tiles wait until it is true; NULL: none */
	struct fake_job *before; /* must have run all its tiles before; NULL: none */

	_Atomic int64_t n_ran;
	_Atomic uint64_t first_ran_ns;
	_Atomic uint64_t ran_ns;   /* sum of all tiles */
	atomic_bool wrong;         /* a tile ran twice, too early, or with bad memory */
	_Atomic uint8_t ran[1024]; /* of the first tiles */
};

/* The workspace of a request that is not paged, from the last time it was begun. */
struct fake_workspace {
	struct fake_job *job;
	_Atomic int64_t n_ran; /* tiles since then */
};
