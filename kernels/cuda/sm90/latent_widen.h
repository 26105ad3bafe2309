/*
 * Producer warpgroup of decode of MLA over pages of e4m3: widens the block's tiles to bf16, in shared
 * memory as latent_load.h's copies would be. An element is the code times the token's or the head's
 * scale, rounded once.
 *
 * A thread loads 16 codes of a row at once, of rows 16 apart: a strip each. It loads what comes next
 * as soon as it has converted, and a tile ahead goes to L2.
 */
#pragma once

#include "kernels/cuda/common/quantised.h"
#include "kernels/cuda/ptx/bulk.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/sm90/latent_config.h"
#include "kernels/cuda/sm90/latent_load.h"

#include <stdint.h>

/* The strips of a warp's next tiles. Lane l < 16 looks up strip l / 4 and the scale of its token
 * 4 warp + l % 4. All lanes find them in shared memory, where two tiles take turns. */
template <class C> struct fa_sm90_latent_strips {
	static constexpr uint32_t STRIP_BYTES = FA_CUDA_PAGED_STRIP * C::DIM, NONE = UINT32_MAX;
	static_assert(STRIP_BYTES % 256 == 0, "strips begin where slots do");

	/* What a warp has in shared memory: for each of the two tiles its strips' places, in slots,
	 * and the scales of the warp's rows; of the segment what is looked up with, and all of it. */
	static constexpr uint32_t UNITS = 0, SCALES = 32, TABLE_START = 160, HEAD = 164, END = 168,
				  WALK = 176;

	uint32_t at;   /* struct fa_sm90_latent_lookup of the warp */
	uint32_t slot; /* of the tile after the next one; NONE: the strip is in no page */
	float scale;   /* of the next tile */

	__device__ __forceinline__ fa_sm90_latent_segment<C> *walk(char *shared_memory) const
	{
		return (fa_sm90_latent_segment<C> *)(shared_memory + WALK + at -
		                                     fa_shared_address(shared_memory));
	}

	/* Looks up the strips of the tile at @token. */
	__device__ __forceinline__ void find(const struct fa_cuda_paged_attention &args,
	                                     int32_t token)
	{
		const uint32_t key = (uint32_t)token + threadIdx.x % 16 / 4 * FA_CUDA_PAGED_STRIP;
		const uint32_t strip = key / FA_CUDA_PAGED_STRIP;
		const uint32_t page = (uint32_t)(strip * args.pages.page_magic >> 32);

		slot = NONE;
		/* Pages without tokens may not exist. */
		if ((int32_t)key < (int32_t)fa_ld_shared(at + END))
			slot = args.pages.table[fa_ld_shared(at + TABLE_START) + page];
	}

	/* Publishes where the strips of the tile at @token are, which were looked up last, moves them
	 * to L2, and loads their scales. */
	__device__ __forceinline__ void place(const struct fa_cuda_paged_attention &args,
	                                      int32_t token, uint32_t stage)
	{
		const struct fa_cuda_paged_quantised &codes = fa_quantised_of(args);
		const uint32_t head = fa_ld_shared(at + HEAD);
		const uint32_t strip = (uint32_t)token / FA_CUDA_PAGED_STRIP + threadIdx.x % 16 / 4;
		const uint32_t page = (uint32_t)(strip * args.pages.page_magic >> 32);
		const uint32_t in_head = head * args.pages.page_strips + strip -
		                         page * args.pages.page_strips;
		const uint32_t unit = slot == NONE ? NONE : slot + in_head * (STRIP_BYTES / 256);

		scale = 0;
		if (threadIdx.x % 4 == 0)
			fa_st_shared(at + UNITS + stage * 16 + threadIdx.x % 16, unit);
		if (slot != NONE) {
			if (threadIdx.x % 128 < 16 && threadIdx.x % 4 == 0)
				fa_bulk_prefetch(args.pages.k + (uint64_t)unit * 256, STRIP_BYTES);
			/* The compiler would keep the address's constant part. */
			const uint32_t scale_at = codes.k_scales_at + (uint32_t)fa_opaque_zero() +
			                          (in_head * FA_CUDA_PAGED_STRIP +
			                           threadIdx.x % 128 / 32 * 4 + threadIdx.x % 4) *
			                                  4;

			if (codes.token_scales)
				scale = __ldcg((const float *)(args.pages.k + (uint64_t)slot * 256 +
				                               scale_at));
			else
				scale = codes.k_scales[head];
		}
		__syncwarp(); /* the units are there */
	}

	/* Publishes the scales. */
	__device__ __forceinline__ void finish(uint32_t stage) const
	{
		fa_st_shared(at + SCALES + stage * 64 + threadIdx.x % 16 * 4,
		             __float_as_uint(scale));
		__syncwarp(); /* the scales are there */
	}

	__device__ __forceinline__ uint32_t unit(uint32_t stage, uint32_t strip) const
	{
		return fa_ld_shared(at + UNITS + stage * 16 + strip * 4);
	}

	/* Of the thread's row of a strip. */
	__device__ __forceinline__ float scale_of(uint32_t stage, uint32_t strip) const
	{
		return __uint_as_float(fa_ld_shared(at + SCALES + stage * 64 + strip * 16 +
		                                    threadIdx.x / 8 % 4 * 4));
	}
};

/* What a thread has of a tile: of row threadIdx.x / 8 % 16 of each strip, chunk threadIdx.x % 8 of
 * two columns of 64 elements. The column that is not V's is divided in halves: each thread has a
 * chunk of two of the strips. */
template <class C> struct fa_sm90_latent_codes {
	static constexpr uint32_t NONE = fa_sm90_latent_strips<C>::NONE;
	static constexpr uint32_t STRIP_ROWS = FA_CUDA_PAGED_STRIP * 128;
	uint4 words[4];
	uint32_t from; /* of the thread's chunk in a strip */
	uint32_t
		to; /* in a tile, of the first 16 bytes that the thread writes to a pair of columns */

	__device__ __forceinline__ void start(uint32_t thread)
	{
		const uint32_t row = thread / 8 % 16, chunk = thread % 8;
		/* Half of the threads begin with the second 16 bytes: no two of eight then meet in a
		 * bank. */
		const uint32_t at = row * 128 + ((chunk % 4 * 2 + chunk / 4) ^ row % 8) * 16;

		from = row * C::DIM + chunk * 16;
		to = at + chunk / 4 * C::COLUMN;
	}

	static __device__ __forceinline__ bool second_half(void)
	{
		return threadIdx.x & 4;
	}

	/* @piece: quarters in the order of their loads, then the last column. */
	static __device__ __forceinline__ uint32_t strip(uint32_t piece, uint32_t i)
	{
		return piece < C::QUARTERS ? i : 2 * i + second_half();
	}

	static constexpr __device__ __forceinline__ uint32_t loads(uint32_t piece)
	{
		return piece < C::QUARTERS ? 4 : 2;
	}

	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args,
	                                     const fa_sm90_latent_strips<C> &strips, uint32_t stage,
	                                     uint32_t piece, uint32_t i)
	{
		const uint32_t unit = strips.unit(stage, strip(piece, i));
		const uint32_t column = piece < C::QUARTERS
		                                ? C::quarter(piece) * 128
		                                : C::QUARTERS * 128 - second_half() * 64;

		words[i] = make_uint4(0, 0, 0, 0);
		if (unit != NONE)
			words[i] = __ldcg((const uint4 *)(args.pages.k + (uint64_t)unit * 256 +
			                                  from + column));
	}

	static __device__ __forceinline__ uint2 widen(uint32_t word, float scale)
	{
		uint32_t pairs[2], wide[2];

		fa_e4m3_to_f16_pairs(word, pairs[0], pairs[1]);
#pragma unroll
		for (int i = 0; i < 2; i++)
			wide[i] = fa_pack<fa_bf16>(
				__fmul_rn(fa_from_f16((uint16_t)pairs[i]), scale),
				__fmul_rn(fa_from_f16((uint16_t)(pairs[i] >> 16)), scale));
		return make_uint2(wide[0], wide[1]);
	}

	/* @tile: the stage's. */
	__device__ __forceinline__ void store(const fa_sm90_latent_strips<C> &strips,
	                                      uint32_t stage, uint32_t tile, uint32_t piece,
	                                      uint32_t i) const
	{
		const uint4 codes = words[i];
		const float scale = strips.scale_of(stage, strip(piece, i));
		const bool swap = second_half();
		const uint2 a = widen(swap ? codes.z : codes.x, scale);
		const uint2 b = widen(swap ? codes.w : codes.y, scale);
		const uint2 c = widen(swap ? codes.x : codes.z, scale);
		const uint2 d = widen(swap ? codes.y : codes.w, scale);
		const uint32_t at = piece < C::QUARTERS
		                            ? tile + to + C::quarter(piece) * C::QUARTER_BYTES +
		                                      i * STRIP_ROWS
		                            : tile + to - swap * (C::COLUMN - STRIP_ROWS) +
		                                      (C::COLUMNS - 1) * C::COLUMN +
		                                      2 * i * STRIP_ROWS;

		fa_st_shared_v4(at, make_uint4(a.x, a.y, b.x, b.y));
		fa_st_shared_v4(at ^ 16, make_uint4(c.x, c.y, d.x, d.y));
	}
};

template <class C>
__device__ __forceinline__ void fa_sm90_latent_widen(const struct fa_cuda_paged_attention &args,
                                                     char *shared_memory)
{
	const uint32_t shared = fa_shared_address(shared_memory);
	fa_sm90_latent_segment<C> segment;
	fa_sm90_latent_strips<C> strips;
	fa_sm90_latent_codes<C> codes;
	uint32_t parities = 3; /* a bit for each stage */

	static_assert(strips.WALK + sizeof(segment) <= C::LOOKUP_BYTES, "it fits");
	strips.at = shared + C::LOOKUPS + threadIdx.x % 128 / 32 * C::LOOKUP_BYTES;
	segment.start_team(args);
	fa_await_launch_ahead();
	do {
		int32_t token = segment.begin;
		uint32_t stage = 0;

		if (segment.own_rows(args) <= 0 || token >= segment.end)
			continue;
		if (threadIdx.x % 32 == 0) {
			fa_st_shared(strips.at + strips.TABLE_START, segment.item.table_start);
			fa_st_shared(strips.at + strips.HEAD, segment.kv_head(args));
			fa_st_shared(strips.at + strips.END, (uint32_t)segment.end);
			/* There are no registers for it meanwhile. */
			*strips.walk(shared_memory) = segment;
		}
		__syncwarp(); /* they are there */
		codes.start(threadIdx.x + fa_opaque_zero());
		strips.find(args, token);
		strips.place(args, token, 0);
#pragma unroll
		for (uint32_t i = 0; i < codes.loads(0); i++)
			codes.load(args, strips, 0, 0, i);
		strips.find(args, token + C::KEYS);
		strips.finish(0);
#pragma unroll 1
		for (; token < (int32_t)fa_ld_shared(strips.at + strips.END); token += C::KEYS) {
			/* Computed anew, which saves a register. */
			const uint32_t base = strips.at - C::LOOKUPS -
			                      (threadIdx.x + fa_opaque_zero()) % 128 / 32 *
			                              C::LOOKUP_BYTES;
			const uint32_t barriers = base + 8 * C::QUARTERS * stage;
			const uint32_t tile = base + C::K_AT + stage * C::TILE_BYTES;

			strips.place(args, token + C::KEYS, stage ^ 1);
#pragma unroll
			for (uint32_t piece = 0; piece <= C::QUARTERS; piece++) {
				const bool last = piece == C::QUARTERS;
				const uint32_t quarter = C::quarter(last ? piece - 1 : piece);

				if (!last)
					fa_mbarrier_wait(barriers + C::empty(0, quarter),
					                 parities >> stage & 1);
#pragma unroll
				for (uint32_t i = 0; i < codes.loads(piece); i++) {
					codes.store(strips, stage, tile, piece, i);
					if (!last && i < codes.loads(piece + 1))
						codes.load(args, strips, stage, piece + 1, i);
					if (last)
						codes.load(args, strips, stage ^ 1, 0, i);
				}
				/* The last column is in the last quarter. */
				if (piece == C::QUARTERS - 1)
					continue;
				fa_proxy_fence_shared();
				__syncwarp(); /* the warp has written its rows */
				if (threadIdx.x % 32 == 0)
					fa_mbarrier_arrive(barriers + C::full(0, quarter));
			}
#pragma unroll
			for (uint32_t i = codes.loads(C::QUARTERS); i < codes.loads(0); i++)
				codes.load(args, strips, stage ^ 1, 0, i);
			strips.finish(stage ^ 1);
			strips.find(args, token + 2 * C::KEYS);
			parities ^= 1u << stage;
			stage ^= 1;
		}
		segment = *strips.walk(shared_memory);
		__syncwarp(); /* all have read it */
	} while (segment.next_of_team(args));
}
