/*
 * The loading warp's part: it walks the block's range of tiles (sm80/paged_walk.h) as far
 * ahead as there is room. A tile of 64 tokens is eight bulk copies, of 16 tokens of K or of V
 * each, which lie in one page; a lane issues each. Slots of pages are looked up for eight
 * tiles at a time, a lane for each 16 tokens, when the first copies of the eight before have been
 * issued; but for the block's first tiles, if they come before all (fa_sm90_paged_load_first()).
 * Of the last 16 tokens only those are copied that are there, and no slot past them is looked up.
 *
 * 16 tokens of codes, or of 64 columns, are little for a copy: STRIPS of them that lie in one
 * page are one. The scales of a tile's tokens, if they have any, are copied like them by eight
 * lanes more, 64 bytes of each 16 tokens, or 256 where one page has them all.
 *
 * Rows of new tokens may come from elsewhere (paged_append.h), each by a copy of its own.
 *
 * Where one warp would be too slow for it, there are C::LOADERS, which take tiles in turn, each
 * those of one group, with stages and barriers of its own.
 */
#pragma once

#include "kernels/cuda/ptx/bulk.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm80/paged_part.h"
#include "kernels/cuda/sm80/paged_walk.h"
#include "kernels/cuda/sm90/paged_append.h"
#include "kernels/cuda/sm90/paged_config.h"

#include <stdint.h>

/* Up to eight tiles of a segment: every C::LOADERS-th from the first on. */
struct fa_sm90_paged_batch {
	const char *from;   /* what this lane copies, of slot 0: the head's first */
	uint32_t slot;      /* of another strip, the one that this lane knows of */
	uint32_t in_page;   /* where it is there, and the flags below */
	int32_t token, end; /* tokens of the batch */
	bool shared;        /* others will read the same */
	bool entered;       /* they are the first of a segment, and not the block's first */

	struct fa_sm90_paged_new fresh; /* C::APPENDS */
};

/* Of the strips in which this lane's is: as many as a copy has, or a tile, lie in one page. */
#define FA_SM90_PAGED_COPY_WHOLE 0x100
#define FA_SM90_PAGED_TILE_WHOLE 0x200

/* Whether the STRIPS that this lane's is one of lie in one page, in which it is @in_page. */
template <uint32_t STRIPS>
__device__ __forceinline__ bool fa_sm90_paged_whole(uint32_t in_page, uint32_t page_strips)
{
	const uint32_t before = threadIdx.x % STRIPS;

	return in_page >= before && in_page - before + STRIPS <= page_strips;
}

/* What the lanes copy of a strip: bytes of K in the first four, V in the next, then scales. */
template <class C> __device__ __forceinline__ uint32_t fa_sm90_paged_strip_bytes(void)
{
	return FA_CUDA_PAGED_STRIP * (C::CODES && threadIdx.x % 16 >= 8 ? 4 : C::PITCH);
}

/* Where the last tile of a segment would end. */
template <class C>
__device__ __forceinline__ int32_t fa_sm90_paged_tiles_end(const fa_paged_walk_of<C> &walk)
{
	return walk.begin + (walk.end - walk.begin + FA_CUDA_PAGED_TILE - 1) / FA_CUDA_PAGED_TILE *
	                            FA_CUDA_PAGED_TILE;
}

template <class C>
__device__ __forceinline__ bool fa_sm90_paged_look_up(const struct fa_cuda_paged_attention &args,
                                                      fa_paged_walk_of<C> &walk, int32_t &token,
                                                      struct fa_sm90_paged_batch &ret_batch)
{
	const struct fa_cuda_pages &pages = args.pages;
	const uint32_t lane = threadIdx.x % 32, is_v = lane / 4 % 2;
	/* From tile to tile. */
	constexpr int32_t step = C::LOADERS * FA_CUDA_PAGED_TILE;

	ret_batch.entered = false;
#pragma unroll 1
	while (token >= walk.end) {
		/* The tile of its own after those of the segment, of which others have some. */
		const int32_t behind = C::LOADERS == 1 ? 0
		                                       : token - fa_sm90_paged_tiles_end<C>(walk);

		if (!walk.next(args))
			return false;
		token = walk.begin + behind;
		ret_batch.entered = true;
	}

	const uint32_t strip = token / FA_CUDA_PAGED_STRIP +
	                       (C::LOADERS == 1 ? lane : lane / 4 * (4 * C::LOADERS) + lane % 4);

	ret_batch.from = (is_v ? pages.v : pages.k) + (uint64_t)walk.kv_head(args) *
	                                                      pages.page_strips *
	                                                      fa_sm90_paged_strip_bytes<C>();
	if constexpr (C::CODES) {
		const struct fa_cuda_paged_codes &codes =
			((const struct fa_cuda_paged_attention_codes &)args).codes;

		if (lane % 16 >= 8)
			ret_batch.from += is_v ? codes.v_scales_at : codes.k_scales_at;
	}
	if constexpr (C::APPENDS)
		ret_batch.fresh = fa_sm90_paged_new_of<C>(args, walk, is_v);
	ret_batch.slot = ret_batch.in_page = 0;
	ret_batch.shared = walk.item.row_blocks > 1;
	if ((int32_t)(strip * FA_CUDA_PAGED_STRIP) < walk.end) {
		uint32_t in_page;

		ret_batch.slot = fa_sm90_paged_find<C>(args, walk.item.table_start, strip, in_page);
		ret_batch.in_page = in_page;
		if constexpr (C::STRIPS > 1) {
			if (fa_sm90_paged_whole<C::STRIPS>(in_page, pages.page_strips))
				ret_batch.in_page |= FA_SM90_PAGED_COPY_WHOLE;
		}
		if constexpr (C::CODES) {
			if (fa_sm90_paged_whole<4>(in_page, pages.page_strips))
				ret_batch.in_page |= FA_SM90_PAGED_TILE_WHOLE;
		}
	}
	ret_batch.token = token;
	ret_batch.end = min(walk.end, token + 8 * step);
	token = C::LOADERS == 1 ? ret_batch.end
	                        : token + (ret_batch.end - token + step - 1) / step * step;
	return true;
}

/* Has Q's rows of the segment come, which are asked for when others get there. A whole warp's. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_touch_q(const struct fa_cuda_paged_attention &args,
                                                      const fa_paged_walk_of<C> &walk)
{
	constexpr uint32_t lines = C::DIM * 2 / 128; /* of a row */

	for (uint32_t i = threadIdx.x % 32; i < C::ROWS * lines; i += 32) {
		const char *const row = fa_paged_q_row<C>(args, walk, i / lines);

		if (row && (int32_t)(i % lines * 64) < args.attention.head_dim)
			fa_prefetch(row + i % lines * 128);
	}
}

/* Starts this lane's copy of a tile of @there tokens, if it has one. @from: its strip; the
 * other arguments but @policy: shared memory, and the strip's flags. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_copy(const char *from, int32_t there, uint32_t flags,
                                                   bool token_scales, uint32_t tile, uint32_t full,
                                                   uint64_t policy)
{
	const uint32_t lane = threadIdx.x % 32, quarter = lane % 4, is_v = lane / 4 % 2;
	const int32_t rest = there - (int32_t)quarter * FA_CUDA_PAGED_STRIP;

	if (lane >= (token_scales ? 16 : 8) || rest <= 0)
		return;

	const bool is_scales = C::CODES && lane >= 8;
	int32_t strips = C::STRIPS > 1 && flags & FA_SM90_PAGED_COPY_WHOLE ? C::STRIPS : 1, tokens;

	if (is_scales)
		strips = flags & FA_SM90_PAGED_TILE_WHOLE ? 4 : 1;
	if (quarter % strips != 0)
		return;
	tokens = min(rest, strips * FA_CUDA_PAGED_STRIP);
	if constexpr (C::CODES) {
		/* One instruction for all, which lanes take in turn. */
		const uint32_t to = is_scales ? C::SCALES + is_v * 256 + quarter * 64
		                              : is_v * C::K_BYTES + quarter * C::QUARTER;

		fa_bulk_load(tile + to, from,
		             is_scales ? (tokens + 15) / 16 * 64 : tokens * C::PITCH, full, policy);
	} else {
		fa_bulk_load(tile + is_v * C::K_BYTES + quarter * C::QUARTER, from,
		             tokens * C::PITCH, full, policy);
	}
}

/* Those of one loading warp. A whole warp's. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_make_barriers(uint32_t shared, uint32_t loader)
{
	if (threadIdx.x % 32 == 0) {
		for (int i = 0; i < C::STAGES / C::LOADERS; i++) {
			const uint32_t at = shared + 8 * (i * C::LOADERS + loader);

			fa_mbarrier_init(at + C::FULL, 1);
			fa_mbarrier_init(at + C::EMPTY, C::TAKERS);
		}
		fa_mbarrier_init_fence();
	}
	__syncwarp();
}

/* How many tiles of the block's first segment fa_sm90_paged_load_first() loads: none with new
 * tokens. @walk: where it starts. */
template <class C>
__device__ __forceinline__ int32_t fa_sm90_paged_early_tiles(
	const struct fa_cuda_paged_attention &args, const fa_paged_walk_of<C> &walk)
{
	int32_t n = (walk.end - walk.begin + FA_CUDA_PAGED_TILE - 1) / FA_CUDA_PAGED_TILE;

	if constexpr (!C::EARLY)
		return 0;
	if constexpr (C::APPENDS) {
		if (args.attention.k.data && (int32_t)walk.item.append < walk.end)
			n = max((int32_t)walk.item.append - walk.begin, 0) / FA_CUDA_PAGED_TILE;
	}
	return min(n, C::EARLY_TILES);
}

/* Starts the copies of the block's first tiles, a tile to eight lanes. It takes the loading warp
 * long to find out how it goes on from there, and until then nothing would be on its way. That
 * warp's. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_load_first(const struct fa_cuda_paged_attention &args,
                                                         const fa_paged_walk_of<C> &walk,
                                                         uint32_t shared)
{
	const struct fa_cuda_pages &pages = args.pages;
	const int32_t lane = threadIdx.x % 32, quarter = lane % 4, is_v = lane / 4 % 2;
	const int32_t tile = lane / 8, n = fa_sm90_paged_early_tiles<C>(args, walk);
	const int32_t token = walk.begin + tile * FA_CUDA_PAGED_TILE +
	                      quarter * FA_CUDA_PAGED_STRIP;
	const int32_t rest = walk.end - token;
	const uint32_t full = shared + C::FULL;

	if (lane < n)
		fa_mbarrier_arrive_expect(
			full + 8 * lane,
			min(walk.end - walk.begin - lane * FA_CUDA_PAGED_TILE, FA_CUDA_PAGED_TILE) *
				(2 * C::PITCH));
	__syncwarp();
	if (tile < n && rest > 0) {
		uint32_t in_page;
		const uint32_t slot = fa_sm90_paged_find<C>(args, walk.item.table_start,
		                                            token / FA_CUDA_PAGED_STRIP, in_page);
		const uint64_t strips = walk.kv_head(args) * pages.page_strips + in_page;

		fa_bulk_load(shared + C::RING + tile * C::STAGE_BYTES + is_v * C::K_BYTES +
		                     quarter * C::QUARTER,
		             (is_v ? pages.v : pages.k) + (uint64_t)slot * 256 +
		                     strips * (FA_CUDA_PAGED_STRIP * C::PITCH),
		             min(rest, FA_CUDA_PAGED_STRIP) * C::PITCH, full + 8 * tile,
		             walk.item.row_blocks > 1 ? fa_bulk_policy_normal()
		                                      : fa_bulk_policy_once());
	}
	__syncwarp();
}

/* A whole warp's. @walk: where it starts. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_load(const struct fa_cuda_paged_attention &args,
                                                   uint32_t shared, fa_paged_walk_of<C> &walk)
{
	const uint32_t lane = threadIdx.x % 32;
	/* The same for all threads of the warp, and the compiler is to know it. */
	const uint32_t loader = C::LOADERS == 1 ? 0
	                                        : __shfl_sync(~0u, threadIdx.x / 32, 0) - C::WARPS;
	const uint64_t once = fa_bulk_policy_once(), normal = fa_bulk_policy_normal();
	struct fa_sm90_paged_batch batch, next;
	uint32_t stage = loader, parity = 1;
	bool more, token_scales = false;
	int32_t token;

	if constexpr (C::CODES)
		token_scales =
			((const struct fa_cuda_paged_attention_codes &)args).codes.token_scales;
	token = walk.begin + (int32_t)loader * FA_CUDA_PAGED_TILE;
	if constexpr (C::EARLY) {
		stage = (uint32_t)fa_sm90_paged_early_tiles<C>(args, walk);
		token += (int32_t)stage * FA_CUDA_PAGED_TILE;
		if (stage == C::STAGES) {
			stage = 0;
			parity = 0;
		}
	}
	more = fa_sm90_paged_look_up<C>(args, walk, token, next);
	/* While slots come. */
	if constexpr (C::EARLY) {
		if (more && next.entered)
			fa_sm90_paged_touch_q<C>(args, walk);
	} else if constexpr (!C::MEETS) {
		fa_sm90_paged_make_barriers<C>(shared, loader);
		fa_barrier_arrive(C::BEGUN, C::BEGINNERS);
	}

#pragma unroll 1
	while (more) {
		batch = next;

		const int32_t first = batch.token;
		uint32_t source = lane % 4; /* the lane that knows where the tile's quarter is */

#pragma unroll 1
		for (; batch.token < batch.end; batch.token += C::LOADERS * FA_CUDA_PAGED_TILE) {
			const int32_t there = min(batch.end - batch.token, FA_CUDA_PAGED_TILE);
			const uint32_t full = shared + C::FULL + 8 * stage;
			const uint32_t slot = __shfl_sync(~0u, batch.slot, source);
			const uint32_t in_page = __shfl_sync(~0u, batch.in_page, source);
			uint32_t bytes = 2 * there * C::PITCH;

			if (token_scales)
				bytes += 2 * ((there + 15) / 16 * 64);
			fa_mbarrier_wait(shared + C::EMPTY + 8 * stage, parity);
			if (lane == 0)
				fa_mbarrier_arrive_expect(full, bytes);
			__syncwarp();

			const char *const from = batch.from + (uint64_t)slot * 256 +
			                         in_page % 0x100 * fa_sm90_paged_strip_bytes<C>();
			const uint32_t tile = shared + C::RING + stage * C::STAGE_BYTES;
			const uint64_t policy = batch.shared ? normal : once;
			bool is_new = false;

			if constexpr (C::APPENDS) {
				is_new = batch.token + there > batch.fresh.begin;
				if (__builtin_expect(is_new, 0))
					fa_sm90_paged_copy_new<C>(args, batch.fresh, from,
					                          batch.token, there, tile, full,
					                          policy);
			}
			if (!is_new)
				fa_sm90_paged_copy<C>(from, there, in_page, token_scales, tile,
				                      full, policy);
			source += 4;
			stage += C::LOADERS;
			if (stage == C::STAGES + loader) {
				stage = loader;
				parity ^= 1;
			}
			/* What comes behind the batch, as soon as its first copies are on their
			 * way. */
			if (batch.token == first) {
				more = fa_sm90_paged_look_up<C>(args, walk, token, next);
				/* With two fragments at d64 ptxas would spill beside new tokens. */
				if constexpr (C::CODES || C::DIM != 64 || C::ATOMS == 1)
					if (more && next.entered)
						fa_sm90_paged_touch_q<C>(args, walk);
			}
		}
	}
}
