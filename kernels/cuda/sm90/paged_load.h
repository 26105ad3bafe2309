/*
 * Producer warps of decode: load the block's tiles (common/paged_segment.h) as far ahead as the
 * ring allows. A tile has four strips of 16 tokens; eight lanes copy it, each a strip of K or of V.
 * Of small strips (quantised, or 64 columns) one copy takes up to STRIPS that are adjacent in a
 * page. Eight more lanes copy scales; new tokens are copied row by row (paged_append.h). Page slots
 * are looked up for eight tiles at a time, a strip per lane, up to the last token's. C::LOADERS
 * warps take tiles in turn, each for one consumer group with its own stages.
 */
#pragma once

#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/common/paged_segment.h"
#include "kernels/cuda/ptx/bulk.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/paged_append.h"
#include "kernels/cuda/sm90/paged_config.h"

#include <stdint.h>

/* Up to eight tiles of a segment that one loader copies: every C::LOADERS-th tile. */
struct fa_sm90_paged_batch {
	const char *from; /* what this lane would copy if its page had slot 0 */
	uint32_t slot;    /* slot of the page of the strip that this lane looked up */
	uint32_t in_page; /* the number of that strip in its page, and the flags below */
	int32_t token, end;
	uint32_t head;    /* over a client's own pages: the KV head */
	bool reread;      /* other blocks read the same tiles */
	bool new_segment; /* first batch of a segment that is not the block's first */

	struct fa_sm90_paged_new_tokens new_tokens; /* C::APPENDS */
};

/* The strips of this lane's copy, or of its tile, lie in one page. */
#define FA_SM90_PAGED_COPY_WHOLE 0x100
#define FA_SM90_PAGED_TILE_WHOLE 0x200

/* @in_page: the number of this lane's strip in its page. */
template <uint32_t STRIPS>
__device__ __forceinline__ bool fa_sm90_paged_in_one_page(uint32_t in_page, uint32_t page_strips)
{
	const uint32_t before = threadIdx.x % STRIPS;

	return in_page >= before && in_page - before + STRIPS <= page_strips;
}

/* Bytes per strip: K in the first four lanes, then V, then scales. */
template <class C> __device__ __forceinline__ uint32_t fa_sm90_paged_strip_bytes(void)
{
	return FA_CUDA_PAGED_STRIP * (C::QUANTISED && threadIdx.x % 16 >= 8 ? 4 : C::PITCH);
}

/* Distance in bytes of this lane's page from the pool, or from page 0. */
template <class C>
__device__ __forceinline__ uint64_t fa_sm90_paged_place(const struct fa_cuda_paged_attention &args,
                                                        uint32_t slot)
{
	if constexpr (C::OWN)
		return slot *
		       (threadIdx.x / 4 % 2 ? fa_own_of(args).v_page : fa_own_of(args).k_page);
	else
		return (uint64_t)slot * 256;
}

template <class C>
__device__ __forceinline__ int32_t fa_sm90_paged_tiles_end(const fa_paged_segment_of<C> &segment)
{
	return segment.begin + (segment.end - segment.begin + FA_CUDA_PAGED_TILE - 1) /
	                               FA_CUDA_PAGED_TILE * FA_CUDA_PAGED_TILE;
}

template <class C>
__device__ __forceinline__ bool
fa_sm90_paged_look_up(const struct fa_cuda_paged_attention &args, fa_paged_segment_of<C> &segment,
                      int32_t &token, struct fa_sm90_paged_batch &ret_batch)
{
	const struct fa_cuda_pages &pages = args.pages;
	const uint32_t lane = threadIdx.x % 32, is_v = lane / 4 % 2;
	/* from a loader's tile to its next */
	constexpr int32_t step = C::LOADERS * FA_CUDA_PAGED_TILE;

	ret_batch.new_segment = false;
#pragma unroll 1
	while (token >= segment.end) {
		/* The loader's first tile behind the segment, relative to the segment's end. */
		const int32_t behind = C::LOADERS == 1
		                               ? 0
		                               : token - fa_sm90_paged_tiles_end<C>(segment);

		if (!segment.next(args))
			return false;
		token = segment.begin + behind;
		ret_batch.new_segment = true;
	}

	const uint32_t strip = token / FA_CUDA_PAGED_STRIP +
	                       (C::LOADERS == 1 ? lane : lane / 4 * (4 * C::LOADERS) + lane % 4);

	ret_batch.from = is_v ? pages.v : pages.k;
	if constexpr (C::OWN)
		ret_batch.head = segment.kv_head(args);
	if constexpr (C::OWN)
		ret_batch.from += segment.kv_head(args) *
		                  (is_v ? fa_own_of(args).v_head : fa_own_of(args).k_head);
	else
		ret_batch.from += (uint64_t)segment.kv_head(args) * pages.page_strips *
		                  fa_sm90_paged_strip_bytes<C>();
	if constexpr (C::QUANTISED) {
		const struct fa_cuda_paged_quantised &quantised =
			((const struct fa_cuda_paged_attention_quantised &)args).quantised;

		if (lane % 16 >= 8)
			ret_batch.from += is_v ? quantised.v_scales_at : quantised.k_scales_at;
	}
	if constexpr (C::APPENDS)
		ret_batch.new_tokens = fa_sm90_paged_new_tokens_of<C>(args, segment, is_v);
	ret_batch.slot = ret_batch.in_page = 0;
	ret_batch.reread = segment.item.row_blocks > 1;
	if ((int32_t)(strip * FA_CUDA_PAGED_STRIP) < segment.end) {
		uint32_t in_page;

		ret_batch.slot = fa_sm90_paged_slot_of<C>(args, segment.item.table_start, strip,
		                                          in_page);
		ret_batch.in_page = in_page;
		if constexpr (C::STRIPS > 1) {
			if (fa_sm90_paged_in_one_page<C::STRIPS>(in_page, pages.page_strips))
				ret_batch.in_page |= FA_SM90_PAGED_COPY_WHOLE;
		}
		if constexpr (C::QUANTISED) {
			if (fa_sm90_paged_in_one_page<4>(in_page, pages.page_strips))
				ret_batch.in_page |= FA_SM90_PAGED_TILE_WHOLE;
		}
	}
	ret_batch.token = token;
	ret_batch.end = min(segment.end, token + 8 * step);
	token = C::LOADERS == 1 ? ret_batch.end
	                        : token + (ret_batch.end - token + step - 1) / step * step;
	return true;
}

/* A whole warp. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_prefetch_q(const struct fa_cuda_paged_attention &args,
                                                         const fa_paged_segment_of<C> &segment)
{
	constexpr uint32_t lines = C::DIM * 2 / 128;

	for (uint32_t i = threadIdx.x % 32; i < C::ROWS * lines; i += 32) {
		const char *const row = fa_paged_q_row<C>(args, segment, i / lines);

		if (row && (int32_t)(i % lines * 64) < args.attention.head_dim)
			fa_prefetch(row + i % lines * 128);
	}
}

/* Issues this lane's box of a tile of @there tokens of a client's own pages. A box is a strip, with
 * tokens of its page that are past the end. */
template <class C>
__device__ __forceinline__ void fa_sm90_own_copy_box(const struct fa_cuda_maps &maps, uint32_t page,
                                                     uint32_t in_page, uint32_t head, int32_t there,
                                                     uint32_t tile, uint32_t full, uint64_t policy)
{
	const uint32_t lane = threadIdx.x % 32, quarter = lane % 4, is_v = lane / 4 % 2;

	if (lane < 8 && (int32_t)quarter * FA_CUDA_PAGED_STRIP < there)
		fa_tma_load(tile + is_v * C::K_BYTES + quarter * C::QUARTER,
		            &maps.maps[is_v ? FA_CUDA_MAP_V : FA_CUDA_MAP_K], full, 0,
		            (int32_t)(in_page % 0x100) * FA_CUDA_PAGED_STRIP, (int32_t)head,
		            (int32_t)page, policy);
}

/* Issues this lane's copy, if any, of a tile of @there tokens. @from, @flags: of the lane's
 * strip; @tile, @full: shared addresses. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_copy(const char *from, int32_t there, uint32_t flags,
                                                   bool token_scales, uint32_t tile, uint32_t full,
                                                   uint64_t policy)
{
	const uint32_t lane = threadIdx.x % 32, quarter = lane % 4, is_v = lane / 4 % 2;
	const int32_t rest = there - (int32_t)quarter * FA_CUDA_PAGED_STRIP;

	if (lane >= (token_scales ? 16 : 8) || rest <= 0)
		return;

	const bool is_scales = C::QUANTISED && lane >= 8;
	int32_t strips = C::STRIPS > 1 && flags & FA_SM90_PAGED_COPY_WHOLE ? C::STRIPS : 1, tokens;

	if (is_scales)
		strips = flags & FA_SM90_PAGED_TILE_WHOLE ? 4 : 1;
	if (quarter % strips != 0)
		return;
	tokens = min(rest, strips * FA_CUDA_PAGED_STRIP);
	if constexpr (C::QUANTISED) {
		/* One instruction for all, so that lanes diverge once. */
		const uint32_t to = is_scales ? C::SCALES + is_v * 256 + quarter * 64
		                              : is_v * C::K_BYTES + quarter * C::QUARTER;

		fa_bulk_load(tile + to, from,
		             is_scales ? (tokens + 15) / 16 * 64 : tokens * C::PITCH, full, policy);
	} else {
		fa_bulk_load(tile + is_v * C::K_BYTES + quarter * C::QUARTER, from,
		             tokens * C::PITCH, full, policy);
	}
}

/* Initialises one loader's mbarriers; by a whole warp. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_make_barriers(uint32_t shared, uint32_t loader)
{
	if (threadIdx.x % 32 == 0) {
		for (int i = 0; i < C::STAGES / C::LOADERS; i++) {
			const uint32_t at = shared + 8 * (i * C::LOADERS + loader);

			fa_mbarrier_init(at + C::FULL, 1);
			fa_mbarrier_init(at + C::EMPTY, C::TILE_WARPS);
		}
		fa_mbarrier_init_fence();
	}
	__syncwarp();
}

/* Returns how many tiles fa_sm90_paged_load_early() loads; none has new tokens. */
template <class C>
__device__ __forceinline__ int32_t fa_sm90_paged_early_tiles(
	const struct fa_cuda_paged_attention &args, const fa_paged_segment_of<C> &segment)
{
	int32_t n = (segment.end - segment.begin + FA_CUDA_PAGED_TILE - 1) / FA_CUDA_PAGED_TILE;

	if constexpr (!C::EARLY_LOADS)
		return 0;
	if constexpr (C::APPENDS) {
		if (args.attention.k.data && (int32_t)segment.item.append < segment.end)
			n = max((int32_t)segment.item.append - segment.begin, 0) /
			    FA_CUDA_PAGED_TILE;
	}
	return min(n, C::EARLY_TILES);
}

/* The producer warp copies the block's first tiles, eight lanes each. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_load_early(const struct fa_cuda_paged_attention &args,
                                                         const fa_paged_segment_of<C> &segment,
                                                         uint32_t shared)
{
	const struct fa_cuda_pages &pages = args.pages;
	const int32_t lane = threadIdx.x % 32, quarter = lane % 4, is_v = lane / 4 % 2;
	const int32_t tile = lane / 8, n = fa_sm90_paged_early_tiles<C>(args, segment);
	const int32_t token = segment.begin + tile * FA_CUDA_PAGED_TILE +
	                      quarter * FA_CUDA_PAGED_STRIP;
	const int32_t rest = segment.end - token;
	const uint32_t full = shared + C::FULL;

	if (lane < n)
		fa_mbarrier_arrive_expect(full + 8 * lane, min(segment.end - segment.begin -
		                                                       lane * FA_CUDA_PAGED_TILE,
		                                               FA_CUDA_PAGED_TILE) *
		                                                   (2 * C::PITCH));
	__syncwarp();
	if (tile < n && rest > 0) {
		uint32_t in_page;
		const uint32_t slot = fa_sm90_paged_slot_of<C>(
			args, segment.item.table_start, token / FA_CUDA_PAGED_STRIP, in_page);
		const uint64_t strips = segment.kv_head(args) * pages.page_strips + in_page;

		fa_bulk_load(shared + C::RING + tile * C::STAGE_BYTES + is_v * C::K_BYTES +
		                     quarter * C::QUARTER,
		             (is_v ? pages.v : pages.k) + (uint64_t)slot * 256 +
		                     strips * (FA_CUDA_PAGED_STRIP * C::PITCH),
		             min(rest, FA_CUDA_PAGED_STRIP) * C::PITCH, full + 8 * tile,
		             segment.item.row_blocks > 1 ? fa_bulk_policy_normal()
		                                         : fa_bulk_policy_once());
	}
	__syncwarp();
}

/* All lanes. @segment: the block's first. @maps: of a client's own pages. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_load(const struct fa_cuda_paged_attention &args,
                                                   uint32_t shared, fa_paged_segment_of<C> &segment,
                                                   const struct fa_cuda_maps *maps = NULL)
{
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t loader = C::LOADERS == 1 ? 0
	                                        : __shfl_sync(~0u, threadIdx.x / 32, 0) - C::WARPS;
	const uint64_t once = fa_bulk_policy_once(), normal = fa_bulk_policy_normal();
	struct fa_sm90_paged_batch batch, next;
	uint32_t stage = loader, parity = 1;
	bool more, token_scales = false;
	int32_t token;

	if constexpr (C::QUANTISED)
		token_scales = ((const struct fa_cuda_paged_attention_quantised &)args)
		                       .quantised.token_scales;
	token = segment.begin + (int32_t)loader * FA_CUDA_PAGED_TILE;
	if constexpr (C::EARLY_LOADS) {
		stage = (uint32_t)fa_sm90_paged_early_tiles<C>(args, segment);
		token += (int32_t)stage * FA_CUDA_PAGED_TILE;
		if (stage == C::STAGES) {
			stage = 0;
			parity = 0;
		}
	}
	more = fa_sm90_paged_look_up<C>(args, segment, token, next);
	if constexpr (C::EARLY_LOADS) {
		if (more && next.new_segment)
			fa_sm90_paged_prefetch_q<C>(args, segment);
	} else if constexpr (!C::SYNCS_AT_START) {
		fa_sm90_paged_make_barriers<C>(shared, loader);
		fa_barrier_arrive(C::INIT_COMPUTE, C::INIT_COMPUTE_THREADS);
	}

#pragma unroll 1
	while (more) {
		batch = next;

		const int32_t first = batch.token;
		uint32_t source = lane % 4; /* the lane that looked up this quarter of the tile */

#pragma unroll 1
		for (; batch.token < batch.end; batch.token += C::LOADERS * FA_CUDA_PAGED_TILE) {
			const int32_t there = min(batch.end - batch.token, FA_CUDA_PAGED_TILE);
			const uint32_t full = shared + C::FULL + 8 * stage;
			const uint32_t slot = __shfl_sync(~0u, batch.slot, source);
			const uint32_t in_page = __shfl_sync(~0u, batch.in_page, source);
			uint32_t bytes = 2 * there * C::PITCH;

			if constexpr (C::OWN)
				if (fa_own_of(args).in_boxes)
					bytes = 2 * ((there + 15) & ~15) * C::PITCH;
			if (token_scales)
				bytes += 2 * ((there + 15) / 16 * 64);
			fa_mbarrier_wait(shared + C::EMPTY + 8 * stage, parity);
			if (lane == 0)
				fa_mbarrier_arrive_expect(full, bytes);
			__syncwarp();

			const char *const from = batch.from + fa_sm90_paged_place<C>(args, slot) +
			                         in_page % 0x100 * fa_sm90_paged_strip_bytes<C>();
			const uint32_t tile = shared + C::RING + stage * C::STAGE_BYTES;
			const uint64_t policy = batch.reread ? normal : once;
			bool is_new = false;

			if constexpr (C::APPENDS) {
				is_new = batch.token + there > batch.new_tokens.begin;
				if (__builtin_expect(is_new, 0))
					fa_sm90_paged_copy_new_tokens<C>(args, batch.new_tokens,
					                                 from, batch.token, there,
					                                 tile, full, policy);
			}
			if constexpr (C::OWN) {
				if (fa_own_of(args).in_boxes) {
					fa_sm90_own_copy_box<C>(*maps, slot, in_page, batch.head,
					                        there, tile, full, policy);
					is_new = true;
				}
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
			/* Looks up the next batch while this one's first copies are in flight. */
			if (batch.token == first) {
				more = fa_sm90_paged_look_up<C>(args, segment, token, next);
				/* With two atoms at d64, ptxas would spill. */
				if constexpr (C::QUANTISED || C::DIM != 64 || C::ATOMS == 1)
					if (more && next.new_segment)
						fa_sm90_paged_prefetch_q<C>(args, segment);
			}
		}
	}
}
