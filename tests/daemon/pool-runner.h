/* Random operations on a real pool, each compared with the model. */
#pragma once

#include "tests/daemon/pool-model.h"

struct runner {
	struct scene scene;
	struct model *model;
	struct fa_pool_step *steps[MODEL_STEPS];
	uint64_t stale;  /* id of a sequence that is no more */
	uint32_t unique; /* tokens that were not used yet */
	bool quarantine;
	uint64_t quota_bytes; /* of David */
	uint64_t n_done[OPS], n_failed[OPS], n_attached;
};

/* A fa_pool_quota_fn. */
int runner_quota(void *userdata, const struct fa_pool_tenant_info *held,
                 const struct fa_pool_more *more, struct fa_error *error);

void runner_init(struct runner *runner);
void runner_deinit(struct runner *runner);

void runner_choose(struct runner *runner, struct fa_test_random *random, struct op *op);
/* Only to the pool, and what came out into @op. */
void runner_run(struct runner *runner, struct op *op);
/* Both, and what came out must be what the model says. */
void runner_do(struct runner *runner, struct op *op);

/* Every sequence has the tokens that the model says, and there are no others. */
void runner_verify(struct runner *runner);
/* Ends all steps, then verifies, and all counts too. */
void runner_settle(struct runner *runner);
/* The process dies and another opens the pool. */
void runner_reopen(struct runner *runner);

/* Whether the pool has @sequence exactly so. */
bool runner_has(struct runner *runner, const struct model_sequence *sequence);
