/* The preparation of a step (kv/step.h). Loop thread. */
#pragma once

#include "daemon/kv/step.h"

/* Submits the preparation, if the step needs one. -EBUSY, as fa_kv_step_new(); -ENOMEM, and what
 * fa_request_prepare() returns. */
int fa_kv_step_prepare(struct fa_kv_step *step, struct fa_error *error);

/* At most so many words are needed for the copies of @group. */
size_t fa_kv_step_copy_words(const struct fa_pool_step_group *group);

/* Of sequence ids, for qsort() and bsearch(). */
int fa_kv_step_compare_ids(const void *a, const void *b);
