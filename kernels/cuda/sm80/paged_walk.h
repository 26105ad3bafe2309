/*
 * Attention over pages for few query rows: its shape, and how blocks go through their
 * part of the work. A block has a contiguous range of all parts' tiles (paged-args.h); each
 * of its warps walks that range twice, once to load strips and, some strips behind, once
 * to compute.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/cp_async.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm80/paged_kernels.h"

#include <stdint.h>

template <class T> struct fa_paged_element {
	static constexpr int bytes = 2;
};

template <> struct fa_paged_element<float> {
	static constexpr int bytes = 4;
};

/*
 *   DIM, DIM_V  columns of Q and K, of V and O, padded with zeros
 *   ATOMS       16-row fragments
 *   WARPS       of a block; there is one block to an SM
 *   STAGES      strips of a warp's ring
 */
template <class T_, int DIM_, int DIM_V_, int ATOMS_, int WARPS_, int STAGES_>
struct fa_paged_config {
	using T = T_;
	static constexpr int DIM = DIM_, DIM_V = DIM_V_, ATOMS = ATOMS_, WARPS = WARPS_;
	static constexpr int STAGES = STAGES_, THREADS = WARPS * 32, ROWS = ATOMS * 16;
	static constexpr int BYTES = fa_paged_element<T>::bytes;
	static constexpr bool F32 = BYTES == 4;

	/* What softmax.h and product.h want to know: no pairs, tiles of one strip. */
	static constexpr int SPLIT = 1, WARP_DIM_V = DIM_V, WARP_KEYS = FA_CUDA_PAGED_STRIP;
	static constexpr uint32_t P_BYTES = 0, ROW_BYTES = 0;

	static constexpr uint32_t PITCH = FA_SM80_PAGED_PITCH(DIM, BYTES);
	static constexpr uint32_t PITCH_V = DIM_V * BYTES;
	static constexpr uint32_t K_BYTES = 16 * PITCH, STRIP_BYTES = K_BYTES + 16 * PITCH_V;
	static constexpr uint32_t MERGE_COLUMNS = FA_SM80_PAGED_MERGE_COLUMNS(ATOMS);
	static constexpr uint32_t MERGE_PITCH = FA_SM80_PAGED_MERGE_PITCH(ATOMS);

	/* The block's shared memory, in this order. */
	static constexpr uint32_t RING = 0;
	static constexpr uint32_t Q = RING + WARPS * STAGES * STRIP_BYTES;
	static constexpr uint32_t MERGE = Q + ROWS * PITCH; /* [warp][row][MERGE_PITCH] */
	static constexpr uint32_t STATS = MERGE + WARPS * ROWS * MERGE_PITCH * 4;
	static constexpr uint32_t FACTS = STATS + WARPS * ROWS * 8;
	static constexpr uint32_t SHARED_BYTES = FACTS + ROWS * 32;

	static_assert(SHARED_BYTES ==
	                      FA_SM80_PAGED_SHARED_BYTES(DIM, DIM_V, ATOMS, WARPS, STAGES, BYTES),
	              "the host's table must agree");
	static_assert(DIM % 64 == 0 && DIM_V % 64 == 0 && DIM <= 256 && DIM_V <= 256,
	              "copies are whole");
	static_assert(!F32 || ATOMS == 1, "one fragment of rows");
	static_assert(THREADS * 2 <= ROWS * MERGE_COLUMNS || ROWS * MERGE_COLUMNS % 2 == 0,
	              "pairs of columns");
};

/* A block's walk over its range, segment by segment; the same in all its threads. */
struct fa_paged_walk {
	uint32_t index, part; /* of the item; of the part in it */
	uint32_t left;        /* tiles behind the segment */
	int32_t begin, end;   /* its tokens */
	bool whole;           /* it is all of the part */
	bool first;           /* it is the block's first */
	uint32_t tile;        /* the part's first, of all */
	struct fa_cuda_paged_item item;

	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args)
	{
		const uint4 *words = (const uint4 *)(args.items + index);
		const uint4 a = words[0], b = words[1], c = words[2];

		item.tile = a.x;
		item.tiles = a.y;
		item.parts = a.z;
		item.row_blocks = a.w;
		item.first_q = b.x;
		item.n_q = b.y;
		item.n_k = b.z;
		item.begin = b.w;
		item.first = c.x;
		item.table_start = c.y;
		item.tree_start = c.z;
	}

	__device__ __forceinline__ void enter(uint32_t tile_in_part)
	{
		const uint32_t n = min(item.tiles - tile_in_part, left);
		const int32_t origin = item.begin & ~(FA_CUDA_PAGED_STRIP - 1);

		left -= n;
		tile = item.tile + part * item.tiles;
		begin = origin + tile_in_part * FA_CUDA_PAGED_TILE;
		/* Every strip has a token that is there, or its page need not be. */
		end = item.begin < item.n_k
		              ? min((int32_t)item.n_k, begin + (int32_t)n * FA_CUDA_PAGED_TILE)
		              : begin;
		whole = n == item.tiles;
	}

	__device__ __forceinline__ void start(const struct fa_cuda_paged_attention &args,
	                                      uint32_t block)
	{
		const uint32_t at = block * args.tiles_each + min(block, args.tiles_extra);
		uint32_t in_item;

		index = args.block_items[block];
		left = args.tiles_each + (block < args.tiles_extra);
		load(args);
		in_item = at - item.tile;
		part = in_item / item.tiles;
		first = true;
		enter(in_item - part * item.tiles);
	}

	/* Whether there is a segment behind this one, which is then entered. */
	__device__ __forceinline__ bool next(const struct fa_cuda_paged_attention &args)
	{
		if (left == 0)
			return false;
		if (++part == item.parts) {
			part = 0;
			index++;
			load(args);
		}
		first = false;
		enter(0);
		return true;
	}

	__device__ __forceinline__ uint32_t slice(const struct fa_cuda_paged_attention &args) const
	{
		return args.slices == 1 ? 0 : part % args.slices;
	}

	__device__ __forceinline__ uint32_t
	kv_head(const struct fa_cuda_paged_attention &args) const
	{
		return part / args.slices / item.row_blocks;
	}

	/* The part's first row, of the sequence's rows of one KV head. */
	__device__ __forceinline__ uint32_t row(const struct fa_cuda_paged_attention &args,
	                                        uint32_t rows) const
	{
		return part / args.slices % item.row_blocks * rows;
	}
};

/* The block that has a tile, of the launch's. */
__device__ __forceinline__ uint32_t fa_paged_block_of(const struct fa_cuda_paged_attention &args,
                                                      uint32_t tile)
{
	const uint32_t larger = args.tiles_extra * (args.tiles_each + 1);

	return tile < larger ? tile / (args.tiles_each + 1)
	                     : args.tiles_extra + (tile - larger) / args.tiles_each;
}

/* Copies of strips to a warp's ring, in the order in which the warp computes them. */
template <class C> struct fa_paged_loader {
	struct fa_paged_walk walk;
	bool done;
	int32_t token; /* the next strip's first */
	uint32_t slot; /* and its page */
	const char *k, *v;
	uint32_t stage; /* shared memory of the stage that it goes to */
	uint32_t ring;
	uint32_t width_v; /* bytes of V's rows in this slice */

	__device__ __forceinline__ void look_up(const struct fa_cuda_paged_attention &args)
	{
		const struct fa_cuda_pages &pages = args.pages;
		const uint32_t page = (uint32_t)((token / FA_CUDA_PAGED_STRIP) * pages.page_magic >>
		                                 32);

		slot = pages.table[walk.item.table_start + page];
	}

	/* To the warp's first strip of the segment, or of the next one that has any. */
	__device__ __forceinline__ void enter(const struct fa_cuda_paged_attention &args)
	{
		const struct fa_cuda_pages &pages = args.pages;

		for (;;) {
			token = walk.begin + threadIdx.x / 32 * FA_CUDA_PAGED_STRIP;
			if (token < walk.end)
				break;
			done = !walk.next(args);
			if (done)
				return;
		}

		const uint32_t slice = walk.slice(args);
		const uint64_t head_tokens = (uint64_t)walk.kv_head(args) * pages.page_strips *
		                             FA_CUDA_PAGED_STRIP;

		k = pages.k + head_tokens * pages.k_row;
		v = pages.v + head_tokens * pages.v_row + slice * C::PITCH_V;
		width_v = min((uint32_t)args.attention.head_dim_v * C::BYTES - slice * C::PITCH_V,
		              C::PITCH_V);
		look_up(args);
	}

	__device__ __forceinline__ void start(const struct fa_cuda_paged_attention &args,
	                                      uint32_t shared)
	{
		walk.start(args, blockIdx.x);
		ring = shared + C::RING + threadIdx.x / 32 * C::STAGES * C::STRIP_BYTES;
		stage = ring;
		done = false;
		enter(args);
	}

	/* Rows [low, high) of 16 (all, but for a PART), @width bytes each; the others, and what
	 * is past the width up to D elements, become zero. */
	template <int D, bool V, bool PART>
	__device__ __forceinline__ void copy(uint32_t to, const char *from, uint32_t row_bytes,
	                                     uint32_t width, int32_t low, int32_t high) const
	{
		constexpr int chunks = D * C::BYTES / 16; /* of a row: 8 to 64 */
		const uint32_t lane = threadIdx.x % 32;
		const uint32_t lane_row = lane / chunks, lane_chunk = lane % chunks;
		const char *at = from + lane_row * row_bytes + lane_chunk * 16;

#pragma unroll
		for (int i = 0; i < chunks / 2; i++) {
			constexpr uint32_t pitch = V ? C::PITCH_V : C::PITCH;
			const int row = i * 32 / chunks, chunk = i * 32 % chunks;
			const bool there = lane_chunk * 16 + chunk * 16 < width &&
			                   (!PART || (row + (int32_t)lane_row >= low &&
			                              row + (int32_t)lane_row < high));
			const uint32_t place = C::F32 ? lane_chunk + chunk
			                              : (lane_chunk ^ lane_row ^ (row % 8)) + chunk;

			fa_cp_async_16_zfill(to + (row + lane_row) * pitch + place * 16,
			                     at + row * row_bytes + chunk * 16, there ? 16 : 0);
		}
	}

	/* Starts the copy of the next strip, if there is one, and ends a group of copies. */
	__device__ __forceinline__ void step(const struct fa_cuda_paged_attention &args)
	{
		if (!done) {
			const struct fa_cuda_pages &pages = args.pages;
			const uint32_t strip = token / FA_CUDA_PAGED_STRIP;
			const uint32_t page = (uint32_t)(strip * pages.page_magic >> 32);
			const uint32_t in_page = strip - page * pages.page_strips;
			const int32_t low = (int32_t)walk.item.begin - token;
			const int32_t high = (int32_t)walk.item.n_k - token;
			const uint64_t place = (uint64_t)slot * 256;
			const char *const from_k = k + place + in_page * 16 * pages.k_row;
			const char *const from_v = v + place + in_page * 16 * pages.v_row;
			const uint32_t width = args.attention.head_dim * C::BYTES;

			if (low <= 0 && high >= FA_CUDA_PAGED_STRIP) {
				copy<C::DIM, false, false>(stage, from_k, pages.k_row, width, low,
				                           high);
				copy<C::DIM_V, true, false>(stage + C::K_BYTES, from_v, pages.v_row,
				                            width_v, low, high);
			} else {
				copy<C::DIM, false, true>(stage, from_k, pages.k_row, width, low,
				                          high);
				copy<C::DIM_V, true, true>(stage + C::K_BYTES, from_v, pages.v_row,
				                           width_v, low, high);
			}
			stage += C::STRIP_BYTES;
			if (stage == ring + C::STAGES * C::STRIP_BYTES)
				stage = ring;
			token += C::WARPS * FA_CUDA_PAGED_STRIP;
			if (token < walk.end) {
				look_up(args);
			} else {
				done = !walk.next(args);
				if (!done)
					enter(args);
			}
		}
		fa_cp_async_commit();
	}
};
