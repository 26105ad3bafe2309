/* Step handles. The functions are called with the client's mutex held. */
#pragma once

#include "client/faclient.h"
#include "common/list.h"

#include <stdbool.h>
#include <stdint.h>

struct fa_step {
	/* These do not change. */
	struct fa_client *client;
	uint64_t number;
	uint32_t id, epoch, n_items;
	/* Guarded by the client's mutex. */
	bool ended;          /* its commit or abort was sent */
	struct fa_list link; /* fa_client.abandoned */
};

/* Returns -EINVAL if the step was ended, -ECONNRESET if its connection is lost. */
int fa_step_check(struct fa_step *step);
/* Returns true if the daemon has the step and was not asked to end it. */
bool fa_step_is_open(const struct fa_step *step);
/* Returns true if the connection takes StepBegin through its ring. */
bool fa_step_begins_by_ring(const struct fa_client *client);
void fa_step_forget_abandoned(struct fa_client *client);
