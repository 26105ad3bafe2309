/* Prepares a step (kv/step.h). Loop thread. */
#pragma once

#include "daemon/kv/step.h"

/* Submits the preparation, if one is needed. -EBUSY (fa_kv_step_new()), -ENOMEM; errors of
 * fa_request_prepare(). */
int fa_kv_step_prepare(struct fa_kv_step *step, struct fa_error *error);

/* Returns the most words that copies of @group need. */
size_t fa_kv_step_copy_words(const struct fa_pool_step_group *group);

/* For qsort() and bsearch(). */
int fa_kv_step_compare_ids(const void *a, const void *b);
