/* Checks of numbers that fa_attention() and fa_step_attend() share. Return -EINVAL. Pure functions
 * but for the sentence. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Refuses a window that has no effect, as @flag is not set. */
int fa_numbers_check_window(bool has_flag, const char *flag, int64_t left, int64_t right);
/* Each array may be NULL. */
int fa_numbers_check_heads(const float *alibi_slopes, const float *sinks, size_t heads);
