/*
 * The step of a copy of tokens. A write belongs to the step that has planned the tokens. A read has
 * a step of its own, which keeps the tokens in place. Loop thread.
 */
#pragma once

#include "daemon/kv/step.h"

struct fa_kv_copy {
	uint64_t sequence;
	uint64_t first, end; /* tokens */
	bool writes;
	uint32_t layer, n_layers;
};

/* The copied tokens as a step of one sequence, for kernels. Must not move. */
struct fa_kv_copy_step {
	struct fa_paged_step step;
	uint32_t cu_new[2], length, before, first, table_start;
};

/* Adds @request to the step, and finds the sequence's group. -EINVAL, and errors of
 * fa_kv_step_new() and fa_kv_step_add(). */
int fa_kv_copy_step_join(struct fa_request *request, const struct fa_kv_copy *copy,
                         struct fa_kv_copy_step *ret_step, const struct fa_kv_group **ret_group,
                         struct fa_error *error);
