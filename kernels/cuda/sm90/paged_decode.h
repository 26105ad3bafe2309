/*
 * Attention over pages for few query rows, with bulk copies: what is divided among blocks,
 * and how, is as in sm80/paged_decode.h. One warp loads (paged_load.h), into a ring of tiles
 * of 64 tokens; groups of four compute and take tiles in turn, each warp 16 tokens of a tile,
 * with a maximum, sums and O of their own, which they bring together at the end of a segment.
 * Between, no warp waits for another. As long as a group is at a tile, GROUPS - 1 others
 * arrive: short rows do so faster than one group is through. New tokens may come from the
 * request's tensors, and go into the pages (paged_append.h). Where there are two groups for what
 * sequences share, a part may have rows for both, which then all take all tiles.
 *
 * Bulk copies leave rows as they are in pages: eight rows of one column of 16-byte chunks lie
 * in the same banks, and reading them as a fragment has them takes eight turns. (Moving rows
 * off by less than 128 bytes while they are copied makes the copies slow: 15 % of all of it on
 * an H200.) So lanes read chunks in an order of their own, which uses all banks at once, and
 * sort them in registers. With the lane as (g, t) of mma.m16n8k16:
 *   K  a lane loads 16 bytes, its fragments of two steps along k; Q is loaded alike. Eight
 *      lanes, the turns of such loads, are two rows of four chunks. Odd rows read the second
 *      four of eight when even ones read the first, and exchange the two afterwards.
 *   V  ldmatrix.trans takes chunk c ^ i of row i where a fragment would have chunk c of all.
 *      Lane (g, t) gets column g of chunk c ^ 2t for key 2t, of chunk c ^ 2t ^ 1 for key
 *      2t + 1: halves of two registers are put together, then registers exchanged by the
 *      bits of t.
 */
#pragma once

#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/logits.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/control.h"
#include "kernels/cuda/ptx/ldmatrix.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm80/paged_part.h"
#include "kernels/cuda/sm80/pair.h"
#include "kernels/cuda/sm80/product.h"
#include "kernels/cuda/sm80/softmax.h"
#include "kernels/cuda/sm90/paged_append.h"
#include "kernels/cuda/sm90/paged_config.h"
#include "kernels/cuda/sm90/paged_load.h"
#include "kernels/cuda/sm90/paged_part.h"

#include <stdint.h>

/* A part's rows of Q: fragments, or where they are in shared memory. */
template <class C, bool HELD = C::Q_HELD> struct fa_sm90_paged_q {
	uint4 chunks[C::ATOMS][C::DIM / 32][2]; /* of rows g and g + 8 */

	/* Nobody reads what warps bring together. */
	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args,
	                                     const fa_paged_walk_of<C> &walk, uint32_t shared)
	{
		const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

		if (__builtin_expect(!args.attention.aligned, 0)) {
			const uint32_t at = gather(args, walk, shared);

#pragma unroll
			for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
				for (int c = 0; c < C::DIM / 32; c++)
					chunks[r / 2][c][r % 2] = fa_ld_shared_v4(
						at + (g + 8 * r) * C::DIM * 2 + (4 * c + t) * 16);
			return;
		}
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++) {
			const char *const row = fa_paged_q_row<C>(args, walk, g + 8 * r);

#pragma unroll
			for (int c = 0; c < C::DIM / 32; c++)
				chunks[r / 2][c][r % 2] = fa_paged_q_chunk<C, true>(args.attention,
				                                                    row, 4 * c + t);
		}
	}

	/* Rows that are not aligned, where they are. To look at halves in place is code that all
	 * would have to walk past. */
	__device__ __forceinline__ uint32_t gather(const struct fa_cuda_paged_attention &args,
	                                           const fa_paged_walk_of<C> &walk, uint32_t shared)
	{
		const uint32_t warp = threadIdx.x / 32;
		const uint32_t to = shared + C::MERGE + warp * C::ROWS * C::MERGE_PITCH * 4;

		static_assert(C::MERGE_PITCH * 4 >= C::DIM * 2, "rows have room");
#pragma unroll 1
		for (uint32_t i = threadIdx.x % 32; i < C::ROWS * C::DIM / 2; i += 32) {
			const char *const row = fa_paged_q_row<C>(args, walk, i / (C::DIM / 2));
			const uint16_t *const halves = (const uint16_t *)row + i % (C::DIM / 2) * 2;

			fa_st_shared(to + i * 4, row ? halves[0] | (uint32_t)halves[1] << 16 : 0);
		}
		__syncwarp();
		return to;
	}

	__device__ __forceinline__ uint4 get(int atom, int c, int half) const
	{
		return chunks[atom][c][half];
	}
};

template <class C> struct fa_sm90_paged_q<C, false> {
	uint32_t at; /* this lane's of row g */

	/* Nobody reads what was there before, and all wait until all have come here. */
	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args,
	                                     const fa_paged_walk_of<C> &walk, uint32_t shared)
	{
		constexpr uint32_t chunks = C::DIM / 8, all = C::ROWS * chunks;
		constexpr int each = (all + C::JOINED - 1) / C::JOINED;
		uint4 values[each];

		/* All are asked for before the first is there. */
#pragma unroll
		for (int j = 0; j < each; j++) {
			const uint32_t i = min(threadIdx.x + j * C::JOINED, all - 1);

			values[j] = fa_paged_q_chunk<C>(args.attention,
			                                fa_paged_q_row<C>(args, walk, i / chunks),
			                                i % chunks);
		}
#pragma unroll
		for (int j = 0; j < each; j++) {
			const uint32_t i = threadIdx.x + j * C::JOINED;

			if (i < all)
				fa_st_shared_v4(shared + C::Q + i / chunks * C::Q_PITCH +
				                        i % chunks * 16,
				                values[j]);
		}
		at = shared + C::Q + threadIdx.x % 32 / 4 * C::Q_PITCH + threadIdx.x % 4 * 16;
		fa_barrier_sync(C::COMPUTE, C::JOINED);
	}

	__device__ __forceinline__ uint4 get(int atom, int c, int half) const
	{
		return fa_ld_shared_v4(at + (16 * atom + 8 * half) * C::Q_PITCH + c * 64);
	}
};

/* dots = Q K^T for the warp's 16 tokens, @k their first row. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_dots(float (&dots)[C::ATOMS][2][4],
                                                   const fa_sm90_paged_q<C> &q, uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const bool odd = g % 2;
	const uint32_t at = k + g * C::PITCH + t * 16;
	const uint32_t places[2] = { at + odd * 64, at + !odd * 64 };

#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				dots[a][j][e] = 0;

#pragma unroll
	for (int pair = 0; pair < C::DIM / 64; pair++) {
		uint4 keys[2][2]; /* [j][of the pair] */

#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int i = 0; i < 2; i++)
				keys[j][i] = fa_ld_shared_v4(places[i] + 8 * j * C::PITCH +
				                             pair * 128);
#pragma unroll
		for (int j = 0; j < 2; j++) {
			fa_sm90_paged_exchange(keys[j][0].x, keys[j][1].x, odd);
			fa_sm90_paged_exchange(keys[j][0].y, keys[j][1].y, odd);
			fa_sm90_paged_exchange(keys[j][0].z, keys[j][1].z, odd);
			fa_sm90_paged_exchange(keys[j][0].w, keys[j][1].w, odd);
		}
#pragma unroll
		for (int i = 0; i < 2; i++)
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				const uint4 low = q.get(a, 2 * pair + i, 0);
				const uint4 high = q.get(a, 2 * pair + i, 1);
				const uint32_t first[4] = { low.x, high.x, low.y, high.y };
				const uint32_t second[4] = { low.z, high.z, low.w, high.w };

#pragma unroll
				for (int j = 0; j < 2; j++)
					fa_mma_m16n8k16<typename C::T>(dots[a][j], first,
					                               keys[j][i].x, keys[j][i].y);
#pragma unroll
				for (int j = 0; j < 2; j++)
					fa_mma_m16n8k16<typename C::T>(dots[a][j], second,
					                               keys[j][i].z, keys[j][i].w);
			}
	}
}

/* V's fragments of 16 tokens and 64 columns: ret[n][j] is tokens 8 n + 2t and the next, column
 * 8 j + g. @v: this lane's address for ldmatrix. */
__device__ __forceinline__ void fa_sm90_paged_values(uint32_t (&ret)[2][8], uint32_t v)
{
	const uint32_t t = threadIdx.x % 4;

#pragma unroll
	for (int j = 0; j < 8; j += 2) {
		uint32_t part[4]; /* chunk j of both halves of the tokens, then chunk j + 1 */

		fa_ldmatrix_x4_trans(part, v ^ j * 16);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			ret[n][j] = __byte_perm(part[n], part[2 + n], 0x7610);
			ret[n][j + 1] = __byte_perm(part[2 + n], part[n], 0x7610);
		}
	}
#pragma unroll
	for (int n = 0; n < 2; n++) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			if (!(j & 2))
				fa_sm90_paged_exchange(ret[n][j], ret[n][j + 2], t & 1);
#pragma unroll
		for (int j = 0; j < 4; j++)
			fa_sm90_paged_exchange(ret[n][j], ret[n][j + 4], t & 2);
	}
}

/* O += P V. @p: of the 16 tokens; @v: this lane's address for ldmatrix. ISOLATE: as in
 * sm80/product.h. */
template <class C, bool ISOLATE>
__device__ __forceinline__ void fa_sm90_paged_product(struct fa_sm80_rows<C> &rows,
                                                      const uint32_t (&p)[C::ATOMS][4], uint32_t v,
                                                      const struct fa_paged_sight &sight)
{
	using T = typename C::T;
	uint32_t seen[C::ATOMS][4];

	if (ISOLATE)
		fa_sm80_seen<C>(seen, sight, 0);
#pragma unroll
	for (int i = 0; i < C::DIM_V / 64; i++) {
		uint32_t b[2][8];

		fa_sm90_paged_values(b, v + i * 128);
#pragma unroll
		for (int j = 0; j < 8; j++) {
			if constexpr (!ISOLATE) {
#pragma unroll
				for (int a = 0; a < C::ATOMS; a++)
					fa_mma_m16n8k16<T>(rows.out[a][8 * i + j], p[a], b[0][j],
					                   b[1][j]);
			} else {
				const fa_sm80_parts<T> lo(b[0][j]), hi(b[1][j]);

#pragma unroll
				for (int a = 0; a < C::ATOMS; a++)
					fa_mma_m16n8k16<T>(rows.out[a][8 * i + j], p[a], lo.finite,
					                   hi.finite);
				if (!__any_sync(~0u, lo.plus | lo.minus | hi.plus | hi.minus))
					continue;
#pragma unroll
				for (int a = 0; a < C::ATOMS; a++) {
					fa_mma_m16n8k16<fa_bf16>(rows.out[a][8 * i + j], seen[a],
					                         lo.plus, hi.plus);
					fa_mma_m16n8k16<fa_bf16>(rows.out[a][8 * i + j], seen[a],
					                         lo.minus, hi.minus);
				}
			}
		}
	}
}

/* Has come what is to be known at the segment's end (sm80/paged_pieces.h). A whole warp's. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_touch_tails(const struct fa_cuda_paged_attention &args,
                          const fa_paged_walk_of<C> &walk)
{
	const uint32_t n = max(walk.piece.n_tails, walk.item.row_blocks);

	if (walk.piece.tails == FA_CUDA_PAGED_NO_TAIL)
		return;
#pragma unroll 1
	for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
		fa_prefetch(args.tails + walk.piece.tails + i);
}

/* A warp's way through its block's tiles: the next that it takes, and where that is. */
struct fa_sm90_paged_way {
	int32_t token;
	uint32_t stage, parity;
};

/* Those of a segment that are this warp's, up to token @end. @facts: of its rows. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_tiles(struct fa_sm80_rows<C> &rows, const struct fa_cuda_paged_attention &args,
                    const struct fa_cuda_paged_item &item, const fa_sm90_paged_q<C> &q,
                    const struct fa_paged_clear &clear, uint32_t shared, uint32_t facts,
                    int32_t end, struct fa_sm90_paged_way &at)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t group = C::GROUPS == 1 ? 0 : warp / C::TAKERS;
	const uint32_t quarter = C::GROUPS == 1 ? warp : warp % C::TAKERS;
	/* The warp's tokens of a stage, and this lane's address for ldmatrix from there. */
	const uint32_t mine = shared + C::RING + quarter * C::QUARTER;
	const uint32_t row = (lane % 16) * C::PITCH + (lane / 16 ^ lane % 8) * 16;
	const struct fa_sm80_pair<C> alone(0, 0);
	struct fa_logits_rich logits(args.attention, 0);

	logits.slope = 0; /* rows have their own: fa_paged_place() */
#pragma unroll 1
	for (; at.token < end; at.token += C::GROUPS * FA_CUDA_PAGED_TILE) {
		const uint32_t k = mine + at.stage * C::STAGE_BYTES, v = k + C::K_BYTES;
		const int32_t own = at.token + (int32_t)quarter * FA_CUDA_PAGED_STRIP;

		fa_mbarrier_wait(shared + C::FULL + 8 * at.stage, at.parity);
		if (own < end) {
			const bool hides = clear.hides(own);
			struct fa_paged_sight sight = { ~0u };
			uint32_t weights[C::ATOMS][4];
			float dots[C::ATOMS][2][4];
			bool finite = true;

			fa_sm90_paged_dots<C>(dots, q, k);
			logits.apply(dots, 0);
			if (hides)
				finite = fa_sm90_paged_clean<C>(item, v, own);
			if (hides || args.attention.alibi_slopes)
				sight = fa_paged_place<C>(dots, args, item, facts, own);
			fa_sm80_raise<C>(rows, dots, 1, alone);
			fa_sm80_probabilities<C>(rows, weights, dots, 1, 0);
			if (!finite)
				fa_sm90_paged_product<C, true>(rows, weights, v + row, sight);
			else
				fa_sm90_paged_product<C, false>(rows, weights, v + row, sight);
		}
		__syncwarp(); /* the warp is done with the tile */
		if (lane == 0)
			fa_mbarrier_arrive(shared + C::EMPTY + 8 * at.stage);
		at.stage += C::GROUPS;
		if (C::GIVES ? at.stage >= C::STAGES : at.stage == C::STAGES + group) {
			at.stage = C::GIVES ? at.stage - C::STAGES : group;
			at.parity ^= 1;
		}
	}
}

/* Of a kernel with more fragments, what it computes where a part's rows are in the first. */
template <class C> struct fa_sm90_paged_few : C {
	static constexpr int ATOMS = 1;
};

template <class C>
__device__ __forceinline__ void
fa_sm90_paged_few_tiles(struct fa_sm80_rows<C> &rows, const struct fa_cuda_paged_attention &args,
                        const struct fa_cuda_paged_item &item, const fa_sm90_paged_q<C> &q,
                        const struct fa_paged_clear &clear, uint32_t shared, uint32_t facts,
                        int32_t end, struct fa_sm90_paged_way &at)
{
	using F = struct fa_sm90_paged_few<C>;
	static_assert(!C::Q_HELD, "rows of Q are where they are");
	const struct fa_sm90_paged_q<F> first = {
		q.at
	};
	struct fa_sm80_rows<F> few;

	fa_sm80_clear<F>(few);
	fa_sm90_paged_tiles<F>(few, args, item, first, clear, shared, facts, end, at);
	fa_sm80_clear<C>(rows);
#pragma unroll
	for (int r = 0; r < 2; r++) {
		rows.offset[r] = few.offset[r];
		rows.sum[r] = few.sum[r];
	}
#pragma unroll
	for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			rows.out[0][j][e] = few.out[0][j][e];
}

template <class C>
__device__ __forceinline__ void fa_sm90_paged_compute(const struct fa_cuda_paged_attention &args,
                                                      char *shared_memory,
                                                      fa_paged_walk_of<C> &walk)
{
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t group = C::GROUPS == 1 ? 0 : warp / C::TAKERS;
	const uint32_t facts = C::FACTS + warp * C::ROWS * 32;
	fa_sm90_paged_q<C> q;
	struct fa_sm90_paged_way at = { 0, group, 0 };
	/* Tiles of the segment before this warp's next; or where in the ring, in which round of two,
	 * the segment begins. */
	int32_t before = C::GIVES ? 0 : (int32_t)group;
	bool begun = false;
	/* Where the walk is as long as registers are the tiles'. */
	fa_paged_walk_of<C> *const parked = (fa_paged_walk_of<C> *)(shared_memory + C::PARKED) +
	                                    warp;

	static_assert(!C::PARKS || sizeof(walk) <= 128, "there is room for it");
	do {
		const struct fa_cuda_paged_item &item = C::PARKS ? parked->item : walk.item;
		const int32_t end = walk.end;
		struct fa_sm90_paged_append<C> append;
		struct fa_sm80_rows<C> rows;
		bool again = false;

		if constexpr (C::PIECES)
			again = walk.again;
		if constexpr (C::APPENDS)
			append.begin(args, walk);
		if (!again) {
			q.load(args, walk, shared);
			for (uint32_t i = lane; i < C::ROWS; i += 32)
				((struct fa_paged_fact *)(shared_memory + facts))[i] =
					fa_sm90_paged_fact_of<C>(args, walk, i);
			__syncwarp();
		}
		if constexpr (C::PIECES)
			if (warp == 0)
				fa_sm90_paged_touch_tails<C>(args, walk);
		/* The first warp will have a fence to wait for. */
		fa_sm90_paged_begin<C>(args, walk, shared_memory, begun ? 0 : 32);
		if (!begun) {
			if constexpr (!C::PIECES)
				fa_sm90_paged_hide<C>(args);
			fa_barrier_sync(C::BEGUN, C::BEGINNERS);
			fa_sm90_paged_fence<C>(args);
		}
		begun = true;
		if constexpr (C::APPENDS)
			append.end(args, walk);

		if (C::GIVES) {
			/* Units must not know which group was the last. */
			const uint32_t ring = (uint32_t)before + group;

			at.stage = ring % C::STAGES;
			at.parity = ring / C::STAGES % 2;
			at.token = walk.begin + group * FA_CUDA_PAGED_TILE;
		} else {
			at.token = walk.begin + before * FA_CUDA_PAGED_TILE;
		}

		const struct fa_paged_clear clear = fa_paged_clear_of<C>(args, walk.item,
		                                                         shared + facts);

		if constexpr (C::PARKS)
			*parked = walk;

		if (C::FEW && walk.rows(args, C::ROWS) <= 16) {
			if constexpr (C::FEW)
				fa_sm90_paged_few_tiles<C>(rows, args, item, q, clear, shared,
				                           shared + facts, end, at);
		} else {
			fa_sm80_clear<C>(rows);
			fa_sm90_paged_tiles<C>(rows, args, item, q, clear, shared, shared + facts,
			                       end, at);
		}
		if constexpr (C::PARKS)
			walk = *parked;

		const int32_t tiles = (walk.end - walk.begin + FA_CUDA_PAGED_TILE - 1) /
		                      FA_CUDA_PAGED_TILE;

		if (C::GIVES)
			before = (before + tiles) % (2 * C::STAGES);
		else if (C::GROUPS > 1)
			before = (at.token - walk.begin) / FA_CUDA_PAGED_TILE - tiles;
		fa_sm90_paged_end<C>(args, walk, rows, shared_memory,
		                     (const struct fa_paged_fact *)(shared_memory + facts));
	} while (walk.next(args));
}

/* Where walks start, if C::EARLY: with the same code for all warps. Till then nothing was read but
 * the plan, which was there before the launch ahead. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_start(const struct fa_cuda_paged_attention &args,
                                                    uint32_t shared, fa_paged_walk_of<C> &walk)
{
	if (threadIdx.x < 32) {
		fa_sm90_paged_make_barriers<C>(shared, 0);
		fa_barrier_arrive(C::READY, 64);
	}
	walk.start(args, blockIdx.x);
	fa_await_launch_ahead();
	if (threadIdx.x / 32 == C::WARPS) {
		fa_barrier_sync(C::READY, 64);
		if (fa_sm90_paged_early_tiles<C>(args, walk) > 0)
			fa_sm90_paged_load_first<C>(args, walk, shared);
	}
}

template <class C>
__device__ __forceinline__ void fa_sm90_paged_decode(const struct fa_cuda_paged_attention &args)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const uint32_t shared = fa_shared_address(shared_memory);
	fa_paged_walk_of<C> walk;

	/* One start for all would be too much for the registers of the others (d64, pieces). */
	const auto start = [&]() {
		if constexpr (!C::EARLY) {
			walk.start(args, blockIdx.x);
			fa_await_launch_ahead();
		}
	};

	if constexpr (C::EARLY)
		fa_sm90_paged_start<C>(args, shared, walk);
	if constexpr (C::GIVES) {
		/* The same for all threads of a warp, and the compiler is to know it. */
		if (__shfl_sync(~0u, threadIdx.x / 128, 0) == C::GROUPS) {
			fa_registers_give<FA_SM90_PAGED_LOADER_REGISTERS>();
			if (threadIdx.x < C::JOINED + 32) {
				start();
				fa_sm90_paged_load<C>(args, shared, walk);
			}
		} else {
			fa_registers_take<FA_SM90_PAGED_GROUP_REGISTERS>();
			start();
			fa_sm90_paged_compute<C>(args, shared_memory, walk);
			/* Those who load have stored nothing, and may have left. */
			fa_done_behind(args.attention.done, 0, C::JOINED);
		}
	} else {
		if (threadIdx.x >= C::JOINED) {
			start();
			fa_sm90_paged_load<C>(args, shared, walk);
		} else {
			start();
			fa_sm90_paged_compute<C>(args, shared_memory, walk);
		}
		fa_done(args.attention.done);
	}
}
