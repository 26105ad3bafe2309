/* Prepares a step (kv/step.h). Loop thread. */
#pragma once

#include "daemon/kv/step.h"

/* Does nothing if none is needed. -EBUSY (fa_kv_step_new()), -ENOMEM; errors of
 * fa_request_prepare(). */
int fa_kv_step_prepare(struct fa_kv_step *step, struct fa_error *error);

size_t fa_kv_step_copy_words(const struct fa_pool_step_group *group);

int fa_kv_step_compare_ids(const void *a, const void *b);
