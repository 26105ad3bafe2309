#include "client/numbers.h"

#include "client/last_error.h"
#include "common/finite.h"
#include "schema/wire.h"

#include <errno.h>

int fa_numbers_check_window(bool has_flag, const char *flag, int64_t left, int64_t right)
{
	const bool is_left = left != 0 && left != -1;

	if (has_flag || (!is_left && (right == 0 || right == -1)))
		return 0;
	return fa_error_set(-EINVAL,
	                    "window_%s is %lld, which has no effect without %s; expected the "
	                    "flag, or 0 or -1",
	                    is_left ? "left" : "right", (long long)(is_left ? left : right), flag);
}

int fa_numbers_check_prefixes(bool given, bool has_flag, const char *flag)
{
	if (!given || has_flag)
		return 0;
	return fa_error_set(-EINVAL, "prefix_lengths is given, which has no effect without %s",
	                    flag);
}

int fa_numbers_check_pattern(const struct fa_block_pattern *pattern)
{
	if (pattern->reserved)
		return fa_error_set(-EINVAL, "pattern.reserved is not 0");
	if (pattern->block_tokens > INT32_MAX || pattern->local_blocks > INT32_MAX ||
	    pattern->vert_stride > INT32_MAX || pattern->first_head > INT32_MAX)
		return fa_error_set(
			-EINVAL,
			"pattern has numbers above %d: block_tokens %u, local_blocks %u, "
			"vert_stride %u, first_head %u",
			INT32_MAX, pattern->block_tokens, pattern->local_blocks,
			pattern->vert_stride, pattern->first_head);
	if (pattern->block_tokens % 16)
		return fa_error_set(-EINVAL,
		                    "pattern.block_tokens is %u; expected a multiple of 16",
		                    pattern->block_tokens);
	if (pattern->block_tokens && !pattern->vert_stride)
		return fa_error_set(-EINVAL, "pattern.vert_stride is 0; expected at least 1");
	if (pattern->block_tokens || (!pattern->local_blocks && !pattern->vert_stride &&
	                              !pattern->head_step && !pattern->first_head))
		return 0;
	return fa_error_set(-EINVAL,
	                    "pattern has numbers, which have no effect as block_tokens is 0");
}

int fa_numbers_check_heads(const float *alibi_slopes, const float *sinks, size_t heads)
{
	size_t i;

	if ((alibi_slopes || sinks) && heads > FA_WIRE_HEADS_MAX)
		return fa_error_set(-EINVAL,
		                    "q has %zu heads; with alibi_slopes or sinks at most %u", heads,
		                    FA_WIRE_HEADS_MAX);
	i = alibi_slopes ? fa_first_not_finite(alibi_slopes, heads) : heads;
	if (i < heads)
		return fa_error_set(-EINVAL, "alibi_slopes[%zu] is %g; expected a finite number", i,
		                    (double)alibi_slopes[i]);
	i = sinks ? fa_first_bad_sink(sinks, heads) : heads;
	if (i < heads)
		return fa_error_set(-EINVAL,
		                    "sinks[%zu] is %g; expected a finite number, or -infinity for "
		                    "none",
		                    i, (double)sinks[i]);
	return 0;
}
