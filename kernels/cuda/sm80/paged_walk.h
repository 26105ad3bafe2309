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
 *   PIECES      whether parts of a sequence may be merged that are apart (paged_pieces.h)
 *   DIVIDED     whether a walk knows its part's KV head, or divides for it each time; there are
 *               no slices then
 *   ROWS_IN_FP32  whether an item has so few rows of a KV head that fp32 tells their tokens
 */
template <class T_, int DIM_, int DIM_V_, int ATOMS_, int WARPS_, int STAGES_, bool PIECES_ = false>
struct fa_paged_config {
	using T = T_;
	static constexpr int DIM = DIM_, DIM_V = DIM_V_, ATOMS = ATOMS_, WARPS = WARPS_;
	static constexpr int STAGES = STAGES_, THREADS = WARPS * 32, ROWS = ATOMS * 16;
	static constexpr int BYTES = fa_paged_element<T>::bytes;
	static constexpr int STORED = BYTES; /* of an element in a page */
	static constexpr bool F32 = BYTES == 4, CODES = false, PIECES = PIECES_, DIVIDED = false,
			      ROWS_IN_FP32 = false;

	/* What paged_part.h wants to know. */
	static constexpr int JOINED = THREADS;
	static __device__ __forceinline__ void join(void)
	{
		__syncthreads();
	}
	static __device__ __forceinline__ int32_t key(uint32_t t, int i)
	{
		return 2 * t + i % 2 + i / 2 * 8;
	}

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

/* What a walk in pieces knows besides. */
template <bool PIECES> struct fa_paged_walk_piece {
};

template <> struct fa_paged_walk_piece<true> {
	struct fa_cuda_paged_piece piece;
	uint32_t behind; /* units of the part up to the segment's end */
	uint32_t place;  /* of the segment's share */
	bool again;      /* the segment before is of the same part */
};

/*
 * A block's walk over its range, segment by segment; the same in all its threads. In pieces
 * (paged_pieces.h), a segment is one unit where there are units, and whole is a part that is
 * merged with nothing.
 */
template <bool PIECES, bool DIVIDED> struct fa_paged_walk : fa_paged_walk_piece<PIECES> {
	uint32_t index, part; /* of the item; of the part in it */
	uint32_t left;        /* tiles behind the segment */
	int32_t begin, end;   /* its tokens */
	bool whole;           /* it is all of the part */
	bool first;           /* the block's range begins in it */
	uint32_t tile;        /* the part's first, of all */
	/* Of the part, if DIVIDED: to divide takes long, and code that is long to come, where
	 * everybody waits. */
	uint32_t head, row_block;
	struct fa_cuda_paged_item item;

	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args)
	{
		if constexpr (PIECES) {
			const uint4 words = *(const uint4 *)(args.pieces + index);

			this->piece.unit = words.x;
			this->piece.parts = words.y;
			this->piece.tails = words.z;
			this->piece.n_tails = words.w;
		}
		/* Few items come with the launch, sooner than from memory. */
		if (args.items_here > 0) {
			item = args.first_items[index];
			return;
		}

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
		item.append = c.w;
	}

	__device__ __forceinline__ void enter(const struct fa_cuda_paged_attention &args,
	                                      uint32_t tile_in_part)
	{
		if constexpr (PIECES)
			enter_piece(args, tile_in_part);
		else
			enter_tiles(args, tile_in_part, min(item.tiles - tile_in_part, left), 1);
	}

	__device__ __forceinline__ void enter_piece(const struct fa_cuda_paged_attention &args,
	                                            uint32_t tile_in_part)
	{
		const uint32_t unit = this->piece.unit;
		const uint32_t n = unit ? 1 : min(item.tiles - tile_in_part, left);

		enter_tiles(args, tile_in_part, n, unit ? unit : 1);
		whole = whole && this->piece.tails == FA_CUDA_PAGED_NO_TAIL;
		this->behind = tile_in_part + n;
		this->again = false;
		this->place = unit ? tile + tile_in_part : this->piece.parts + part + blockIdx.x;
	}

	/* @n units of @unit tiles each. */
	__device__ __forceinline__ void enter_tiles(const struct fa_cuda_paged_attention &args,
	                                            uint32_t tile_in_part, uint32_t n,
	                                            uint32_t unit)
	{
		const int32_t origin = item.begin & ~(FA_CUDA_PAGED_STRIP - 1);
		const int32_t from = max((int32_t)(tile_in_part - args.tiles_end), 0);
		const int32_t to = (int32_t)(tile_in_part + n - args.tiles_end);

		left -= n;
		tile = item.tile + part * item.tiles;

		if constexpr (DIVIDED) {
			head = item.row_blocks == 1 ? part : part / item.row_blocks;
			row_block = part - head * item.row_blocks;
		}
		begin = origin + from * (int32_t)unit * FA_CUDA_PAGED_TILE;
		/* Every strip has a token that is there, or its page need not be. */
		end = item.begin < item.n_k ? min((int32_t)item.n_k,
		                                  origin + to * (int32_t)unit * FA_CUDA_PAGED_TILE)
		                            : begin;
		whole = from == 0 && tile_in_part + n == item.tiles;
	}

	/* The item that has the tile @at, if there are not more than SEARCHED: of all at once, where to
	 * ask block_items first would be one wait for memory more. All are near then, too, when the
	 * walk comes to them. A whole warp's. */
	static constexpr int SEARCHED = 128;

	__device__ __forceinline__ uint32_t search(const struct fa_cuda_paged_attention &args,
	                                           uint32_t at) const
	{
		uint32_t tiles[SEARCHED / 32], n = 0;

#pragma unroll
		for (int i = 0; i < SEARCHED / 32; i++) {
			const uint32_t by = 32 * i + threadIdx.x % 32;

			tiles[i] = by < args.n_items ? args.items[by].tile : UINT32_MAX;
		}
#pragma unroll
		for (int i = 0; i < SEARCHED / 32; i++)
			n += __popc(__ballot_sync(~0u, tiles[i] <= at));
		/* The same for all threads of the warp, and the compiler is to know it. */
		return __shfl_sync(~0u, n - 1, 0);
	}

	/* The same of those that the launch carries, all looked at together: one after another, each
	 * would have to be waited for. */
	__device__ __forceinline__ uint32_t search_here(const struct fa_cuda_paged_attention &args,
	                                                uint32_t at) const
	{
		uint32_t n = 0;

#pragma unroll
		for (int i = 1; i < FA_CUDA_PAGED_ITEMS_HERE; i++)
			n += args.first_tiles[i] <= at;
		return n;
	}

	__device__ __forceinline__ void start(const struct fa_cuda_paged_attention &args,
	                                      uint32_t block)
	{
		const uint32_t at = block * args.tiles_each + min(block, args.tiles_extra);
		uint32_t in_item;

		if (args.items_here > 0) {
			index = args.items_here == 1 ? 0 : search_here(args, at);
		} else if (DIVIDED && args.n_items <= SEARCHED) {
			index = search(args, at);
		} else {
			index = args.block_items[block];
		}
		left = args.tiles_each + (block < args.tiles_extra);
		load(args);
		in_item = at - item.tile;
		part = in_item / item.tiles;
		first = true;
		enter(args, in_item - part * item.tiles);
	}

	/* Whether there is a segment behind this one, which is then entered. */
	__device__ __forceinline__ bool next(const struct fa_cuda_paged_attention &args)
	{
		/* Behind this part, what is not more has no tokens. */
		if (left <= args.tiles_end)
			return false;
		if constexpr (PIECES) {
			if (this->behind < item.tiles) {
				enter(args, this->behind);
				this->again = true;
				return true;
			}
		}
		if (++part == item.parts) {
			part = 0;
			index++;
			load(args);
		}
		first = false;
		enter(args, 0);
		return true;
	}

	__device__ __forceinline__ uint32_t slice(const struct fa_cuda_paged_attention &args) const
	{
		return DIVIDED || args.slices == 1 ? 0 : part % args.slices;
	}

	__device__ __forceinline__ uint32_t
	kv_head(const struct fa_cuda_paged_attention &args) const
	{
		if constexpr (DIVIDED)
			return head;
		else
			return part / args.slices / item.row_blocks;
	}

	/* How many rows the part has of @most. */
	__device__ __forceinline__ uint32_t rows(const struct fa_cuda_paged_attention &args,
	                                         uint32_t most) const
	{
		return min(most, item.n_q * args.attention.group - row(args, most));
	}

	/* The part's first row, of the sequence's rows of one KV head. */
	__device__ __forceinline__ uint32_t row(const struct fa_cuda_paged_attention &args,
	                                        uint32_t rows) const
	{
		if constexpr (DIVIDED)
			return row_block * rows;
		else
			return part / args.slices % item.row_blocks * rows;
	}
};

template <class C> using fa_paged_walk_of = struct fa_paged_walk<C::PIECES, C::DIVIDED>;

/* The block that has a tile, of the launch's. */
__device__ __forceinline__ uint32_t fa_paged_block_of(const struct fa_cuda_paged_attention &args,
                                                      uint32_t tile)
{
	const uint32_t larger = args.tiles_extra * (args.tiles_each + 1);

	return tile < larger ? tile / (args.tiles_each + 1)
	                     : args.tiles_extra + (tile - larger) / args.tiles_each;
}

/* The first block that computes some of a part, of which @tile is the first. */
__device__ __forceinline__ uint32_t
fa_paged_first_block_of(const struct fa_cuda_paged_attention &args, uint32_t tile)
{
	return fa_paged_block_of(args, tile + args.tiles_end);
}

/* Copies of strips to a warp's ring, in the order in which the warp computes them. */
template <class C> struct fa_paged_loader {
	fa_paged_walk_of<C> walk;
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
		width_v = min((uint32_t)args.attention.head_dim_v * C::STORED - slice * C::PITCH_V,
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
		constexpr int chunks = D * C::STORED / 16; /* of a row: 8 to 64 */
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
			uint32_t place = C::F32 ? lane_chunk + chunk
			                        : (lane_chunk ^ lane_row ^ (row % 8)) + chunk;

			if constexpr (C::CODES)
				place = C::template place<V>(row + lane_row, lane_chunk + chunk);

			fa_cp_async_16_zfill(to + (row + lane_row) * pitch + place * 16,
			                     at + row * row_bytes + chunk * 16, there ? 16 : 0);
		}
	}

	/* Of codes, the scales of a strip's tokens: eight lanes have 16 bytes each, of K and of
	 * V. Those of tokens that are not there may be anything. */
	__device__ __forceinline__ void copy_scales(const struct fa_cuda_paged_attention &args,
	                                            uint64_t place, uint32_t in_page) const
	{
		const struct fa_cuda_paged_codes &codes =
			((const struct fa_cuda_paged_attention_codes &)args).codes;
		const uint32_t lane = threadIdx.x % 32;
		const uint32_t token_in_head = (walk.kv_head(args) * args.pages.page_strips +
		                                in_page) *
		                               FA_CUDA_PAGED_STRIP;
		const char *const from = (lane < 4 ? args.pages.k + codes.k_scales_at
		                                   : args.pages.v + codes.v_scales_at) +
		                         place + token_in_head * 4 + lane % 4 * 16;

		if (codes.token_scales && lane < 8)
			fa_cp_async_16_zfill(stage + C::SCALES + lane * 16, from, 16);
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
			const uint32_t width = args.attention.head_dim * C::STORED;

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
			if constexpr (C::CODES)
				copy_scales(args, place, in_page);
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
