/* Which keys a block of rows sees, and which of them a group's rows. */
#pragma once

#include "kernels/cuda/common/work.h"

#include <stdint.h>

/* The tiles of keys that a block of rows sees, walked from the last to the first. */
struct fa_sm90_span {
	int32_t last, count;
};

/* Of @rows rows from @row on. */
template <class C, class WORK>
__device__ __forceinline__ struct fa_sm90_span
fa_sm90_span_of(const struct fa_cuda_attention &args, const WORK &work, int32_t row, int32_t rows)
{
	int32_t begin = C::SOURCE::first(work), end = work.n_k;

	if (C::BAND) {
		const int32_t last_row = min(row + rows, work.n_q) - 1;

		begin = max(begin, row + work.diagonal - args.window_left);
		end = min(end, last_row + work.diagonal + args.window_right + 1);
	}
	if (end <= begin)
		return { 0, 0 };
	return { (end - 1) / C::KEYS, (end - 1) / C::KEYS - begin / C::KEYS + 1 };
}

/* Of the whole block. */
template <class C, class WORK>
__device__ __forceinline__ struct fa_sm90_span
fa_sm90_span_get(const struct fa_cuda_attention &args, const WORK &work)
{
	return fa_sm90_span_of<C>(args, work, work.row, C::ROWS);
}

/* Of the tiles of a block those of one group's rows, and how many of the block's come before
 * and after them. */
struct fa_sm90_own {
	struct fa_sm90_span span;
	int32_t before, after;
};

/* @span: the block's; if it has tiles, the group has at least one, so that there is an end
 * of the block for every group. */
template <class C, class WORK>
__device__ __forceinline__ struct fa_sm90_own
fa_sm90_own_get(const struct fa_cuda_attention &args, const WORK &work,
                const struct fa_sm90_span &span, int32_t row)
{
	struct fa_sm90_own own = { span, 0, 0 };

	if (C::WINDOW && C::SKIPS && span.count > 0) {
		int32_t last = span.last, count = 0;

		/* As many as the group has that sees most. */
#pragma unroll
		for (int group = 0; group < C::GROUPS; group++) {
			const int32_t first = work.row + group * C::GROUP_ROWS;
			struct fa_sm90_span seen = { span.last, 0 };

			if (first < work.n_q)
				seen = fa_sm90_span_of<C>(args, work, first, C::GROUP_ROWS);
			count = max(count, seen.count);
			if (first == row && seen.count > 0)
				last = seen.last;
		}
		own.before = min(span.last - last, span.count - count);
		own.after = span.count - count - own.before;
		own.span = { span.last - own.before, count };
	}
	if (C::APART && span.count > 0) {
		own.span = row < work.n_q ? fa_sm90_span_of<C>(args, work, row, C::GROUP_ROWS)
		                          : fa_sm90_span{ 0, 0 };
		if (own.span.count == 0)
			own.span = { span.last, 1 };
		own.before = span.last - own.span.last;
		own.after = span.count - own.before - own.span.count;
	}
	return own;
}

/* The first row of a group in the block at @row. If groups are APART, the one that has a
 * block's first rows has the next block's last: of two causal blocks each sees as many keys
 * as the others. */
template <class C>
__device__ __forceinline__ int32_t fa_sm90_group_row(int32_t row, uint32_t group, bool turned)
{
	const uint32_t place = C::APART && turned ? C::GROUPS - 1 - group : group;

	return row + (int32_t)place * C::GROUP_ROWS;
}
