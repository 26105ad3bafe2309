/* Checks that all requests for attention share. They return -EINVAL. */
#pragma once

#include "client/faclient.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Without @flag a window has no effect. */
int fa_numbers_check_window(bool has_flag, const char *flag, int64_t left, int64_t right);
/* Refuses prefix lengths without @flag, which have no effect. */
int fa_numbers_check_prefixes(bool given, bool has_flag, const char *flag);
/* Refuses patterns with numbers that have no effect, or no meaning. */
int fa_numbers_check_pattern(const struct fa_block_pattern *pattern);
/* Checks arrays of q's @heads heads; each may be NULL. */
int fa_numbers_check_heads(const float *alibi_slopes, const float *sinks, size_t heads);

/* Copies a pattern to a message that has one. */
#define fa_numbers_put_pattern(wire, pattern)                                                      \
	do {                                                                                       \
		(wire)->pattern_block_tokens = (pattern)->block_tokens;                            \
		(wire)->pattern_local_blocks = (pattern)->local_blocks;                            \
		(wire)->pattern_vert_stride = (pattern)->vert_stride;                              \
		(wire)->pattern_head_step = (pattern)->head_step;                                  \
		(wire)->pattern_first_head = (pattern)->first_head;                                \
	} while (0)
