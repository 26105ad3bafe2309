/* Runs operations on a real pool and compares it with the model. */
#pragma once

#include "tests/daemon/pool-model.h"

struct runner {
	struct scene scene;
	struct model *model;
	struct fa_pool_step *steps[MODEL_STEPS];
	uint64_t stale;  /* id of a removed sequence */
	uint32_t unique; /* next unused token */
	bool quarantine;
	bool runs; /* caches have runs of 1, 4 and 2 chunks */
	uint32_t chunk_bytes, max_chunks;
	uint64_t quota_bytes; /* David's quota */
	uint64_t n_done[OPS], n_failed[OPS], n_attached;
};

/* A fa_pool_quota_fn. */
int runner_quota(void *userdata, const struct fa_pool_tenant_info *held,
                 const struct fa_pool_more *more, struct fa_error *error);

/* @runs: with small chunks, several of which form one run of a cache. */
void runner_init(struct runner *runner, bool runs);
void runner_deinit(struct runner *runner);

void runner_choose(struct runner *runner, struct fa_test_random *random, struct op *op);
/* On the pool alone; stores the results in @op. */
void runner_run(struct runner *runner, struct op *op);
/* On the pool and the model, which must agree. */
void runner_do(struct runner *runner, struct op *op);

/* The pool must have the model's sequences and no others. */
void runner_verify(struct runner *runner);
/* Ends all steps, then verifies sequences and counts. */
void runner_settle(struct runner *runner);
/* Reopens the pool, as a new process does. */
void runner_reopen(struct runner *runner);

/* Returns true if the pool has exactly this sequence. */
bool runner_has(struct runner *runner, const struct model_sequence *sequence);
