/* Rebuilds a pool from a stored state. Called once, first. Loop thread. */
#pragma once

#include "daemon/pool/objects.h"

struct fa_recovery {
	struct fa_pool *pool;
	fa_pool_chunk_present_fn *present; /* tells if a chunk is present; NULL: all are */
	void *userdata;
	struct fa_pool_report *report;
	struct fa_error *error;
	uint8_t *cells_used; /* [high_cells] */
	uint32_t *numbers;   /* by page index: its number in sequences, plus one; sparse */
	uint64_t numbers_bytes;
	uint32_t *slots, *cells; /* of the sequence that is being read */
	uint32_t slots_size, cells_size;
};

int fa_recover_sequences(struct fa_recovery *recovery);

int fa_pool_recover(struct fa_pool *pool, fa_pool_chunk_present_fn *present, void *userdata,
                    struct fa_pool_report *report, struct fa_error *error);
