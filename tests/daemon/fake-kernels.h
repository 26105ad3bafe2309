/* Kernels that a test controls, in place of kernels/cpu: params.q.data of a request points at a
 * struct fake_job, which describes its tiles, and records which ran. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_job {
	int64_t n_tiles;
	size_t scratch_bytes;
	size_t workspace_bytes;  /* if not paged; 0: it must have none */
	uint64_t tile_ns;        /* a tile sleeps so long */
	uint64_t begin_ns;       /* so does the begin function, if paged */
	atomic_bool *gate;       /* tiles wait until it is true; or NULL */
	struct fake_job *before; /* must have run all its tiles before; or NULL */

	_Atomic int64_t n_ran;
	_Atomic uint64_t first_ran_ns;
	_Atomic uint64_t ran_ns;   /* sum of all tiles */
	atomic_bool wrong;         /* a tile ran twice, too early, or with bad memory */
	_Atomic uint8_t ran[1024]; /* of the first tiles */
};

/* The workspace of a request that is not paged, since it was last begun. */
struct fake_workspace {
	struct fake_job *job;
	_Atomic int64_t n_ran; /* tiles since then */
};
