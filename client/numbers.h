/* Checks that requests for attention share. Return -EINVAL. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The window has no effect if @flag is not set. */
int fa_numbers_check_window(bool has_flag, const char *flag, int64_t left, int64_t right);
/* Refuses prefix lengths that have no effect, as @flag is not set. */
int fa_numbers_check_prefixes(bool given, bool has_flag, const char *flag);
/* Checks what a message has for each of q's @heads heads. Each array may be NULL. */
int fa_numbers_check_heads(const float *alibi_slopes, const float *sinks, size_t heads);
