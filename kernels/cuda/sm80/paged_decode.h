/*
 * Attention over pages for few query rows. The query heads that share a KV head are
 * packed: a part of a sequence is up to ROWS rows (token by token, head by head) of one KV
 * head. All parts' tiles of 64 tokens, one part after the other, are divided evenly among
 * the blocks as contiguous ranges (paged-args.h); what a block has of one part is a
 * segment.
 *
 * Within a segment warps take strips of 16 tokens in turn. A warp has a ring of STAGES
 * strips to itself, filled by its own cp.async, and its own maximum, sum and O of all ROWS
 * rows, so that its loop over strips has no barrier. Its loader runs STAGES - 1 strips
 * ahead, across the ends of segments. At a segment's end the warps bring their rows
 * together (barrier 0, all threads, three times and twice for each group of columns);
 * a whole part is then finished, of others the block stores its share, and whoever comes
 * last (counters of the launch's epoch) adds the shares up in their order.
 *
 * A strip's scores have the layout of mma.m16n8k16's accumulators: thread (g, t) has rows
 * g + 8 r and keys 2t, 2t + 1, 2t + 8, 2t + 9. fp32 keeps that layout on the CUDA cores.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/swizzle.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/cp_async.h"
#include "kernels/cuda/ptx/ldmatrix.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/sm80/paged_kernels.h"

#include <float.h>
#include <math.h>
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

/* What all rows of a part share about one row; 32 bytes of shared memory. */
struct fa_paged_fact {
	int32_t low, high; /* keys [low, high) are seen, apart from trees */
	int32_t position;  /* among the keys */
	int32_t token;     /* of the sequence's new ones */
	float slope;       /* of ALiBi, in units of ln 2 */
	float max, sum;    /* of the segment, then of the part */
	float unused;
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

/* A warp's rows: thread (g, t) has rows g + 8 r, row = 2 * atom + half. */
template <class C> struct fa_paged_rows {
	float offset[2 * C::ATOMS]; /* less a recent maximum; FLT_MAX at first: see forward.h */
	float sum[2 * C::ATOMS];    /* of this thread's keys */
	float out[C::ATOMS][C::DIM_V / 8][4];
};

/* dots = Q K^T. 16-bit: @q and @k are this lane's ldmatrix addresses; fp32: the tiles. */
template <class C>
__device__ __forceinline__ void fa_paged_dots(float (&dots)[C::ATOMS][2][4], uint32_t q, uint32_t k)
{
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int n = 0; n < 2; n++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				dots[a][n][e] = 0;

	if constexpr (C::F32) {
		const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll 2
		for (int d = 0; d < C::DIM; d += 4) {
			float rows[2][4], keys[4][4];

#pragma unroll
			for (int i = 0; i < 2; i++)
				*(uint4 *)rows[i] = fa_ld_shared_v4(q + (g + 8 * i) * C::PITCH +
				                                    d * 4);
#pragma unroll
			for (int j = 0; j < 4; j++)
				*(uint4 *)keys[j] = fa_ld_shared_v4(
					k + (2 * t + j % 2 + j / 2 * 8) * C::PITCH + d * 4);
#pragma unroll
			for (int i = 0; i < 2; i++)
#pragma unroll
				for (int j = 0; j < 4; j++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						dots[0][j / 2][2 * i + j % 2] = fmaf(
							rows[i][e], keys[j][e],
							dots[0][j / 2][2 * i + j % 2]);
		}
	} else {
#pragma unroll
		for (int d = 0; d < C::DIM / 16; d++) {
			uint32_t b[4];

			fa_ldmatrix_x4(b, fa_swizzle<C::DIM>::advance(k, 2 * d));
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				uint32_t rows[4];

				fa_ldmatrix_x4(rows, fa_swizzle<C::DIM>::advance(q, 2 * d) +
				                             a * 16 * C::PITCH);
				fa_mma_m16n8k16<typename C::T>(dots[a][0], rows, b[0], b[1]);
				fa_mma_m16n8k16<typename C::T>(dots[a][1], rows, b[2], b[3]);
			}
		}
	}
}

/* O += P V for the strip. 16-bit: @v is this lane's ldmatrix address; fp32: the tile. */
template <class C>
__device__ __forceinline__ void fa_paged_product(struct fa_paged_rows<C> &rows,
                                                 const float (&p)[C::ATOMS][2][4], uint32_t v)
{
	if constexpr (C::F32) {
		const uint32_t lane = threadIdx.x % 32, t = lane % 4;

#pragma unroll 4
		for (int key = 0; key < 16; key++) {
			float weight[2];

#pragma unroll
			for (int i = 0; i < 2; i++) {
				const float even = key < 8 ? p[0][0][2 * i] : p[0][1][2 * i];
				const float odd = key < 8 ? p[0][0][2 * i + 1] : p[0][1][2 * i + 1];

				weight[i] = __shfl_sync(~0u, key % 2 ? odd : even,
				                        (lane & ~3u) + key % 8 / 2);
			}
#pragma unroll
			for (int j = 0; j < C::DIM_V / 8; j++) {
				const uint32_t at = v + key * C::PITCH_V + (8 * j + 2 * t) * 4;
				const float x = __uint_as_float(fa_ld_shared(at));
				const float y = __uint_as_float(fa_ld_shared(at + 4));

				rows.out[0][j][0] = fmaf(weight[0], x, rows.out[0][j][0]);
				rows.out[0][j][1] = fmaf(weight[0], y, rows.out[0][j][1]);
				rows.out[0][j][2] = fmaf(weight[1], x, rows.out[0][j][2]);
				rows.out[0][j][3] = fmaf(weight[1], y, rows.out[0][j][3]);
			}
		}
	} else {
		uint32_t fragment[C::ATOMS][4];

#pragma unroll
		for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				fragment[a][i] = fa_pack<typename C::T>(p[a][i / 2][i % 2 * 2],
				                                        p[a][i / 2][i % 2 * 2 + 1]);
#pragma unroll
		for (int j = 0; j < C::DIM_V / 16; j++) {
			uint32_t b[4];

			fa_ldmatrix_x4_trans(b, fa_swizzle<C::DIM_V>::advance(v, 2 * j));
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				fa_mma_m16n8k16<typename C::T>(rows.out[a][2 * j], fragment[a],
				                               b[0], b[1]);
				fa_mma_m16n8k16<typename C::T>(rows.out[a][2 * j + 1], fragment[a],
				                               b[2], b[3]);
			}
		}
	}
}

__device__ __forceinline__ struct fa_paged_fact fa_paged_fact_get(uint32_t facts, uint32_t row)
{
	const uint4 a = fa_ld_shared_v4(facts + row * 32);
	struct fa_paged_fact fact;

	fact.low = a.x;
	fact.high = a.y;
	fact.position = a.z;
	fact.token = a.w;
	fact.slope = __uint_as_float(fa_ld_shared(facts + row * 32 + 16));
	return fact;
}

/* ALiBi, trees and masks: what depends on where a key stands. */
template <class C>
__device__ __forceinline__ void
fa_paged_place(float (&dots)[C::ATOMS][2][4], const struct fa_cuda_paged_attention &args,
               const struct fa_cuda_paged_item &item, uint32_t facts, int32_t token)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const int32_t old = (int32_t)item.n_k - (int32_t)item.n_q;
	const bool tree = item.tree_start != FA_CUDA_PAGED_NO_TREE;
	const uint32_t words = (item.n_q + 31) / 32;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const struct fa_paged_fact fact = fa_paged_fact_get(facts, g + 8 * r);
		const uint32_t *mask = args.tree + item.tree_start + fact.token * words;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int32_t key = token + 2 * t + i % 2 + i / 2 * 8;
			float &dot = dots[r / 2][i / 2][r % 2 * 2 + i % 2];
			bool sees = key >= fact.low && key < fact.high;
			int32_t position = key;

			if (tree && key >= old && sees) {
				const uint32_t node = key - old;

				sees = mask[node / 32] >> node % 32 & 1;
				if (args.positions)
					position = args.positions[item.first_q + node];
				sees = sees &&
				       position >= fact.position - args.attention.window_left &&
				       position <= fact.position + args.tree_right;
			}
			dot -= fact.slope * fabsf((float)(position - fact.position));
			dot = sees ? dot : -INFINITY;
		}
	}
}

/* Dots to weights, relative to each row's offset, which follows the maximum. */
template <class C>
__device__ __forceinline__ void fa_paged_weights(struct fa_paged_rows<C> &rows,
                                                 float (&dots)[C::ATOMS][2][4])
{
	float max[2 * C::ATOMS];
	bool raise = false;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const int a = r / 2, e = r % 2 * 2;

		max[r] = fmaxf(fmaxf(dots[a][0][e], dots[a][0][e + 1]),
		               fmaxf(dots[a][1][e], dots[a][1][e + 1]));
		raise |= max[r] + rows.offset[r] > 8;
	}
	if (__any_sync(~0u, raise)) {
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++) {
			max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 1));
			max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 2));

			const float offset = fminf(rows.offset[r], -max[r]);
			const float scale = fa_ex2(offset - rows.offset[r]);

			rows.offset[r] = offset;
			rows.sum[r] *= scale;
#pragma unroll
			for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					rows.out[r / 2][j][r % 2 * 2 + e] *= scale;
		}
	}
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int n = 0; n < 2; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				dots[a][n][e] = fa_ex2(dots[a][n][e] + rows.offset[2 * a + e / 2]);
				rows.sum[2 * a + e / 2] += dots[a][n][e];
			}
}

/* ---- the ends of a segment */

/* Q of a part, and what is to be known of its rows. All threads; the caller's barrier
 * makes it visible. */
template <class C>
__device__ __forceinline__ void fa_paged_begin(const struct fa_cuda_paged_attention &args,
                                               const struct fa_paged_walk &walk, char *shared)
{
	const struct fa_cuda_attention &p = args.attention;
	const struct fa_cuda_paged_item &item = walk.item;
	const uint32_t address = fa_shared_address(shared);
	const uint32_t first_row = walk.row(args, C::ROWS), head = walk.kv_head(args) * p.group;
	const uint32_t rows = item.n_q * p.group;
	constexpr uint32_t chunks = C::DIM * C::BYTES / 16;
	constexpr uint32_t chunk_elements = 16 / C::BYTES;

	for (uint32_t i = threadIdx.x; i < C::ROWS * chunks; i += C::THREADS) {
		const uint32_t row = i / chunks, chunk = i % chunks, at = first_row + row;
		const char *source = (const char *)p.q.data +
		                     (item.first_q + at / p.group) * p.q.stride_token +
		                     (head + at % p.group) * p.q.stride_head + chunk * 16;
		uint4 value = make_uint4(0, 0, 0, 0);

		if (at < rows && (int32_t)(chunk * chunk_elements) < p.head_dim) {
			if (p.aligned) {
				value = *(const uint4 *)source;
			} else if (C::F32) {
				const uint32_t *words = (const uint32_t *)source;

				value = make_uint4(words[0], words[1], words[2], words[3]);
			} else {
				const uint16_t *halves = (const uint16_t *)source;

				value.x = halves[0] | (uint32_t)halves[1] << 16;
				value.y = halves[2] | (uint32_t)halves[3] << 16;
				value.z = halves[4] | (uint32_t)halves[5] << 16;
				value.w = halves[6] | (uint32_t)halves[7] << 16;
			}
		}
		fa_st_shared_v4(address + C::Q +
		                        (C::F32 ? row * C::PITCH + chunk * 16
		                                : fa_swizzle<C::DIM>::offset(row, chunk)),
		                value);
	}
	if (threadIdx.x < C::ROWS) {
		struct fa_paged_fact *fact = (struct fa_paged_fact *)(shared + C::FACTS) +
		                             threadIdx.x;
		/* Rows past the last do as it does. */
		const uint32_t at = min(first_row + threadIdx.x, rows - 1);
		const int32_t token = at / p.group;
		const bool tree = item.tree_start != FA_CUDA_PAGED_NO_TREE;
		int32_t position = token + (int32_t)item.n_k - (int32_t)item.n_q;

		if (tree && args.positions)
			position = args.positions[item.first_q + token];
		fact->token = token;
		fact->position = position;
		fact->low = max((int32_t)item.first, position - p.window_left);
		/* A tree's new tokens are judged one by one. */
		fact->high = tree ? (int32_t)item.n_k
		                  : min((int32_t)item.n_k, position + p.window_right + 1);
		fact->slope = p.alibi_slopes ? p.alibi_slopes[head + at % p.group] * 1.44269504f
		                             : 0;
	}
}

/* Where a part's row goes. */
struct fa_paged_target {
	char *out;  /* its first element, or NULL */
	float *lse; /* or NULL */
	uint32_t head;
};

template <class C>
__device__ __forceinline__ struct fa_paged_target
fa_paged_target_of(const struct fa_cuda_paged_attention &args, const struct fa_paged_walk &walk,
                   uint32_t row)
{
	const struct fa_cuda_attention &p = args.attention;
	const uint32_t at = walk.row(args, C::ROWS) + row;
	const int64_t token = (int64_t)walk.item.first_q + at / p.group;
	struct fa_paged_target target = { NULL, NULL, 0 };

	if (at >= walk.item.n_q * p.group)
		return target;
	target.head = walk.kv_head(args) * p.group + at % p.group;
	target.out = (char *)p.out.data + token * p.out.stride_token +
	             target.head * p.out.stride_head;
	if (p.lse && walk.slice(args) == 0)
		target.lse = p.lse + token * p.lse_stride_token + target.head * p.lse_stride_head;
	return target;
}

/* From a row's maximum and sum to the factor of its O; stores the LSE if @lse. */
__device__ __forceinline__ float fa_paged_factor(const struct fa_cuda_attention &p, uint32_t head,
                                                 float max, float sum, float *lse)
{
	float factor = sum > 0 ? 1 / sum : 0;

	/* As fa_sm80_finish. */
	if (p.sinks) {
		const float sink = p.sinks[head] * 1.44269504f;
		const float top = fmaxf(max, sink);
		const float shrink = fa_ex2(max - top);

		if (sink != -INFINITY) {
			sum = sum * shrink + fa_ex2(sink - top);
			factor = shrink / sum;
			max = top;
		}
	}
	if (lse)
		*lse = sum > 0 ? (max + fa_lg2(sum)) * 0.693147181f : -INFINITY;
	return factor;
}

template <class C>
__device__ __forceinline__ void fa_paged_store(const struct fa_cuda_paged_attention &args,
                                               char *out, uint32_t column, float x, float y)
{
	char *const to = out + column * C::BYTES;

	if ((int32_t)column >= args.attention.head_dim_v)
		return;
	if constexpr (C::F32) {
		((float *)to)[0] = x;
		((float *)to)[1] = y;
	} else {
		const uint32_t both = fa_pack<typename C::T>(x, y);

		if (args.attention.aligned) {
			*(uint32_t *)to = both;
		} else {
			((uint16_t *)to)[0] = (uint16_t)both;
			((uint16_t *)to)[1] = (uint16_t)(both >> 16);
		}
	}
}

/* The last block of a part adds up the shares of blocks [first, last]. All threads. */
template <class C>
__device__ __forceinline__ void fa_paged_reduce(const struct fa_cuda_paged_attention &args,
                                                const struct fa_paged_walk &walk, uint32_t first,
                                                uint32_t last)
{
	constexpr uint32_t pairs = C::DIM_V / 2;
	/* Only the first block may have had another part before this one. */
	const uint32_t start = first * args.tiles_each + min(first, args.tiles_extra);
	const uint32_t first_place = 2 * first + (start != walk.tile);

	for (uint32_t i = threadIdx.x; i < C::ROWS * pairs; i += C::THREADS) {
		const uint32_t row = i / pairs, pair = i % pairs;
		const struct fa_paged_target target = fa_paged_target_of<C>(args, walk, row);
		float max = -FLT_MAX, sum = 0, x = 0, y = 0;

		if (!target.out)
			continue;
#pragma unroll 4
		for (uint32_t block = first; block <= last; block++) {
			const uint32_t place = block == first ? first_place : 2 * block;

			max = fmaxf(max, __ldcg(&args.partial_sums[(place * C::ROWS + row) * 2]));
		}
#pragma unroll 4
		for (uint32_t block = first; block <= last; block++) {
			const uint32_t place = block == first ? first_place : 2 * block;
			const uint32_t at = place * C::ROWS + row;
			const float2 share = __ldcg((const float2 *)&args.partial_sums[at * 2]);
			const float2 out = __ldcg(
				(const float2 *)&args.partials[(size_t)at * C::DIM_V + 2 * pair]);
			const float weight = fa_ex2(share.x - max);

			sum += weight * share.y;
			x += weight * out.x;
			y += weight * out.y;
		}

		const float factor = fa_paged_factor(args.attention, target.head, max, sum,
		                                     pair == 0 ? target.lse : NULL);

		fa_paged_store<C>(args, target.out, walk.slice(args) * C::DIM_V + 2 * pair,
		                  x * factor, y * factor);
	}
}

/* Counts this block in; whether it is the last of @n. One thread. */
__device__ __forceinline__ bool fa_paged_arrive(unsigned long long *counter, uint32_t epoch,
                                                uint32_t n)
{
	unsigned long long before = fa_ld_relaxed(counter), seen, after;

	for (;;) {
		after = (before >> 32 == epoch ? before : (unsigned long long)epoch << 32) + 1;
		seen = fa_atomic_cas(counter, before, after);
		if (seen == before)
			return (uint32_t)after == n;
		before = seen;
	}
}

/* Brings the warps' rows together and finishes the segment. All threads. */
template <class C>
__device__ __forceinline__ void fa_paged_end(const struct fa_cuda_paged_attention &args,
                                             const struct fa_paged_walk &walk,
                                             struct fa_paged_rows<C> &rows, char *shared)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	float2 *const stats = (float2 *)(shared + C::STATS); /* [warp][row] */
	float *const merge = (float *)(shared + C::MERGE);
	struct fa_paged_fact *const facts = (struct fa_paged_fact *)(shared + C::FACTS);
	const uint32_t place = 2 * blockIdx.x + !walk.first;
	constexpr uint32_t pairs = C::MERGE_COLUMNS / 2;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 1);
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 2);
		if (t == 0)
			stats[warp * C::ROWS + g + 8 * r] = make_float2(-rows.offset[r],
			                                                rows.sum[r]);
	}
	__syncthreads(); /* the stats are there, and nobody reads Q or the facts */

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		float max = -FLT_MAX;

#pragma unroll
		for (int w = 0; w < C::WARPS; w++)
			max = fmaxf(max, stats[w * C::ROWS + g + 8 * r].x);

		const float weight = fa_ex2(-rows.offset[r] - max);

#pragma unroll
		for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				rows.out[r / 2][j][r % 2 * 2 + e] *= weight;
	}
	if (threadIdx.x < C::ROWS) {
		const uint32_t row = threadIdx.x;
		float max = -FLT_MAX, sum = 0;

		for (int w = 0; w < C::WARPS; w++)
			max = fmaxf(max, stats[w * C::ROWS + row].x);
		for (int w = 0; w < C::WARPS; w++)
			sum += stats[w * C::ROWS + row].y *
			       fa_ex2(stats[w * C::ROWS + row].x - max);
		if (walk.whole) {
			const struct fa_paged_target target = fa_paged_target_of<C>(args, walk,
			                                                            row);

			facts[row].sum = target.out ? fa_paged_factor(args.attention, target.head,
			                                              max, sum, target.lse)
			                            : 0;
		} else {
			float *const sums = &args.partial_sums[(place * C::ROWS + row) * 2];

			sums[0] = max;
			sums[1] = sum;
		}
	}

#pragma unroll
	for (int step = 0; step < C::DIM_V / (int)C::MERGE_COLUMNS; step++) {
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
			for (int j = 0; j < (int)C::MERGE_COLUMNS / 8; j++) {
				const float(&out)[4] =
					rows.out[r / 2][step * (C::MERGE_COLUMNS / 8) + j];

				*(float2 *)&merge[(warp * C::ROWS + g + 8 * r) * C::MERGE_PITCH +
				                  8 * j + 2 * t] = make_float2(out[r % 2 * 2],
				                                               out[r % 2 * 2 + 1]);
			}
		__syncthreads(); /* the columns are there, and the factors */
		for (uint32_t i = threadIdx.x; i < C::ROWS * pairs; i += C::THREADS) {
			const uint32_t row = i / pairs, column = i % pairs * 2;
			const struct fa_paged_target target = fa_paged_target_of<C>(args, walk,
			                                                            row);
			float x = 0, y = 0;

			if (!target.out)
				continue;
#pragma unroll
			for (int w = 0; w < C::WARPS; w++) {
				const float2 part = *(
					const float2 *)&merge[(w * C::ROWS + row) * C::MERGE_PITCH +
				                              column];

				x += part.x;
				y += part.y;
			}
			if (walk.whole) {
				const float factor = facts[row].sum;

				fa_paged_store<C>(args, target.out,
				                  walk.slice(args) * C::DIM_V +
				                          step * C::MERGE_COLUMNS + column,
				                  x * factor, y * factor);
			} else {
				*(float2 *)&args
					 .partials[(size_t)(place * C::ROWS + row) * C::DIM_V +
				                   step * C::MERGE_COLUMNS + column] =
					make_float2(x, y);
			}
		}
		__syncthreads(); /* nobody reads the columns */
	}
	if (walk.whole)
		return;

	/* The barrier has put all shares before this thread's fence. */
	const uint32_t first = fa_paged_block_of(args, walk.tile);
	const uint32_t last = fa_paged_block_of(args, walk.tile + walk.item.tiles - 1);
	bool *const is_last = (bool *)(shared + C::STATS);

	if (threadIdx.x == 0) {
		__threadfence();
		*is_last = fa_paged_arrive(&args.counters[first], args.epoch, last - first + 1);
		__threadfence();
	}
	__syncthreads(); /* the answer is there */
	if (*is_last)
		fa_paged_reduce<C>(args, walk, first, last);
	__syncthreads(); /* everybody has read it */
}

template <class C>
__device__ __forceinline__ void fa_paged_decode(const struct fa_cuda_paged_attention &args)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const struct fa_cuda_attention &p = args.attention;
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t ring = shared + C::RING + warp * C::STAGES * C::STRIP_BYTES;
	const float cap_in = p.cap_in * 2.88539008f;
	uint32_t q = shared + C::Q, k = 0, v = C::K_BYTES, stage = ring;
	struct fa_paged_loader<C> loader;
	struct fa_paged_walk walk;

	/* This lane's ldmatrix addresses: of Q, of K's and V's place in a stage. */
	if constexpr (!C::F32) {
		q += fa_swizzle<C::DIM>::offset(lane % 16, lane / 16);
		k += fa_swizzle<C::DIM>::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
		v += fa_swizzle<C::DIM_V>::offset(lane % 16, lane / 16);
	}

	loader.start(args, shared);
#pragma unroll
	for (int i = 0; i < C::STAGES - 1; i++)
		loader.step(args);
	walk.start(args, blockIdx.x);

	do {
		const struct fa_cuda_paged_item &item = walk.item;
		const uint32_t facts = shared + C::FACTS;
		struct fa_paged_rows<C> rows;

		fa_paged_begin<C>(args, walk, shared_memory);
		__syncthreads(); /* Q and the facts are there */

#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++) {
			rows.offset[r] = FLT_MAX;
			rows.sum[r] = 0;
		}
#pragma unroll
		for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
			for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					rows.out[a][j][e] = 0;

		/* Strips of which every row sees every key need no mask: between where the
		 * last row's window begins and where the first row's ends. */
		const struct fa_paged_fact top = fa_paged_fact_get(facts, 0);
		const struct fa_paged_fact bottom = fa_paged_fact_get(facts, C::ROWS - 1);
		const bool tree = item.tree_start != FA_CUDA_PAGED_NO_TREE;
		int32_t clear_begin = bottom.low, clear_end = top.high;

		if (tree) {
			/* Rows' positions are in no order; a window hides all from this on. */
			clear_begin = p.window_left < FA_CUDA_WINDOW_MAX ? (int32_t)item.n_k
			                                                 : (int32_t)item.first;
			clear_end = (int32_t)item.n_k - (int32_t)item.n_q;
		}
		if (p.alibi_slopes)
			clear_end = 0;

#pragma unroll 1
		for (int32_t token = walk.begin + warp * FA_CUDA_PAGED_STRIP; token < walk.end;
		     token += C::WARPS * FA_CUDA_PAGED_STRIP) {
			float dots[C::ATOMS][2][4];

			fa_cp_async_wait<C::STAGES - 2>();
			__syncwarp(); /* the strip is there, and all are done with the one before */
			loader.step(args);

			fa_paged_dots<C>(dots, q, stage + k);
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
				for (int n = 0; n < 2; n++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						dots[a][n][e] *= p.cap_out != 0 ? cap_in
						                                : p.scale_log2;
			if (p.cap_out != 0) {
				/* tanh as in logits.h */
#pragma unroll
				for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
					for (int n = 0; n < 2; n++)
#pragma unroll
						for (int e = 0; e < 4; e++)
							dots[a][n][e] =
								p.cap_out -
								2 * p.cap_out *
									fa_rcp(1 + fa_ex2(dots[a][n]
							                                      [e]));
			}
			if (token < clear_begin || token + FA_CUDA_PAGED_STRIP > clear_end)
				fa_paged_place<C>(dots, args, item, facts, token);
			fa_paged_weights<C>(rows, dots);
			fa_paged_product<C>(rows, dots, stage + v);

			stage += C::STRIP_BYTES;
			if (stage == ring + C::STAGES * C::STRIP_BYTES)
				stage = ring;
		}
		fa_paged_end<C>(args, walk, rows, shared_memory);
	} while (walk.next(args));
}
