/* What a planned step holds beside its public part. Loop thread. */
#pragma once

#include "daemon/pool/objects.h"
#include "daemon/pool/step.h"

struct fa_pool_step_private {
	struct fa_pool_step step;
	uint64_t serial;
	bool ended;
	struct fa_pool_step_part *parts; /* [n_entries] */
	uint32_t *arrays;
};
