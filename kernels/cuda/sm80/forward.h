/*
 * Dense forward attention on mma.sync, for fp16 and bf16. A block computes ROWS
 * query rows of one head; each warp, or pair of warps, has WARP_ROWS of them, their
 * part of Q and O to itself, and shares the tiles of K and V with the others.
 *
 * Keys are walked from the last tile to the first. K and V of a tile arrive by
 * cp.async in STAGES buffers: at the top of a tile each thread waits for its own
 * copies of it, then one barrier (all threads, once per tile) says both that the
 * tile is whole and that everyone is done with the tile before, whose buffer the
 * next copies go to.
 *
 * The maximum m that rows subtract in the exponent is allowed to lag: it is
 * raised, and O and the sum rescaled, only when a new logit exceeds it by more than
 * 8 (in units of ln 2). p is then at most 256, harmless in fp16, bf16 and the fp32
 * sums, and after the first tiles a warp hardly ever touches O between products.
 *
 * Where K and V come from, and which rows a block has, is a SOURCE: fa_sm80_dense here,
 * pages in paged_forward.h.
 *
 * A pair (SPLIT 2) has named barrier 1 + its index to itself, 64 threads, twice a tile:
 * once to agree whether to raise m (both have read the other's P of the tile before),
 * once when P is written. Raising takes one more, and so does the end.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/logits.h"
#include "kernels/cuda/common/tile.h"
#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/ldmatrix.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/sm80/config.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* K and V as tensors. */
struct fa_sm80_dense {
	using ARGS = struct fa_cuda_attention;
	using WORK = struct fa_work;
	template <int KEYS, int D, int THREADS> using LOADER = struct fa_loader<KEYS, D, THREADS>;

	static __device__ __forceinline__ const struct fa_cuda_attention &
	attention(const ARGS &args)
	{
		return args;
	}

	static __device__ __forceinline__ WORK work(const ARGS &args, int32_t rows)
	{
		return fa_work_get(args, rows);
	}

	/* Whether keys before start() are hidden. */
	static constexpr bool STARTS = false;

	static __device__ __forceinline__ int32_t start(const WORK &)
	{
		return 0;
	}

	template <class C>
	static __device__ __forceinline__ LOADER<C::KEYS, C::DIM, C::THREADS>
	k(const ARGS &args, const WORK &work, int32_t key)
	{
		return LOADER<C::KEYS, C::DIM, C::THREADS>(
			fa_work_base(args.k, work.sequence, work.first_k, work.head / args.group),
			args.k.stride_token, key, args.head_dim);
	}

	template <class C, class K>
	static __device__ __forceinline__ LOADER<C::KEYS, C::DIM_V, C::THREADS>
	v(const ARGS &args, const WORK &work, int32_t key, const K &)
	{
		return LOADER<C::KEYS, C::DIM_V, C::THREADS>(
			fa_work_base(args.v, work.sequence, work.first_k, work.head / args.group) +
				work.slice * C::DIM_V * 2,
			args.v.stride_token, key, args.head_dim_v - work.slice * C::DIM_V);
	}
};

/* A warp's rows: each thread has rows g and g + 8 of every atom, row = 2 * atom + half. */
template <class C> struct fa_sm80_rows {
	/* What is added in the exponent: less a recent maximum of the logits. FLT_MAX at
	 * first: masked logits (-inf) give 0 even then, so no row needs care. */
	float offset[2 * C::ATOMS];
	float sum[2 * C::ATOMS]; /* of this thread's keys */
	float out[C::ATOMS][C::WARP_DIM_V / 8][4];
};

/* A warp's place in its pair. Of V's columns, in groups of eight chunks, half 0 has
 * chunks 0 to 3 and half 1 chunks 4 to 7. */
template <class C> struct fa_sm80_pair {
	uint32_t barrier;      /* its name */
	uint32_t half;         /* 0 or 1 */
	uint32_t mine, others; /* shared memory of this warp and of the other: P, then rows */

	__device__ __forceinline__ fa_sm80_pair(uint32_t shared)
	{
		constexpr uint32_t bytes = C::P_BYTES + C::ROW_BYTES;
		const uint32_t warp = threadIdx.x / 32;

		barrier = 1 + warp / 2;
		half = C::SPLIT > 1 ? warp % 2 : 0;
		mine = shared + warp * bytes;
		others = shared + (warp ^ 1) * bytes;
	}

	/* The chunk that O's fragment @j of 8 columns is, less 4 * half. */
	static __device__ __forceinline__ int chunk(int j)
	{
		return C::SPLIT > 1 ? j / 4 * 8 + j % 4 : j;
	}

	/* Gives a value of each of the thread's rows, the same in all threads of a quad,
	 * to the other warp and gets the other's. */
	__device__ __forceinline__ void swap_rows(float (&ret_others)[2 * C::ATOMS],
	                                          const float (&values)[2 * C::ATOMS]) const
	{
		const uint32_t lane = threadIdx.x % 32;

		if (lane % 4 == 0)
#pragma unroll
			for (int r = 0; r < 2 * C::ATOMS; r++)
				fa_st_shared(mine + C::P_BYTES + (r * 8 + lane / 4) * 4,
				             __float_as_uint(values[r]));
		fa_barrier_sync(barrier, 64);
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
			ret_others[r] = __uint_as_float(
				fa_ld_shared(others + C::P_BYTES + (r * 8 + lane / 4) * 4));
	}
};

/* dots = Q K^T for a warp's rows and one tile. @q and @k: this lane's ldmatrix
 * addresses of the first fragments. */
template <class C>
__device__ __forceinline__ void fa_sm80_dots(float (&dots)[C::ATOMS][C::WARP_KEYS / 8][4],
                                             uint32_t q, uint32_t k)
{
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int j = 0; j < C::WARP_KEYS / 8; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				dots[a][j][e] = 0;

#pragma unroll
	for (int d = 0; d < C::DIM / 16; d++) {
		uint32_t fragment[C::ATOMS][4];

#pragma unroll
		for (int a = 0; a < C::ATOMS; a++)
			fa_ldmatrix_x4(fragment[a],
			               fa_swizzle<C::DIM>::advance(q, 2 * d) + a * 16 * C::DIM * 2);
#pragma unroll
		for (int j = 0; j < C::WARP_KEYS / 16; j++) {
			uint32_t b[4];

			fa_ldmatrix_x4(b,
			               fa_swizzle<C::DIM>::advance(k, 2 * d) + j * 16 * C::DIM * 2);
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				fa_mma_m16n8k16<typename C::T>(dots[a][2 * j], fragment[a], b[0],
				                               b[1]);
				fa_mma_m16n8k16<typename C::T>(dots[a][2 * j + 1], fragment[a],
				                               b[2], b[3]);
			}
		}
	}
}

/*
 * Sets what a row does not see to -inf. @key: that of dots[0][0][0], from the
 * position of the row of dots[0][0][0] or, without BAND, from 0; @start, @end: from
 * there to where the sequence begins and ends.
 */
template <class C, bool STARTS>
__device__ __forceinline__ void fa_sm80_mask(float (&dots)[C::ATOMS][C::WARP_KEYS / 8][4],
                                             const struct fa_cuda_attention &args, int32_t key,
                                             int32_t start, int32_t end)
{
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const int32_t first = (STARTS ? max(start, r * 8 - args.window_left)
		                              : r * 8 - args.window_left) -
		                      key;
		const int32_t last = C::BAND ? min(end - 1, r * 8 + args.window_right) - key
		                             : end - 1 - key;

#pragma unroll
		for (int j = 0; j < C::WARP_KEYS / 8; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				if (j * 8 + e > last || (C::BAND && j * 8 + e < first))
					dots[r / 2][j][r % 2 * 2 + e] = -INFINITY;
	}
}

/* Raises the rows' maxima to this tile's where they have fallen too far behind. */
template <class C>
__device__ __forceinline__ void fa_sm80_raise(struct fa_sm80_rows<C> &rows,
                                              const float (&dots)[C::ATOMS][C::WARP_KEYS / 8][4],
                                              float factor, const struct fa_sm80_pair<C> &pair)
{
	float max[2 * C::ATOMS];
	bool raise = false;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const int a = r / 2, e = r % 2 * 2;

		max[r] = fmaxf(dots[a][0][e], dots[a][0][e + 1]);
#pragma unroll
		for (int j = 1; j < C::WARP_KEYS / 8; j++)
			max[r] = fmaxf(max[r], fmaxf(dots[a][j][e], dots[a][j][e + 1]));
		raise |= fmaf(max[r], factor, rows.offset[r]) > 8;
	}
	raise = C::SPLIT > 1 ? fa_barrier_any(pair.barrier, 64, raise) : __any_sync(~0u, raise);
	if (!raise)
		return;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 1));
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 2));
	}
	if (C::SPLIT > 1) {
		float others[2 * C::ATOMS];

		pair.swap_rows(others, max);
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
			max[r] = fmaxf(max[r], others[r]);
	}
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const float offset = fminf(rows.offset[r], -max[r] * factor);
		const float scale = fa_ex2(offset - rows.offset[r]);

		rows.offset[r] = offset;
		rows.sum[r] *= scale;
#pragma unroll
		for (int j = 0; j < C::WARP_DIM_V / 8; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				rows.out[r / 2][j][r % 2 * 2 + e] *= scale;
	}
}

/* A step of 16 keys of accumulate: their part of exp(dots + offset), as fragments. */
template <class C>
__device__ __forceinline__ void
fa_sm80_probabilities(struct fa_sm80_rows<C> &rows, uint32_t (&ret_p)[C::ATOMS][4],
                      const float (&dots)[C::ATOMS][C::WARP_KEYS / 8][4], float factor, int step)
{
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float(&pair)[4] = dots[a][2 * step + i / 2];
			const int r = 2 * a + i % 2;
			const float lo = fa_ex2(fmaf(pair[i % 2 * 2], factor, rows.offset[r]));
			const float hi = fa_ex2(fmaf(pair[i % 2 * 2 + 1], factor, rows.offset[r]));

			rows.sum[r] += lo;
			rows.sum[r] += hi;
			ret_p[a][i] = fa_pack<typename C::T>(lo, hi);
		}
}

/* The other part: O += P V for 16 keys. @v: this lane's ldmatrix address of the keys'
 * first fragment. */
template <class C>
__device__ __forceinline__ void fa_sm80_product(struct fa_sm80_rows<C> &rows,
                                                const uint32_t (&p)[C::ATOMS][4], uint32_t v)
{
#pragma unroll
	for (int j = 0; j < C::WARP_DIM_V / 16; j++) {
		uint32_t b[4];

		fa_ldmatrix_x4_trans(
			b, fa_swizzle<C::DIM_V>::advance(v, fa_sm80_pair<C>::chunk(2 * j)));
#pragma unroll
		for (int a = 0; a < C::ATOMS; a++) {
			fa_mma_m16n8k16<typename C::T>(rows.out[a][2 * j], p[a], b[0], b[1]);
			fa_mma_m16n8k16<typename C::T>(rows.out[a][2 * j + 1], p[a], b[2], b[3]);
		}
	}
}

/* O += exp(dots + offset) V, and the sums with it. Exponentials of 16 keys at a time,
 * so that they overlap the products of the 16 before. @v: as in fa_sm80_product, of
 * the tile. */
template <class C>
__device__ __forceinline__ void
fa_sm80_accumulate(struct fa_sm80_rows<C> &rows, const float (&dots)[C::ATOMS][C::WARP_KEYS / 8][4],
                   float factor, uint32_t v, const struct fa_sm80_pair<C> &pair)
{
	constexpr int steps = C::WARP_KEYS / 16;
	constexpr uint32_t step_bytes = 16 * C::DIM_V * 2;

	if (C::SPLIT == 1) {
#pragma unroll
		for (int k = 0; k < steps; k++) {
			uint32_t p[C::ATOMS][4];

			fa_sm80_probabilities<C>(rows, p, dots, factor, k);
			fa_sm80_product<C>(rows, p, v + k * step_bytes);
		}
		return;
	}

	/* Each fragment passes to the same lane of the other warp. */
	const uint32_t lane_bytes = threadIdx.x % 32 * 16;
	const uint32_t v_mine = v + pair.half * steps * step_bytes;
	const uint32_t v_others = v + (1 - pair.half) * steps * step_bytes;
	uint32_t p[steps][C::ATOMS][4];

#pragma unroll
	for (int k = 0; k < steps; k++) {
		fa_sm80_probabilities<C>(rows, p[k], dots, factor, k);
#pragma unroll
		for (int a = 0; a < C::ATOMS; a++)
			fa_st_shared_v4(pair.mine + (k * C::ATOMS + a) * 512 + lane_bytes,
			                make_uint4(p[k][a][0], p[k][a][1], p[k][a][2], p[k][a][3]));
		fa_sm80_product<C>(rows, p[k], v_mine + k * step_bytes);
	}
	fa_barrier_sync(pair.barrier, 64);
#pragma unroll
	for (int k = 0; k < steps; k++) {
#pragma unroll
		for (int a = 0; a < C::ATOMS; a++) {
			const uint4 value = fa_ld_shared_v4(pair.others + (k * C::ATOMS + a) * 512 +
			                                    lane_bytes);

			p[k][a][0] = value.x;
			p[k][a][1] = value.y;
			p[k][a][2] = value.z;
			p[k][a][3] = value.w;
		}
		fa_sm80_product<C>(rows, p[k], v_others + k * step_bytes);
	}
}

/* Divides O by the sums, writes O and the LSE. @tile: the part of Q's shared memory
 * that belongs to these rows, which nobody reads any more. */
template <class C, class SOURCE>
__device__ __forceinline__ void fa_sm80_finish(struct fa_sm80_rows<C> &rows,
                                               const typename SOURCE::ARGS &given, uint32_t tile,
                                               const struct fa_sm80_pair<C> &pair)
{
	const struct fa_cuda_attention &args = SOURCE::attention(given);
	const typename SOURCE::WORK work = SOURCE::work(given, C::ROWS);
	const int32_t first_row = work.row + threadIdx.x / 32 / C::SPLIT * C::WARP_ROWS;
	const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	float sink = -INFINITY;

	if (C::LOGITS::any_sink && args.sinks)
		sink = args.sinks[work.head] * 1.44269504f;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 1);
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 2);
	}
	if (C::SPLIT > 1) {
		float others[2 * C::ATOMS];

		/* Its barrier also says that both are done with Q. */
		pair.swap_rows(others, rows.sum);
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
			rows.sum[r] += others[r];
	} else {
		__syncwarp();
	}
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const int32_t row = r * 8 + g;
		float sum = rows.sum[r], max = -rows.offset[r], scale;

		scale = sum > 0 ? 1 / sum : 0;
		if (C::LOGITS::any_sink && sink != -INFINITY) {
			const float top = fmaxf(max, sink);
			const float shrink = fa_ex2(max - top);

			sum = sum * shrink + fa_ex2(sink - top);
			scale = shrink / sum;
			max = top;
		}
#pragma unroll
		for (int j = 0; j < C::WARP_DIM_V / 8; j++)
			fa_st_shared(
				tile +
					fa_swizzle<C::DIM_V>::offset(row, pair.chunk(j) +
			                                                          4 * pair.half) +
					t * 4,
				fa_pack<typename C::T>(rows.out[r / 2][j][r % 2 * 2] * scale,
			                               rows.out[r / 2][j][r % 2 * 2 + 1] * scale));
		if (args.lse && t == 0 && pair.half == 0 && work.slice == 0 &&
		    first_row + row < work.n_q)
			args.lse[work.sequence * args.lse_stride_batch +
			         ((int64_t)work.first_q + first_row + row) * args.lse_stride_token +
			         work.head * args.lse_stride_head] = sum > 0 ? (max + fa_lg2(sum)) *
			                                                               0.693147181f
			                                                     : -INFINITY;
	}
	if (C::SPLIT > 1)
		fa_barrier_sync(pair.barrier, 64);
	else
		__syncwarp();

	/* Of a pair's rows, each warp stores half. */
	constexpr int store_rows = C::WARP_ROWS / C::SPLIT;

	fa_store_rows<store_rows, C::DIM_V, C::LOGITS::any_alignment>(
		tile + pair.half * store_rows * C::DIM_V * 2,
		(char *)fa_work_base(args.out, work.sequence, work.first_q, work.head) +
			work.slice * C::DIM_V * 2,
		args.out.stride_token, first_row + pair.half * store_rows, work.n_q,
		args.head_dim_v - work.slice * C::DIM_V, args.aligned);
}

template <class C, class SOURCE = struct fa_sm80_dense>
__device__ __forceinline__ void fa_sm80_forward(const typename SOURCE::ARGS &given)
{
	extern __shared__ __align__(1024) char shared_memory[];

	const struct fa_cuda_attention &args = SOURCE::attention(given);
	const typename SOURCE::WORK work = SOURCE::work(given, C::ROWS);
	if (work.row >= work.n_q)
		return;

	const uint32_t q_tile = fa_shared_address(shared_memory);
	const uint32_t kv_tiles = q_tile + C::Q_BYTES; /* a stage: K, then V */
	constexpr uint32_t stage_bytes = C::K_BYTES + C::V_BYTES;
	const uint32_t lane = threadIdx.x % 32;
	const int32_t warp_row = threadIdx.x / 32 / C::SPLIT * C::WARP_ROWS;
	const struct fa_sm80_pair<C> pair(kv_tiles + C::STAGES * stage_bytes);

	/* The block's keys, and the tile that is walked first. */
	int32_t begin = 0, end = work.n_k;
	if (C::BAND) {
		const int32_t last_row = min(work.row + C::ROWS, work.n_q) - 1;

		begin = max(max(begin, SOURCE::start(work)),
		            work.row + work.diagonal - args.window_left);
		end = min(end, last_row + work.diagonal + args.window_right + 1);
	}
	const int32_t first_tile = begin / C::KEYS;
	const int32_t tile = end > begin ? (end - 1) / C::KEYS : first_tile - 1;

	const struct fa_loader<C::ROWS, C::DIM, C::THREADS> q_loader(
		fa_work_base(args.q, work.sequence, work.first_q, work.head), args.q.stride_token,
		work.row, args.head_dim);
	auto k_loader = SOURCE::template k<C>(given, work, tile * C::KEYS);
	auto v_loader = SOURCE::template v<C>(given, work, tile * C::KEYS, k_loader);
	const bool elements = C::LOGITS::any_alignment && !args.aligned;

	/* Only the tile that is walked first can have keys past the end. */
	if (tile >= first_tile) {
		const int32_t keys = work.n_k - tile * C::KEYS;

		if (elements) {
			q_loader.load_elements(q_tile, work.n_q - work.row);
			k_loader.load_elements(kv_tiles, keys);
			v_loader.load_elements(kv_tiles + C::K_BYTES, keys);
		} else {
			q_loader.load_part(q_tile, work.n_q - work.row);
			k_loader.load_part(kv_tiles, keys);
			v_loader.load_part(kv_tiles + C::K_BYTES, keys);
		}
		fa_cp_async_commit();
	}

	/* This lane's ldmatrix addresses: of Q, of K's and of V's place in a stage. */
	const uint32_t q_lane = q_tile +
	                        fa_swizzle<C::DIM>::offset(warp_row + lane % 16, lane / 16);
	const uint32_t k_lane = fa_swizzle<C::DIM>::offset(
		pair.half * C::WARP_KEYS + lane % 8 + lane / 16 * 8, lane / 8 % 2);
	const uint32_t v_lane = C::K_BYTES +
	                        fa_swizzle<C::DIM_V>::offset(lane % 16, pair.half * 4 + lane / 16);

	const typename C::LOGITS logits(args, work.head);
	const float factor = logits.factor();
	struct fa_sm80_rows<C> rows;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		rows.offset[r] = FLT_MAX;
		rows.sum[r] = 0;
	}
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int j = 0; j < C::WARP_DIM_V / 8; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				rows.out[a][j][e] = 0;

	/* Keys are counted from where the warp's first row stands: few registers. */
	const int32_t origin = C::BAND ? work.row + warp_row + work.diagonal : 0;
	const int32_t rest = work.n_k - origin, last_key = first_tile * C::KEYS - origin;
	const int32_t start = SOURCE::start(work) - origin;
	int32_t key = tile * C::KEYS - origin;
	uint32_t stage = 0;

#pragma unroll 1
	for (; key >= last_key; key -= C::KEYS, stage ^= 1) {
		const uint32_t kv = kv_tiles + stage * stage_bytes;

		fa_cp_async_wait<0>();
		__syncthreads();
		if (key > last_key) {
			const uint32_t next = kv_tiles + (stage ^ 1) * stage_bytes;

			k_loader.retreat();
			v_loader.retreat();
			if (elements) {
				k_loader.load_elements(next, C::KEYS);
				v_loader.load_elements(next + C::K_BYTES, C::KEYS);
			} else {
				k_loader.load(next);
				v_loader.load(next + C::K_BYTES);
			}
			fa_cp_async_commit();
		}

		/* Does no row of this warp see a key of this tile? */
		if (C::BAND &&
		    (key >= C::WARP_ROWS + args.window_right || key + C::KEYS <= -args.window_left))
			continue;

		const int32_t lane_key = key + pair.half * C::WARP_KEYS + lane % 4 * 2 -
		                         (C::BAND ? lane / 4 : 0);
		float dots[C::ATOMS][C::WARP_KEYS / 8][4];

		fa_sm80_dots<C>(dots, q_lane, kv + k_lane);
		logits.apply(dots, lane_key);
		/* Is there a key that some row does not see? */
		if (key + C::KEYS > rest ||
		    (C::BAND && (key + C::KEYS - 1 > args.window_right ||
		                 key < C::WARP_ROWS - 1 - args.window_left ||
		                 (SOURCE::STARTS && key < start))))
			fa_sm80_mask<C, SOURCE::STARTS>(dots, args, lane_key,
			                                start - (C::BAND ? lane / 4 : 0),
			                                rest - (C::BAND ? lane / 4 : 0));
		fa_sm80_raise<C>(rows, dots, factor, pair);
		fa_sm80_accumulate<C>(rows, dots, factor, kv + v_lane, pair);
	}

	fa_sm80_finish<C, SOURCE>(rows, given,
	                          fa_shared_address(shared_memory) +
	                                  threadIdx.x / 32 / C::SPLIT * C::WARP_ROWS * C::DIM * 2,
	                          pair);
}
