/*
 * Kernels that a test controls, in place of kernels/cpu: params.q.data of a request is a struct
 * fake_job, which describes its tiles and records which ran.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_job {
	int64_t n_tiles;
	size_t scratch_bytes;
	size_t workspace_bytes;    /* if not paged; 0: must have none */
	uint64_t tile_ns;          /* how long a tile sleeps */
	uint64_t begin_ns;         /* how long the begin function of a paged job sleeps */
	atomic_bool *gate;         /* NULL, or: tiles wait until this is true */
	const volatile char *read; /* NULL, or: each tile reads it */
	/* NULL, or: the begin function of a paged job reads it. */
	const volatile char *begin_read;
	struct fake_job *before; /* NULL, or: this job must have run all its tiles */

	_Atomic int64_t n_ran;
	_Atomic uint64_t first_ran_ns;
	_Atomic uint64_t ran_ns;   /* of all tiles together */
	atomic_bool wrong;         /* a tile ran twice, too early, or with bad memory */
	_Atomic uint8_t ran[1024]; /* how often each of the first tiles ran */
};

/* The workspace of a request that is not paged, since it was last begun. */
struct fake_workspace {
	struct fake_job *job;
	_Atomic int64_t n_ran; /* tiles since then */
};
