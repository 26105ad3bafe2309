/*
 * Attention for few query rows over pages that hold codes of a byte, with bulk copies:
 * paged_decode.h's way, from bytes to fragments as in sm80/paged_codes.h (sm80/codes.h).
 *
 * A tile of codes has half the bytes of one of 16-bit elements and as many tokens, and turning
 * codes into fp16 comes on top, so that warps have less than half the time for each. A tile is
 * therefore not all warps': GROUPS of four warps take tiles in turn, and within a tile each warp
 * has 16 tokens, as in paged_decode.h. As long as a warp is at a tile, GROUPS - 1 others arrive.
 *
 *   Q  fragments, made once a segment by a warp that does nothing else, while the segment before
 *      is computed; in shared memory in the order of lanes. Warps load them into registers, or
 *      each time, where they take too many.
 *   K  a lane loads 16 bytes, four steps along k. Rows of 128 bytes and more begin in the same
 *      bank: odd rows read the second four of eight chunks when even ones read the first, and
 *      exchange them afterwards. Of rows of 64 bytes eight lanes' chunks are in all banks.
 *   V  ldmatrix.trans takes two columns for one of 16 bits. Row i of eight gives chunk c ^ i
 *      (rows of 64 bytes: c ^ i / 2), and so all banks; lane (g, t) then has columns 2g and
 *      2g + 1 of chunk c ^ 2t for key 2t and of chunk c ^ 2t ^ 1 for key 2t + 1 (c ^ t for
 *      both). One permutation of bytes brings the two keys together and the columns apart; then
 *      registers are exchanged by the bits of t.
 */
#pragma once

#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/logits.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/control.h"
#include "kernels/cuda/ptx/ldmatrix.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm80/codes.h"
#include "kernels/cuda/sm80/paged_part.h"
#include "kernels/cuda/sm80/pair.h"
#include "kernels/cuda/sm80/softmax.h"
#include "kernels/cuda/sm90/paged_kernels.h"
#include "kernels/cuda/sm90/paged_load.h"
#include "kernels/cuda/sm90/paged_part.h"

#include <float.h>
#include <stdint.h>

/* DIM, ATOMS, STAGES, SMALL, LEVELS: as in paged_config.h. There is one block to an SM. */
template <int STORE_, int DIM_, int ATOMS_, int GROUPS_, int STAGES_, bool SMALL_, bool LEVELS_>
struct fa_sm90_codes_config {
	using T = fa_f16; /* of fragments */
	static constexpr int STORE = STORE_, DIM = DIM_, DIM_V = DIM_, ATOMS = ATOMS_;
	static constexpr int GROUPS = GROUPS_, STAGES = STAGES_, ROWS = ATOMS * 16, BYTES = 2;
	/* Those that compute, four of each tile; those that load, one for each group; the one that
	 * makes fragments of Q; and as many as make four with them, because registers are given and
	 * taken by fours. */
	static constexpr int TAKERS = 4, WARPS = GROUPS * TAKERS, LOADERS = GROUPS;
	static constexpr int JOINED = WARPS * 32, THREADS = JOINED + 128;
	static constexpr int LOADER_REGISTERS = FA_SM90_CODES_LOADER_REGISTERS(GROUPS);
	static constexpr int GROUP_REGISTERS = FA_SM90_CODES_GROUP_REGISTERS(GROUPS);
	static constexpr bool F32 = false, CODES = true, SMALL = SMALL_, PIECES = false,
			      LEVELS = LEVELS_, DIVIDED = true;
	static constexpr bool APPENDS = false, EARLY = false, MEETS = true, ROWS_IN_FP32 = false;
	using SMALL_ARGS = struct fa_cuda_paged_small_attention_codes;

	static constexpr int SPLIT = 1, WARP_DIM_V = DIM_V, WARP_KEYS = FA_CUDA_PAGED_STRIP;
	static constexpr uint32_t P_BYTES = 0, ROW_BYTES = 0;

	/* A stage: K, V, then the scales of the tile's tokens, of K and of V. */
	static constexpr uint32_t PITCH = DIM, PITCH_V = DIM_V;
	static constexpr uint32_t QUARTER = 16 * PITCH, K_BYTES = 4 * QUARTER;
	static constexpr uint32_t SCALES = 2 * K_BYTES, STAGE_BYTES = SCALES + 512;
	static constexpr uint32_t STRIPS = 256 / DIM; /* of a copy, at most: 4 KiB */
	static constexpr bool Q_HELD = FA_SM90_CODES_Q_HELD(DIM, ATOMS);
	static constexpr uint32_t MERGE_COLUMNS = FA_SM90_CODES_MERGE_COLUMNS(ATOMS);
	static constexpr uint32_t MERGE_PITCH = FA_SM90_CODES_MERGE_PITCH(ATOMS);
	static constexpr uint32_t MERGE_ROWS = 0, MERGE_ROW_PITCH = 0;

	/* The block's shared memory, in this order. */
	static constexpr uint32_t RING = 0;
	/* Of a segment, and of the one behind it: [step][lane] of each atom, facts of rows, and
	 * factors of their dots. */
	static constexpr uint32_t Q = RING + STAGES * STAGE_BYTES;
	static constexpr uint32_t FACTS = ROWS * DIM * 2, FACTORS = FACTS + ROWS * 32;
	static constexpr uint32_t Q_BYTES = FACTORS + ROWS * 4;
	static constexpr uint32_t MERGE = Q + 2 * Q_BYTES; /* [warp][row] */
	static constexpr uint32_t STATS = MERGE + WARPS * ROWS * MERGE_PITCH * 4;
	static constexpr uint32_t LAST = STATS + WARPS * ROWS * 8;

	/* As in paged_config.h, and the same for the two of Q, of which all warps that compute
	 * wait for each. */
	static constexpr uint32_t FULL = LAST + 32, EMPTY = FULL + 8 * STAGES;
	static constexpr uint32_t Q_FULL = EMPTY + 8 * STAGES, Q_EMPTY = Q_FULL + 16;
	/* The walk where it starts. */
	static constexpr uint32_t START = Q_EMPTY + 16, SHARED_BYTES = START + 128;
	static constexpr uint32_t COMPUTE = 2; /* a barrier of those that do */

	static __device__ __forceinline__ void join(void)
	{
		fa_barrier_sync(COMPUTE, JOINED);
	}

	static __device__ __forceinline__ int32_t key(uint32_t t, int i)
	{
		return 2 * t + i % 2 + i / 2 * 8;
	}

	/* Rows are as in pages. */
	template <bool V> static __device__ __forceinline__ uint32_t place(uint32_t, uint32_t chunk)
	{
		return chunk;
	}

	static __device__ __forceinline__ bool are_numbers(uint4 value)
	{
		return STORE != FA_STORE_E4M3 ||
		       (fa_codes_nan(value.x) | fa_codes_nan(value.y) | fa_codes_nan(value.z) |
		        fa_codes_nan(value.w)) == 0;
	}

	static_assert(SHARED_BYTES == FA_SM90_CODES_SHARED_BYTES(DIM, ATOMS, GROUPS, STAGES),
	              "the host's table must agree");
	static_assert(THREADS == FA_SM90_CODES_THREADS(GROUPS), "likewise");
	static_assert(DIM == 64 || DIM == 128 || DIM == 256, "banks are as the loads think");
	/* Else a group that is ahead could take a stage's old phase for the one after the next. */
	static_assert(STAGES % GROUPS == 0, "a stage is one group's");
	static_assert(LOADERS == 1 || LOADERS == GROUPS, "a stage is one loader's, and a group's");
	static_assert(STAGES > GROUPS, "some arrive while others are computed");
	static_assert(FA_CUDA_PAGED_TILE == 64 && FA_CUDA_PAGED_STRIP == 16,
	              "a quarter of a tile lies in one page");
};

/* ---- Q */

/* What a lane has of a row of Q: columns that lanes with this t load of K, 16 of each 64. */
template <class C> struct fa_sm90_codes_row {
	uint32_t words[C::DIM / 64][8];

	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args,
	                                     const char *row)
	{
		const uint32_t t = threadIdx.x % 4;

#pragma unroll
		for (int i = 0; i < C::DIM / 32; i++) {
			const uint4 value = fa_paged_q_chunk<C>(args.attention, row,
			                                        i / 2 * 8 + 2 * t + i % 2);

			words[i / 2][i % 2 * 4] = value.x;
			words[i / 2][i % 2 * 4 + 1] = value.y;
			words[i / 2][i % 2 * 4 + 2] = value.z;
			words[i / 2][i % 2 * 4 + 3] = value.w;
		}
	}

	/* Makes fp16 of it; returns by what its dots are to be multiplied. */
	__device__ __forceinline__ float turn(const struct fa_cuda_paged_attention &args)
	{
		uint32_t most = 0;

		if (fa_codes_of(args).dtype != FA_CODES_BF16)
			return 1;
#pragma unroll
		for (int c = 0; c < C::DIM / 64; c++)
#pragma unroll
			for (int w = 0; w < 8; w += 4)
				most = max(most, fa_codes_most(make_uint4(
							 words[c][w], words[c][w + 1],
							 words[c][w + 2], words[c][w + 3])));
		most = max(most, __shfl_xor_sync(~0u, most, 1));
		most = max(most, __shfl_xor_sync(~0u, most, 2));

		const struct fa_codes_power power(most);

#pragma unroll
		for (int c = 0; c < C::DIM / 64; c++)
#pragma unroll
			for (int w = 0; w < 8; w++)
				words[c][w] = power.to_f16(words[c][w]);
		return power.factor;
	}

	/* Stores it as row g + 8 (@r % 2) of atom @r / 2. @q: the part's. */
	__device__ __forceinline__ void store(uint32_t q, int r) const
	{
		const uint32_t at = q + r / 2 * (C::DIM * 32) + threadIdx.x % 32 * 16 + r % 2 * 4;

#pragma unroll
		for (int s = 0; s < C::DIM / 16; s++) {
			fa_st_shared(at + s * 512, words[s / 4][s % 4 * 2]);
			fa_st_shared(at + s * 512 + 8, words[s / 4][s % 4 * 2 + 1]);
		}
	}
};

/* Where walks start: behind fa_sm90_codes_start(). */
template <class C>
__device__ __forceinline__ fa_paged_walk_of<C> fa_sm90_codes_start_of(const char *shared_memory)
{
	return *(const fa_paged_walk_of<C> *)(shared_memory + C::START);
}

/* The warp that makes fragments: of a segment when the one two before it has ended. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_prepare(const struct fa_cuda_paged_attention &args,
                                                      char *shared_memory)
{
	const struct fa_cuda_paged_codes &codes = fa_codes_of(args);
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t lane = threadIdx.x % 32, g = lane / 4;
	fa_paged_walk_of<C> walk = fa_sm90_codes_start_of<C>(shared_memory);
	uint32_t slot = 0, parity = 1;

	do {
		const int there = (int)walk.rows(args, C::ROWS);
		char *const q = shared_memory + C::Q + slot * C::Q_BYTES;

		if (C::ATOMS > 1)
			fa_sm90_paged_touch_q<C>(args, walk);
			/* One at a time: more take more registers than there are. */
#pragma unroll 1
		for (int r = 0; 8 * r < there; r++) {
			struct fa_sm90_codes_row<C> row;
			float factor;

			row.load(args, fa_paged_q_row<C>(args, walk, g + 8 * r));
			if (r == 0)
				fa_mbarrier_wait(shared + C::Q_EMPTY + 8 * slot, parity);
			factor = row.turn(args);
			row.store(fa_shared_address(q), r);
			if (!codes.token_scales)
				factor *= codes.k_scales[walk.kv_head(args)];
			if (lane % 4 == 0)
				((float *)(q + C::FACTORS))[g + 8 * r] = factor;
		}
		for (uint32_t i = lane; i < C::ROWS; i += 32)
			((struct fa_paged_fact *)(q + C::FACTS))[i] = fa_sm90_paged_fact_of<C>(
				args, walk, i);
		__syncwarp(); /* all have stored */
		if (lane == 0)
			fa_mbarrier_arrive(shared + C::Q_FULL + 8 * slot);
		slot ^= 1;
		parity ^= slot ^ 1;
	} while (walk.next(args));
}

/* A part's rows of Q: fragments, or where they are in shared memory. */
template <class C, bool HELD = C::Q_HELD> struct fa_sm90_codes_q {
	uint4 steps[C::ATOMS][C::DIM / 16];

	__device__ __forceinline__ void load(uint32_t q)
	{
#pragma unroll
		for (int i = 0; i < C::ATOMS * C::DIM / 16; i++)
			steps[i / (C::DIM / 16)][i % (C::DIM / 16)] = fa_ld_shared_v4(
				q + i * 512 + threadIdx.x % 32 * 16);
	}

	__device__ __forceinline__ uint4 get(int atom, int step) const
	{
		return steps[atom][step];
	}
};

template <class C> struct fa_sm90_codes_q<C, false> {
	uint32_t at; /* this lane's first */

	__device__ __forceinline__ void load(uint32_t q)
	{
		at = q + threadIdx.x % 32 * 16;
	}

	__device__ __forceinline__ uint4 get(int atom, int step) const
	{
		return fa_ld_shared_v4(at + (atom * (C::DIM / 16) + step) * 512);
	}
};

/* ---- a warp's 16 tokens of a tile */

/* dots += Q K^T for columns of which a lane has @keys of tokens g and g + 8: 16 of each 64. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_steps(float (&dots)[C::ATOMS][2][4],
                                                    const fa_sm90_codes_q<C> &q, int first,
                                                    const uint4 (&keys)[2])
{
	const uint32_t words[2][4] = { { keys[0].x, keys[0].y, keys[0].z, keys[0].w },
		                       { keys[1].x, keys[1].y, keys[1].z, keys[1].w } };

#pragma unroll
	for (int s = 0; s < 4; s++) {
		uint32_t b[2][2];

#pragma unroll
		for (int j = 0; j < 2; j++)
			fa_codes_neighbours<C::STORE>(words[j][s], b[j][0], b[j][1]);
#pragma unroll
		for (int a = 0; a < C::ATOMS; a++) {
			const uint4 step = q.get(a, first + s);
			const uint32_t fragment[4] = { step.x, step.y, step.z, step.w };

#pragma unroll
			for (int j = 0; j < 2; j++)
				fa_mma_m16n8k16<fa_f16>(dots[a][j], fragment, b[j][0], b[j][1]);
		}
	}
}

/* dots = Q K^T in units of K's codes. @k: the warp's first row. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_dots(float (&dots)[C::ATOMS][2][4],
                                                   const fa_sm90_codes_q<C> &q, uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const uint32_t at = k + g * C::PITCH + t * 16;
	const bool odd = g % 2;

#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				dots[a][j][e] = 0;

	if constexpr (C::DIM == 64) {
		const uint4 keys[2] = { fa_ld_shared_v4(at), fa_ld_shared_v4(at + 8 * C::PITCH) };

		fa_sm90_codes_steps<C>(dots, q, 0, keys);
	}
#pragma unroll
	for (int pair = 0; pair < C::DIM / 128; pair++) {
		uint4 keys[2][2]; /* [of the pair][j] */

#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int i = 0; i < 2; i++)
				keys[i][j] = fa_ld_shared_v4(at + (i ? !odd : odd) * 64 +
				                             8 * j * C::PITCH + pair * 128);
#pragma unroll
		for (int j = 0; j < 2; j++) {
			fa_sm90_paged_exchange(keys[0][j].x, keys[1][j].x, odd);
			fa_sm90_paged_exchange(keys[0][j].y, keys[1][j].y, odd);
			fa_sm90_paged_exchange(keys[0][j].z, keys[1][j].z, odd);
			fa_sm90_paged_exchange(keys[0][j].w, keys[1][j].w, odd);
		}
#pragma unroll
		for (int i = 0; i < 2; i++)
			fa_sm90_codes_steps<C>(dots, q, 8 * pair + 4 * i, keys[i]);
	}
}

/* This lane's address for ldmatrix, from a warp's first row of V on. */
template <class C> __device__ __forceinline__ uint32_t fa_sm90_codes_v(void)
{
	const uint32_t lane = threadIdx.x % 32, row = lane % 16;
	const uint32_t turn = C::DIM == 64 ? row / 2 % 4 : row % 8;

	return row * C::PITCH_V + (lane / 16 ^ turn) * 16;
}

/* Codes of 16 tokens and CHUNKS of 16 columns: ret[n][j] is tokens 8 n + 2t and the next,
 * columns 16 j + 2g in the low half and 16 j + 2g + 1 in the high half. */
template <class C, int CHUNKS>
__device__ __forceinline__ void fa_sm90_codes_values(uint32_t (&ret)[2][CHUNKS], uint32_t v)
{
	constexpr int near = CHUNKS / 4, far = CHUNKS / 2; /* 4 or 8 chunks */
	const uint32_t t = threadIdx.x % 4;

#pragma unroll
	for (int j = 0; j < CHUNKS; j += 2) {
		uint32_t part[4]; /* chunk j of both halves of the tokens, then chunk j + 1 */

		fa_ldmatrix_x4_trans(part, v ^ j * 16);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			const uint32_t a = part[n], b = part[2 + n];

			ret[n][j] = __byte_perm(a, CHUNKS == 4 ? a : b, 0x7160);
			ret[n][j + 1] = __byte_perm(b, CHUNKS == 4 ? b : a, 0x7160);
		}
	}
#pragma unroll
	for (int n = 0; n < 2; n++) {
#pragma unroll
		for (int j = 0; j < CHUNKS; j++)
			if (!(j & near))
				fa_sm90_paged_exchange(ret[n][j], ret[n][j + near], t & 1);
#pragma unroll
		for (int j = 0; j < far; j++)
			fa_sm90_paged_exchange(ret[n][j], ret[n][j + far], t & 2);
	}
}

/* O += P V. @v: this lane's address for ldmatrix. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_product(struct fa_sm80_rows<C> &rows,
                                                      const uint32_t (&p)[C::ATOMS][4], uint32_t v)
{
	constexpr int chunks = C::DIM_V == 64 ? 4 : 8;

#pragma unroll
	for (int i = 0; i < C::DIM_V / 16 / chunks; i++) {
		uint32_t words[2][chunks];

		fa_sm90_codes_values<C, chunks>(words, v + i * 128);
#pragma unroll
		for (int j = 0; j < chunks; j++) {
			const int tile = 2 * (chunks * i + j);
			uint32_t even[2], odd[2];

#pragma unroll
			for (int n = 0; n < 2; n++)
				fa_codes_neighbours<C::STORE>(words[n][j], even[n], odd[n]);
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				fa_mma_m16n8k16<fa_f16>(rows.out[a][tile], p[a], even[0], even[1]);
				fa_mma_m16n8k16<fa_f16>(rows.out[a][tile + 1], p[a], odd[0],
				                        odd[1]);
			}
		}
	}
}

/* One warp's 16 tokens from @token on. @stage: the tile; @quarter: which of it. */
template <class C>
__device__ __forceinline__ void
fa_sm90_codes_strip(const struct fa_cuda_paged_attention &args,
                    const struct fa_cuda_paged_item &item, const fa_sm90_codes_q<C> &q,
                    const float (&factors)[2 * C::ATOMS], struct fa_sm80_rows<C> &rows,
                    struct fa_codes_unit<C> &unit, uint32_t stage, uint32_t quarter, uint32_t facts,
                    int32_t token, bool hides)
{
	struct fa_logits_rich logits(args.attention, 0);
	const uint32_t k = stage + quarter * C::QUARTER, v = k + C::K_BYTES;
	const uint32_t scales_k = stage + C::SCALES + quarter * 64, scales_v = scales_k + 256;
	struct fa_paged_sight sight;
	uint32_t weights[C::ATOMS][4];
	float dots[C::ATOMS][2][4], scales[4] = { 1, 1, 1, 1 };
	bool numbers = true;

	fa_sm90_codes_dots<C>(dots, q, k);
	if (fa_codes_of(args).token_scales)
		fa_codes_scales(scales, scales_k);
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			dots[r / 2][i / 2][r % 2 * 2 + i % 2] *= factors[r] * scales[i];
	logits.slope = 0; /* rows have their own: fa_paged_place() */
	logits.apply(dots, 0);
	if (hides) {
		numbers = fa_sm90_paged_clean<C>(item, v, token);
		sight = fa_codes_weigh<C, true>(args, item, rows, unit, weights, dots, scales_v,
		                                facts, token);
	} else {
		sight = fa_codes_weigh<C, false>(args, item, rows, unit, weights, dots, scales_v,
		                                 facts, token);
	}
	if (!numbers) {
		fa_codes_isolate<C>(rows, v, sight);
		/* What it stored comes before the copy that takes its place. */
		fa_proxy_fence_shared();
	}
	fa_sm90_codes_product<C>(rows, weights, v + fa_sm90_codes_v<C>());
}

/* ---- the warps that compute */

template <class C>
__device__ __forceinline__ void fa_sm90_codes_compute(const struct fa_cuda_paged_attention &args,
                                                      char *shared_memory)
{
	const struct fa_cuda_paged_codes &codes = fa_codes_of(args);
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t quarter = warp % C::TAKERS;
	fa_paged_walk_of<C> walk = fa_sm90_codes_start_of<C>(shared_memory);
	/* The next tile that is this warp's: where it goes, the same for all threads of the warp as
	 * the compiler is to know, and how many the segment has before. */
	uint32_t stage = __shfl_sync(~0u, warp / C::TAKERS, 0), parity = 0;
	int32_t before = (int32_t)stage;
	uint32_t turn = 0; /* segments so far */

	fa_sm90_paged_fence<C>(args);
	do {
		const struct fa_cuda_paged_item &item = walk.item;
		const uint32_t at_q = shared + C::Q + turn % 2 * C::Q_BYTES;
		const uint32_t facts = at_q + C::FACTS;
		int32_t tile = walk.begin + before * FA_CUDA_PAGED_TILE;
		struct fa_codes_unit<C> unit;
		float factors[2 * C::ATOMS];
		struct fa_sm80_rows<C> rows;
		fa_sm90_codes_q<C> q;

		fa_sm90_paged_begin<C>(args, walk, shared_memory);
		fa_sm80_clear<C>(rows);
		unit.start(codes.token_scales ? FLT_MAX : 1);
		fa_mbarrier_wait(shared + C::Q_FULL + turn % 2 * 8, turn / 2 % 2);
		q.load(at_q);
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
			factors[r] = __uint_as_float(
				fa_ld_shared(at_q + C::FACTORS + (lane / 4 + 8 * r) * 4));

		struct fa_paged_clear clear = fa_paged_clear_of<C>(args, item, facts);

		/* They have no registers to spare either. */
		clear.begin = __shfl_sync(~0u, clear.begin, 0);
		clear.end = __shfl_sync(~0u, clear.end, 0);

#pragma unroll 1
		for (; tile < walk.end; tile += C::GROUPS * FA_CUDA_PAGED_TILE) {
			const int32_t token = tile + (int32_t)quarter * FA_CUDA_PAGED_STRIP;

			fa_mbarrier_wait(shared + C::FULL + 8 * stage, parity);
			if (token < walk.end)
				fa_sm90_codes_strip<C>(args, item, q, factors, rows, unit,
				                       shared + C::RING + stage * C::STAGE_BYTES,
				                       quarter, facts, token, clear.hides(token));
			__syncwarp(); /* the warp is done with the tile */
			if (lane == 0)
				fa_mbarrier_arrive(shared + C::EMPTY + 8 * stage);
			stage += C::GROUPS;
			if (stage >= C::STAGES) {
				stage -= C::STAGES;
				parity ^= 1;
			}
		}
		before = (tile - walk.begin) / FA_CUDA_PAGED_TILE -
		         (walk.end - walk.begin + FA_CUDA_PAGED_TILE - 1) / FA_CUDA_PAGED_TILE;
		unit.settle(rows, codes, walk.kv_head(args));
		fa_sm90_paged_end<C>(args, walk, rows, shared_memory,
		                     (const struct fa_paged_fact *)(shared_memory + C::Q +
		                                                    turn % 2 * C::Q_BYTES +
		                                                    C::FACTS));
		__syncwarp(); /* the warp is done with Q and the facts */
		if (lane == 0)
			fa_mbarrier_arrive(shared + C::Q_EMPTY + turn % 2 * 8);
		turn++;
	} while (walk.next(args));
}

/* What all that follows needs: barriers, where walks start, rows of Q that no part has (zeros, or
 * what another part had). Warps that go their own ways wait for each other's code, behind jumps:
 * one finds out where all start. On an H200 launches of few sequences take 0.3 to 1 us less than
 * where each kind of warps began by itself. To ask for the first tiles in between, as paged_load.h
 * can, made them 1 us longer. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_start(const struct fa_cuda_paged_attention &args,
                                                    char *shared_memory)
{
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

	static_assert(C::STAGES <= 32 && sizeof(fa_paged_walk_of<C>) <= 128, "there is room");
	if (warp == C::WARPS) {
		fa_paged_walk_of<C> walk;

		walk.start(args, blockIdx.x);
		if (lane == 0)
			*(fa_paged_walk_of<C> *)(shared_memory + C::START) = walk;
	} else if (warp == C::WARPS + 1) {
		if (lane < C::STAGES) {
			fa_mbarrier_init(shared + C::FULL + 8 * lane, 1);
			fa_mbarrier_init(shared + C::EMPTY + 8 * lane, C::TAKERS);
			if (lane < 2) {
				fa_mbarrier_init(shared + C::Q_FULL + 8 * lane, 1);
				fa_mbarrier_init(shared + C::Q_EMPTY + 8 * lane, C::WARPS);
			}
			fa_mbarrier_init_fence();
		}
	} else if (warp < C::WARPS) {
		fa_await_launch_ahead();
		fa_sm90_paged_hide<C>(args);
		for (uint32_t i = threadIdx.x; i < 2 * C::Q_BYTES / 16; i += C::JOINED)
			fa_st_shared_v4(shared + C::Q + i * 16, make_uint4(0, 0, 0, 0));
	}
	fa_await_launch_ahead();
	__syncthreads();
}

template <class C>
__device__ __forceinline__ void fa_sm90_codes_decode(const struct fa_cuda_paged_attention &args)
{
	extern __shared__ __align__(1024) char shared_memory[];

	fa_sm90_codes_start<C>(args, shared_memory);
	/* The same for all threads of a warp, and the compiler is to know it. */
	if (__shfl_sync(~0u, threadIdx.x / 128, 0) == C::GROUPS) {
		fa_registers_give<C::LOADER_REGISTERS>();
		const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

		if (warp < C::WARPS + C::LOADERS) {
			fa_paged_walk_of<C> walk = fa_sm90_codes_start_of<C>(shared_memory);

			fa_sm90_paged_load<C>(args, fa_shared_address(shared_memory), walk);
		} else if (warp == C::WARPS + C::LOADERS)
			fa_sm90_codes_prepare<C>(args, shared_memory);
	} else {
		fa_registers_take<C::GROUP_REGISTERS>();
		fa_sm90_codes_compute<C>(args, shared_memory);
		/* Those who load have stored nothing, and may have left. */
		fa_done_behind(args.attention.done, 0, C::JOINED);
	}
}
