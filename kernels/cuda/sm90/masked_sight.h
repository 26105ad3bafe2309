/*
 * What a consumer's rows see of a tile of two halves (masked_source.h), and what a row sees that is
 * computed again.
 */
#pragma once

#include "kernels/cuda/common/mask-list.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/masked_source.h"
#include "kernels/cuda/sm90/softmax.h"

#include <stdint.h>

/* A thread's two rows, g and g + 8 of its warp, and the tile in hand. Keys are relative to origin, the
 * position of the group's first row. */
template <class C> struct fa_sm90_sight {
	uint32_t halves[2];
	int32_t origin;
	int32_t near[2];   /* the pattern's first local key, */
	int32_t near_last; /* and that of the group's last row */
	const uint32_t *bits[2];

	/* @work: its row is the group's first. */
	__device__ __forceinline__ void begin(const struct fa_cuda_masked_attention &args,
	                                      const struct fa_work &work)
	{
		const struct fa_cuda_mask &mask = args.mask;
		const int32_t row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;

		origin = work.row + work.diagonal;
		if (mask.pattern_tokens) {
#pragma unroll
			for (int r = 0; r < 2; r++)
				near[r] = fa_sm90_pattern_near(mask, origin + row + r * 8, origin);
			near_last = fa_sm90_pattern_near(mask, origin + C::GROUP_ROWS - 1, origin);
		}
		if (mask.bits) {
#pragma unroll
			for (int r = 0; r < 2; r++)
				bits[r] = mask.bits + work.sequence * mask.bits_batch +
				          work.head * mask.bits_head +
				          min(work.row + row + r * 8, work.n_q - 1) * mask.bits_row;
		}
	}

	/* Reads the words of K's tile in @stage. Returns true if it is the block's last. */
	__device__ __forceinline__ bool take(uint32_t shared, uint32_t stage)
	{
		halves[0] = fa_ld_shared(shared + C::HALVES + 8 * stage);
		halves[1] = fa_ld_shared(shared + C::HALVES + 8 * stage + 4);
		return halves[0] & FA_SM90_HALF_LAST;
	}

	/* Returns true if the group's rows may not see all of the tile. */
	__device__ __forceinline__ bool partly(const struct fa_cuda_masked_attention &args,
	                                       uint32_t group, int32_t end_key) const
	{
		bool all = !args.mask.bits;

#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int32_t key = fa_sm90_half_key(halves[h]) - origin;

			all = all && (halves[h] & FA_SM90_HALF_SEEN(group)) &&
			      key + FA_SM90_HALF_KEYS <= end_key &&
			      key + FA_SM90_HALF_KEYS - 1 <= args.attention.window_right &&
			      key >= C::GROUP_ROWS - 1 - args.attention.window_left &&
			      (fa_sm90_half_granules(halves[h]) == 15 || key >= near_last);
		}
		return !all;
	}

	/* A thread's 8 bits of a word of 32 keys: two of every 8. */
	static __device__ __forceinline__ uint32_t gather(uint32_t word)
	{
		const uint32_t pairs = word >> threadIdx.x % 4 * 2 & 0x03030303;

		return (pairs | pairs >> 6 | pairs >> 12 | pairs >> 18) & 0xff;
	}

	__device__ __forceinline__ uint32_t words(const struct fa_cuda_mask &mask, int r,
	                                          int32_t key) const
	{
		const int32_t at = key / 32;
		const uint32_t low = at < mask.row_words ? bits[r][at] : 0;
		const uint32_t high = at + 1 < mask.row_words ? bits[r][at + 1] : 0;

		return gather(low) | gather(high) << 8;
	}

	/* Returns a bit for each of the thread's elements of row @r. */
	__device__ __forceinline__ uint32_t seen(const struct fa_cuda_masked_attention &args, int r,
	                                         uint32_t group, int32_t end_key) const
	{
		const int32_t lane_key = (int32_t)(threadIdx.x % 4 * 2);
		const int32_t row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + r * 8;
		uint32_t all = 0;

#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int32_t key = fa_sm90_half_key(halves[h]);
			const int32_t first = key - origin + lane_key;
			const uint32_t granules = fa_sm90_half_granules(halves[h]);
			uint32_t some;

			some = fa_sm90_low_bits(fa_sm90_elements_before(
				       min(end_key, row + args.attention.window_right + 1) - first,
				       16)) &
			       ~fa_sm90_low_bits(fa_sm90_elements_before(
				       row - args.attention.window_left - first, 16));
			if (granules != 15)
				some &= (granules & 1) * 0xf | (granules & 2) * 0x78 |
				        (granules & 4) * 0x3c0 | (granules & 8) * 0x1e00 |
				        ~fa_sm90_low_bits(
						fa_sm90_elements_before(near[r] - first, 16));
			if (args.mask.bits)
				some &= words(args.mask, r, key);
			if (halves[h] & FA_SM90_HALF_SEEN(group))
				all |= some << 16 * h;
		}
		return all;
	}

	/* Sets logits that a row does not see to -inf. */
	__device__ __forceinline__ void hide(fa_sm90_dots<C> &dots,
	                                     const struct fa_cuda_masked_attention &args,
	                                     uint32_t group, int32_t end_key) const
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const uint32_t bits = seen(args, r, group, end_key);

#pragma unroll
			for (int i = 0; i < C::KEYS / 4; i++)
				if (!(bits >> i & 1))
					dots[i / 2 * 4 + r * 2 + i % 2] = -INFINITY;
		}
	}

	/* The key of the tile's @at-th row; @at is the first of 8. */
	__device__ __forceinline__ int32_t key_of(int32_t at) const
	{
		return fa_sm90_half_key(at < FA_SM90_HALF_KEYS ? halves[0] : halves[1]) +
		       at % FA_SM90_HALF_KEYS;
	}
};

/* What a row sees that a warp computes again (recompute.h). Its list is read again, so the row may be
 * that of a mask that the client has changed meanwhile. */
template <class C, bool LISTED = C::LISTED> struct fa_sm90_row_sight {
};

template <class C> struct fa_sm90_row_sight<C, true> {
	const struct fa_cuda_mask *mask;
	uint32_t *list; /* NULL: none */
	uint32_t shift;
	int32_t near;
	const uint32_t *bits;

	/* A warp. */
	__device__ __forceinline__ void begin(const struct fa_cuda_masked_attention &args,
	                                      const struct fa_work &work, int32_t row)
	{
		extern __shared__ __align__(1024) char shared_memory[];

		mask = &args.mask;
		list = NULL;
		if (mask->block_rows) {
			list = (uint32_t *)(shared_memory + C::ROW_LISTS_AT) +
			       (threadIdx.x / 32 - 4) * FA_CUDA_MASK_WORDS;
			__syncwarp();
			for (int32_t i = threadIdx.x % 32; i < FA_CUDA_MASK_WORDS; i += 32)
				list[i] = 0;
			__syncwarp();
			fa_masked_read_list(*mask, work, row / mask->block_rows, list);
			__syncwarp();
		}
		if (mask->pattern_tokens) {
			shift = fa_sm90_pattern_shift(*mask, work.head, args.attention.group);
			near = fa_sm90_pattern_near(*mask, row + work.diagonal, 0);
		}
		if (mask->bits)
			bits = mask->bits + work.sequence * mask->bits_batch +
			       work.head * mask->bits_head + row * mask->bits_row;
	}

	/* False: the list lacks the block of @key, which ends before block_end(). */
	__device__ __forceinline__ bool listed(int32_t key) const
	{
		const int32_t block = list ? key / mask->block_keys : 0;

		return !list || (list[block / 32] >> block % 32 & 1);
	}

	__device__ __forceinline__ int32_t block_end(int32_t key) const
	{
		return (key / mask->block_keys + 1) * mask->block_keys;
	}

	__device__ __forceinline__ bool sees(int32_t key) const
	{
		uint32_t word;

		if (!listed(key) || (mask->pattern_tokens && key < near &&
		                     !fa_sm90_pattern_strided(*mask, shift, key)))
			return false;
		if (!mask->bits)
			return true;
		/* One lane's word for all: the memory may change between two reads. */
		word = key / 32 < mask->row_words ? bits[key / 32] : 0;
		return __shfl_sync(~0u, word, 0) >> key % 32 & 1;
	}
};
