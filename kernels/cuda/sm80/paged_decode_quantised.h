/*
 * Attention for few query rows over quantised pages: as paged_decode.h, but codes stay bytes until
 * they are in registers. There they become fp16, exactly. Both products are in fp16 whatever the
 * tensors' type.
 *   Q  bf16 exceeds the range of fp16: each row is multiplied by a power of two, so that its
 *      largest element is between 2^10 and 2^11, and its dots are divided by it.
 *   K  as lane (g, t) of mma.m16n8k16, a lane loads columns 16 t to 16 t + 15 of 64, four per step.
 *      Q's columns are permuted to match.
 *   V  ldmatrix.trans treats two 8-bit columns as one of 16 bits: a register has them of two
 *      tokens and is unpacked into the even and the odd column, which are separate tiles. A
 *      thread's tiles 2 c and 2 c + 1 are columns 16 c + 4 t to 16 c + 4 t + 3.
 * Scales of K multiply the dots. Scales of V's tokens multiply the weights, relative to the largest
 * that the row has seen, which keeps them in fp16's range; O is rescaled at the segment's end.
 */
#pragma once

#include "kernels/cuda/common/quantised.h"
#include "kernels/cuda/sm80/paged_decode.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

template <int STORE_, int DIM_, int DIM_V_, int ATOMS_, int WARPS_, int STAGES_>
struct fa_quantised_config {
	using T = fa_f16;
	static constexpr int STORE = STORE_, DIM = DIM_, DIM_V = DIM_V_, ATOMS = ATOMS_;
	static constexpr int WARPS = WARPS_, STAGES = STAGES_;
	static constexpr int THREADS = WARPS * 32, ROWS = ATOMS * 16;
	static constexpr int BYTES = 2, STORED = 1; /* bytes of an element; of a code */
	static constexpr bool F32 = false, QUANTISED = true, SPLIT_ITEMS = false,
			      PRECOMPUTED = false, ROWS_IN_FP32 = false;
	static constexpr int OWN = FA_OWN_NO;

	static constexpr int JOINED = THREADS;
	static __device__ __forceinline__ void join(void)
	{
		__syncthreads();
	}
	static __device__ __forceinline__ int32_t key(uint32_t t, int i)
	{
		return 2 * t + i % 2 + i / 2 * 8;
	}

	static constexpr int SPLIT = 1, WARP_DIM_V = DIM_V, WARP_KEYS = FA_CUDA_PAGED_STRIP;
	static constexpr uint32_t P_BYTES = 0, ROW_BYTES = 0;

	/* A stage: K, V, then the scales of the strip's tokens, of K and of V. */
	static constexpr uint32_t PITCH = DIM, PITCH_V = DIM_V;
	static constexpr uint32_t K_BYTES = 16 * PITCH, SCALES = K_BYTES + 16 * PITCH_V;
	static constexpr uint32_t STRIP_BYTES = SCALES + 128;
	static constexpr uint32_t MERGE_COLUMNS = FA_SM80_PAGED_MERGE_COLUMNS(ATOMS);
	static constexpr uint32_t MERGE_PITCH = FA_SM80_PAGED_MERGE_PITCH(ATOMS);

	static constexpr uint32_t RING = 0;
	static constexpr uint32_t Q = RING + WARPS * STAGES * STRIP_BYTES;
	static constexpr uint32_t MERGE = Q + ROWS * DIM * 2;
	static constexpr uint32_t STATS = MERGE + WARPS * ROWS * MERGE_PITCH * 4;
	static constexpr uint32_t ROWS_INFO = STATS + WARPS * ROWS * 8;
	static constexpr uint32_t FACTORS = ROWS_INFO + ROWS * 32; /* factors of the rows' dots */
	static constexpr uint32_t SHARED_BYTES = FACTORS + ROWS * 4;

	/* The place of 16 bytes of a row in a strip, in units of 16 bytes. Free of bank conflicts:
	 * eight rows of one column for ldmatrix; of K, two rows of four. */
	template <bool V>
	static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t chunk)
	{
		if (V)
			return chunk ^ (DIM_V >= 128 ? row & 7 : row >> 1 & 3);
		return DIM >= 128 ? chunk ^ (row & 1) << 2 : chunk;
	}

	static_assert(SHARED_BYTES ==
	                      FA_SM80_QUANTISED_SHARED_BYTES(DIM, DIM_V, ATOMS, WARPS, STAGES),
	              "the host's table must agree");
	static_assert((DIM == 64 || DIM % 128 == 0) && (DIM_V == 64 || DIM_V % 128 == 0),
	              "chunks stay in their rows");
	static_assert(DIM <= 256 || DIM_V <= 256, "O fits the registers");
	static_assert(Q % 128 == 0, "rows of Q swizzle");
};

/* ---- the strips */

/* Computes dots in units of K's codes. @q: this lane's ldmatrix address; @k: the tile. */
template <class C>
__device__ __forceinline__ void fa_quantised_dots(float (&dots)[C::ATOMS][2][4], uint32_t q,
                                                  uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const uint32_t at = k + g * C::PITCH + C::template place<false>(g, t) * 16;

#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				dots[a][j][e] = 0;

#pragma unroll(C::DIM > 128 ? 1 : C::DIM / 64)
	for (int c = 0; c < C::DIM / 64; c++) {
		/* Chunk 4 c + t: of eight, the first or the second four. */
		const uint32_t place = (at ^ c % 2 * 64) + c / 2 * 128;
		uint32_t keys[2][4];

#pragma unroll
		for (int j = 0; j < 2; j++)
			*(uint4 *)keys[j] = fa_ld_shared_v4(place + 8 * j * C::PITCH);
#pragma unroll
		for (int s = 0; s < 4; s++) {
			uint32_t fragment[C::ATOMS][4], b[2][2];

#pragma unroll
			for (int a = 0; a < C::ATOMS; a++)
				fa_ldmatrix_x4(fragment[a],
				               fa_swizzle<C::DIM>::advance(q, 2 * (4 * c + s)) +
				                       a * 16 * C::DIM * 2);
#pragma unroll
			for (int j = 0; j < 2; j++)
				fa_quantised_unpack<C::STORE>(keys[j][s], b[j][0], b[j][1]);
#pragma unroll
			for (int j = 0; j < 2; j++)
#pragma unroll
				for (int a = 0; a < C::ATOMS; a++)
					fa_mma_m16n8k16<fa_f16>(dots[a][j], fragment[a], b[j][0],
					                        b[j][1]);
		}
	}
}

template <class C>
__device__ __forceinline__ void fa_quantised_product(struct fa_warp_rows<C> &rows,
                                                     const uint32_t (&p)[C::ATOMS][4], uint32_t v)
{
#pragma unroll
	for (int i = 0; i < C::DIM_V / 32; i++) {
		uint32_t b[4];

		/* Loads chunks 2 i and 2 i + 1, which are permuted among eight (64 columns:
		 * four). */
		fa_ldmatrix_x4_trans(b, (v ^ i % 4 * 32) + i / 4 * 128);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			uint32_t even[2], odd[2];

			fa_quantised_unpack_even_odd<C::STORE>(b[2 * n], even[0], odd[0]);
			fa_quantised_unpack_even_odd<C::STORE>(b[2 * n + 1], even[1], odd[1]);
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				fa_mma_m16n8k16<fa_f16>(rows.out[a][4 * i + 2 * n], p[a], even[0],
				                        even[1]);
				fa_mma_m16n8k16<fa_f16>(rows.out[a][4 * i + 2 * n + 1], p[a],
				                        odd[0], odd[1]);
			}
		}
	}
}

/* ---- a segment */

/* 8 columns of a row of Q as fp16, in K's column order: those from 8 chunk on are words 2 (chunk %
 * 2) and the next of what lanes with t load of K. @power: of bf16. */
template <class C>
__device__ __forceinline__ void fa_quantised_store_q(uint32_t address, uint32_t row, uint32_t chunk,
                                                     uint4 value, bool bf16,
                                                     const struct fa_quantised_q_scale &power)
{
	const uint32_t t = chunk % 8 / 2, step = chunk / 8 * 4 + chunk % 2 * 2;
	const uint32_t words[4] = { value.x, value.y, value.z, value.w };

#pragma unroll
	for (int w = 0; w < 4; w++)
		fa_st_shared(address + C::Q +
		                     fa_swizzle<C::DIM>::offset(row, 2 * (step + w / 2) + w % 2) +
		                     4 * t,
		             bf16 ? power.to_f16(words[w]) : words[w]);
	if (chunk == 0)
		fa_st_shared(address + C::FACTORS + 4 * row,
		             __float_as_uint(bf16 ? power.factor : 1));
}

/* Rows with more chunks than a warp has lanes: a warp takes whole rows. */
template <class C>
__device__ __forceinline__ void fa_quantised_load_wide(const struct fa_cuda_paged_attention &args,
                                                       const fa_paged_segment_of<C> &segment,
                                                       uint32_t address, bool bf16)
{
	constexpr int chunks = C::DIM / 8, each = (chunks + 31) / 32;
	const uint32_t lane = threadIdx.x % 32;

#pragma unroll 1
	for (uint32_t row = threadIdx.x / 32; row < C::ROWS; row += C::WARPS) {
		const auto from = fa_paged_q_row<C>(args, segment, row);
		uint4 values[each];
		uint32_t most = 0;

#pragma unroll
		for (int i = 0; i < each; i++) {
			values[i] = make_uint4(0, 0, 0, 0);
			if (i * 32 + lane < chunks)
				values[i] = fa_paged_q_chunk<C>(args.attention, from,
				                                i * 32 + lane);
			most = max(most, fa_quantised_max_magnitude(values[i]));
		}
#pragma unroll
		for (int mask = 16; mask > 0; mask /= 2)
			most = max(most, __shfl_xor_sync(~0u, most, mask));

		const struct fa_quantised_q_scale power(most);

#pragma unroll
		for (int i = 0; i < each; i++)
			if (i * 32 + lane < chunks)
				fa_quantised_store_q<C>(address, row, i * 32 + lane, values[i],
				                        bf16, power);
	}
}

/* Writes Q of a part as fp16 in K's column order, factors and the rows' info. All threads; the
 * caller's barrier makes the data visible. */
template <class C>
__device__ __forceinline__ void fa_quantised_begin(const struct fa_cuda_paged_attention &args,
                                                   const fa_paged_segment_of<C> &segment,
                                                   char *shared)
{
	const bool bf16 = fa_quantised_of(args).dtype == FA_STORE_DTYPE_BF16;
	const uint32_t address = fa_shared_address(shared);
	constexpr uint32_t chunks = C::DIM / 8;

	if constexpr (chunks > 32) {
		fa_quantised_load_wide<C>(args, segment, address, bf16);
	} else {
#pragma unroll 1
		for (uint32_t i = threadIdx.x; i < C::ROWS * chunks; i += C::THREADS) {
			const uint32_t row = i / chunks, chunk = i % chunks;
			const uint4 value = fa_paged_q_chunk<C>(
				args.attention, fa_paged_q_row<C>(args, segment, row), chunk);
			uint32_t most = fa_quantised_max_magnitude(value);

			if (bf16) {
#pragma unroll
				for (int mask = chunks / 2; mask > 0; mask /= 2)
					most = max(most, __shfl_xor_sync(~0u, most, mask));
			}
			fa_quantised_store_q<C>(address, row, chunk, value, bf16,
			                        fa_quantised_q_scale(most));
		}
	}
	if (threadIdx.x < C::ROWS)
		((struct fa_paged_row *)(shared + C::ROWS_INFO))[threadIdx.x] = fa_paged_row_of<C>(
			args, segment, threadIdx.x);
}

template <class C>
__device__ __forceinline__ void fa_quantised_decode(const struct fa_cuda_paged_attention &args)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const struct fa_cuda_attention &p = args.attention;
	const struct fa_cuda_paged_quantised &quantised = fa_quantised_of(args);
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
	const uint32_t ring = shared + C::RING + warp * C::STAGES * C::STRIP_BYTES;
	/* This lane's ldmatrix addresses: of Q, and of V within a stage. */
	const uint32_t q = shared + C::Q + fa_swizzle<C::DIM>::offset(lane % 16, lane / 16);
	const uint32_t v = C::K_BYTES + lane % 16 * C::PITCH_V +
	                   C::template place<true>(lane % 16, lane / 16) * 16;
	struct fa_logits_rich logits(p, 0);
	struct fa_paged_loader<C> loader;
	fa_paged_segment_of<C> segment;
	uint32_t stage = ring;

	logits.slope = 0;
	loader.start(args, shared);
#pragma unroll
	for (int i = 0; i < C::STAGES - 1; i++)
		loader.step(args);
	segment.start(args, blockIdx.x);

	do {
		const struct fa_cuda_paged_item &item = segment.item;
		const uint32_t rows_info = shared + C::ROWS_INFO, head = segment.kv_head(args);
		struct fa_warp_rows<C> rows;
		struct fa_quantised_v_unit<C> unit;

		fa_quantised_begin<C>(args, segment, shared_memory);
		__syncthreads(); /* Q, factors and the rows' info are written */

		fa_warp_clear<C>(rows);
		unit.start(quantised.token_scales ? FLT_MAX : 1);

		const struct fa_paged_unmasked clear = fa_paged_unmasked_of<C>(args, item,
		                                                               rows_info);

#pragma unroll 1
		for (int32_t token = segment.begin + warp * FA_CUDA_PAGED_STRIP;
		     token < segment.end; token += C::WARPS * FA_CUDA_PAGED_STRIP) {
			if constexpr (fa_own_patterns<C>)
				if (fa_own_of(args).pattern_strips &&
				    !fa_own_sees(args, fa_paged_first_position(item),
				                 segment.kv_head(args), token))
					continue;

			const uint32_t scales_v = stage + C::SCALES + 64;
			const bool hides = clear.hides(token);
			float dots[C::ATOMS][2][4], scales[4];
			struct fa_paged_visibility visible;
			uint32_t weights[C::ATOMS][4];

			fa_cp_async_wait<C::STAGES - 2>();
			__syncwarp(); /* the strip has arrived, and all are done with the previous one */
			loader.step(args);

			fa_quantised_dots<C>(dots, q, stage);
			if (quantised.token_scales) {
				fa_quantised_scales(scales, stage + C::SCALES);
			} else {
#pragma unroll
				for (int i = 0; i < 4; i++)
					scales[i] = fa_quantised_k_scale<C>(args, head);
			}
#pragma unroll
			for (int r = 0; r < 2 * C::ATOMS; r++) {
				const float factor = __uint_as_float(
					fa_ld_shared(shared + C::FACTORS + 4 * (g + 8 * r)));

#pragma unroll
				for (int i = 0; i < 4; i++)
					dots[r / 2][i / 2][r % 2 * 2 + i % 2] *= factor * scales[i];
			}
			logits.apply(dots, 0);
			if (hides)
				visible = fa_quantised_softmax<C, true>(args, item, rows, unit,
				                                        weights, dots, scales_v,
				                                        rows_info, token);
			else
				visible = fa_quantised_softmax<C, false>(args, item, rows, unit,
				                                         weights, dots, scales_v,
				                                         rows_info, token);
			if (hides && !fa_quantised_has_no_nan<C>(stage + C::K_BYTES))
				fa_quantised_move_nans<C>(rows, stage + C::K_BYTES, visible);
			fa_quantised_product<C>(rows, weights, stage + v);

			stage += C::STRIP_BYTES;
			if (stage == ring + C::STAGES * C::STRIP_BYTES)
				stage = ring;
		}
		unit.settle(rows, args, head);
		fa_paged_end<C>(args, segment, rows, shared_memory);
	} while (segment.next(args));
}
