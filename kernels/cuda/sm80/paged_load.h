/*
 * The configuration of a decode kernel, and its copies of K and V into shared memory in strips of
 * 16 tokens. Each warp has two positions in the block's segments (paged-args.h): the first loads
 * strips into the warp's ring, the second follows and computes.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_segment.h"
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
 * DIM, DIM_V   columns of Q and K, of V and O, zero-padded
 *   ATOMS        16-row fragments
 *   WARPS        per block, with one block per SM
 *   STAGES       strips of a warp's ring
 *   SPLIT_ITEMS  supports fixed splits and prefixes (common/paged_combine.h)
 *   PRECOMPUTED  as in fa_paged_segment; there are no slices then
 *   ROWS_IN_FP32  an item has few rows per KV head, so fp32 can divide them exactly
 *   OWN          over a client's own pages (common/own.h)
 */
template <class T_, int DIM_, int DIM_V_, int ATOMS_, int WARPS_, int STAGES_,
          bool SPLIT_ITEMS_ = false>
struct fa_paged_config {
	using T = T_;
	static constexpr int DIM = DIM_, DIM_V = DIM_V_, ATOMS = ATOMS_, WARPS = WARPS_;
	static constexpr int STAGES = STAGES_, THREADS = WARPS * 32, ROWS = ATOMS * 16;
	static constexpr int BYTES = fa_paged_element<T>::bytes;
	static constexpr int STORED = BYTES;
	static constexpr bool F32 = BYTES == 4, QUANTISED = false, SPLIT_ITEMS = SPLIT_ITEMS_,
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

	static constexpr uint32_t PITCH = FA_SM80_PAGED_PITCH(DIM, BYTES);
	static constexpr uint32_t PITCH_V = DIM_V * BYTES;
	static constexpr uint32_t K_BYTES = 16 * PITCH, STRIP_BYTES = K_BYTES + 16 * PITCH_V;
	static constexpr uint32_t MERGE_COLUMNS = FA_SM80_PAGED_MERGE_COLUMNS(ATOMS);
	static constexpr uint32_t MERGE_PITCH = FA_SM80_PAGED_MERGE_PITCH(ATOMS);

	static constexpr uint32_t RING = 0;
	static constexpr uint32_t Q = RING + WARPS * STAGES * STRIP_BYTES;
	static constexpr uint32_t MERGE = Q + ROWS * PITCH; /* [warp][row][MERGE_PITCH] */
	static constexpr uint32_t STATS = MERGE + WARPS * ROWS * MERGE_PITCH * 4;
	static constexpr uint32_t ROWS_INFO = STATS + WARPS * ROWS * 8;
	static constexpr uint32_t SHARED_BYTES = ROWS_INFO + ROWS * 32;

	static_assert(SHARED_BYTES ==
	                      FA_SM80_PAGED_SHARED_BYTES(DIM, DIM_V, ATOMS, WARPS, STAGES, BYTES),
	              "the host's table must agree");
	static_assert(DIM % 64 == 0 && DIM_V % 64 == 0 && DIM_V <= 256,
	              "rows are whole groups of eight chunks, and O fits the registers");
	static_assert(!F32 || ATOMS == 1, "one fragment of rows");
	static_assert(THREADS * 2 <= ROWS * MERGE_COLUMNS || ROWS * MERGE_COLUMNS % 2 == 0,
	              "pairs of columns");
};

__device__ __forceinline__ int32_t fa_paged_first_position(const struct fa_cuda_paged_item &item)
{
	return (int32_t)item.n_k - (int32_t)item.n_q;
}

/* Copies strips in the order of computation. */
template <class C> struct fa_paged_loader {
	fa_paged_segment_of<C> segment;
	bool done;
	int32_t token; /* of the next strip */
	/* Slot of that strip's page. OWN: each lane's token has a page and an index in it. */
	uint32_t slot, in_own_page;
	const char *k, *v;
	uint32_t stage;
	uint32_t ring;
	uint32_t width_v;

	__device__ __forceinline__ void look_up(const struct fa_cuda_paged_attention &args)
	{
		const struct fa_cuda_pages &pages = args.pages;

		if constexpr (C::OWN) {
			const int32_t at = token + (int32_t)(threadIdx.x % FA_CUDA_PAGED_STRIP);

			slot = in_own_page = 0;
			if (at >= (int32_t)segment.item.begin && at < (int32_t)segment.item.n_k)
				slot = fa_own_page(args, segment.item.table_start, at, in_own_page);
			return;
		}

		const uint32_t page = (uint32_t)((token / FA_CUDA_PAGED_STRIP) * pages.page_magic >>
		                                 32);

		slot = pages.table[segment.item.table_start + page];
	}

	/* Goes to the warp's next strip of the segment that a pattern shows. */
	__device__ __forceinline__ void skip(const struct fa_cuda_paged_attention &args)
	{
		if constexpr (fa_own_patterns<C>) {
			if (!fa_own_of(args).pattern_strips)
				return;
			const uint32_t head = segment.kv_head(args);

#pragma unroll 1
			while (token < segment.end &&
			       !fa_own_sees(args, fa_paged_first_position(segment.item), head,
			                    token))
				token += C::WARPS * FA_CUDA_PAGED_STRIP;
		}
	}

	/* Goes to the warp's first strip of the segment, or of the next one that has any. */
	__device__ __forceinline__ void enter(const struct fa_cuda_paged_attention &args)
	{
		const struct fa_cuda_pages &pages = args.pages;

		for (;;) {
			token = segment.begin + threadIdx.x / 32 * FA_CUDA_PAGED_STRIP;
			skip(args);
			if (token < segment.end)
				break;
			done = !segment.next(args);
			if (done)
				return;
		}

		const uint32_t slice = segment.slice(args);
		const uint64_t head_tokens = (uint64_t)segment.kv_head(args) * pages.page_strips *
		                             FA_CUDA_PAGED_STRIP;

		if constexpr (C::OWN) {
			const struct fa_cuda_own &own = fa_own_of(args);

			k = pages.k + segment.kv_head(args) * own.k_head;
			v = pages.v + segment.kv_head(args) * own.v_head + slice * C::PITCH_V;
		} else {
			k = pages.k + head_tokens * pages.k_row;
			v = pages.v + head_tokens * pages.v_row + slice * C::PITCH_V;
		}
		width_v = min((uint32_t)args.attention.head_dim_v * C::STORED - slice * C::PITCH_V,
		              C::PITCH_V);
		look_up(args);
	}

	__device__ __forceinline__ void start(const struct fa_cuda_paged_attention &args,
	                                      uint32_t shared)
	{
		segment.start(args, blockIdx.x);
		ring = shared + C::RING + threadIdx.x / 32 * C::STAGES * C::STRIP_BYTES;
		stage = ring;
		done = false;
		enter(args);
	}

	/* Copies rows [low, high) of 16 (all, unless PART), @width bytes each; all else up to D
	 * elements becomes zero. */
	template <int D, bool V, bool PART>
	__device__ __forceinline__ void copy(uint32_t to, const char *from, uint32_t row_bytes,
	                                     uint32_t width, int32_t low, int32_t high) const
	{
		constexpr int chunks = D * C::STORED / 16;

		/* A lane's rows and chunks are constants apart, or else it divides. */
		if constexpr (32 % chunks == 0 || chunks % 32 == 0)
			copy_even<D, V, PART>(to, from, row_bytes, width, low, high);
		else
			copy_any<D, V, PART>(to, from, row_bytes, width, low, high);
	}

	template <int D, bool V, bool PART>
	__device__ __forceinline__ void copy_even(uint32_t to, const char *from, uint32_t row_bytes,
	                                          uint32_t width, int32_t low, int32_t high) const
	{
		constexpr int chunks = D * C::STORED / 16;
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

			if constexpr (C::QUANTISED)
				place = C::template place<V>(row + lane_row, lane_chunk + chunk);

			fa_cp_async_16_zfill(to + (row + lane_row) * pitch + place * 16,
			                     at + row * row_bytes + chunk * 16, there ? 16 : 0);
		}
	}

	template <int D, bool V, bool PART>
	__device__ __forceinline__ void copy_any(uint32_t to, const char *from, uint32_t row_bytes,
	                                         uint32_t width, int32_t low, int32_t high) const
	{
		constexpr uint32_t chunks = D * C::STORED / 16, pitch = V ? C::PITCH_V : C::PITCH;

#pragma unroll 4
		for (uint32_t at = threadIdx.x % 32; at < 16 * chunks; at += 32) {
			const uint32_t row = at / chunks, chunk = at % chunks;
			const bool there = chunk * 16 < width &&
			                   (!PART || ((int32_t)row >= low && (int32_t)row < high));
			uint32_t place = C::F32 ? chunk : chunk ^ row % 8;

			if constexpr (C::QUANTISED)
				place = C::template place<V>(row, chunk);
			fa_cp_async_16_zfill(to + row * pitch + place * 16,
			                     from + row * row_bytes + chunk * 16, there ? 16 : 0);
		}
	}

	/* The strip's rows [low, high), each from where its token is; all else becomes zero. */
	template <int D, bool V>
	__device__ __forceinline__ void copy_own(const struct fa_cuda_paged_attention &args,
	                                         uint32_t to, const char *from, uint32_t width,
	                                         int32_t low, int32_t high) const
	{
		constexpr uint32_t chunks = D * C::STORED / 16, pitch = V ? C::PITCH_V : C::PITCH;
		const struct fa_cuda_own &own = fa_own_of(args);
		const int64_t page_bytes = V ? own.v_page : own.k_page;
		const int64_t token_bytes = V ? own.v_token : own.k_token;

#pragma unroll 4
		for (uint32_t i = 0; i < chunks / 2; i++) {
			const uint32_t at = i * 32 + threadIdx.x % 32;
			const uint32_t row = at / chunks, chunk = at % chunks;
			const uint32_t page = __shfl_sync(~0u, slot, row);
			const uint32_t in_page = __shfl_sync(~0u, in_own_page, row);
			const char *const source = from + page * page_bytes +
			                           in_page * token_bytes + chunk * 16;
			const bool there = chunk * 16 < width && (int32_t)row >= low &&
			                   (int32_t)row < high;
			uint32_t place = C::F32 ? chunk : chunk ^ row % 8;

			if constexpr (C::QUANTISED)
				place = C::template place<V>(row, chunk);
			place = to + row * pitch + place * 16;
			if (own.aligned)
				fa_cp_async_16_zfill(place, source, there ? 16 : 0);
			else
				fa_st_shared_v4(place,
				                there ? fa_own_load_elements<C::STORED>(source)
				                      : make_uint4(0, 0, 0, 0));
		}
	}

	/* Eight lanes copy 16 bytes each, of K's and of V's scales. Those of missing tokens may be
	 * anything. */
	__device__ __forceinline__ void copy_scales(const struct fa_cuda_paged_attention &args,
	                                            uint64_t place, uint32_t in_page) const
	{
		const struct fa_cuda_paged_quantised &quantised =
			((const struct fa_cuda_paged_attention_quantised &)args).quantised;
		const uint32_t lane = threadIdx.x % 32;
		const uint32_t token_in_head = (segment.kv_head(args) * args.pages.page_strips +
		                                in_page) *
		                               FA_CUDA_PAGED_STRIP;
		const char *const from = (lane < 4 ? args.pages.k + quantised.k_scales_at
		                                   : args.pages.v + quantised.v_scales_at) +
		                         place + token_in_head * 4 + lane % 4 * 16;

		if (quantised.token_scales && lane < 8)
			fa_cp_async_16_zfill(stage + C::SCALES + lane * 16, from, 16);
	}

	__device__ __forceinline__ void copy_strip(const struct fa_cuda_paged_attention &args) const
	{
		const struct fa_cuda_pages &pages = args.pages;
		const uint32_t strip = token / FA_CUDA_PAGED_STRIP;
		const uint32_t page = (uint32_t)(strip * pages.page_magic >> 32);
		const uint32_t in_page = strip - page * pages.page_strips;
		const int32_t low = (int32_t)segment.item.begin - token;
		const int32_t high = (int32_t)segment.item.n_k - token;
		const uint64_t place = (uint64_t)slot * 256;
		const char *const from_k = k + place + in_page * 16 * pages.k_row;
		const char *const from_v = v + place + in_page * 16 * pages.v_row;
		const uint32_t width = args.attention.head_dim * C::STORED;

		if (low <= 0 && high >= FA_CUDA_PAGED_STRIP) {
			copy<C::DIM, false, false>(stage, from_k, pages.k_row, width, low, high);
			copy<C::DIM_V, true, false>(stage + C::K_BYTES, from_v, pages.v_row,
			                            width_v, low, high);
		} else {
			copy<C::DIM, false, true>(stage, from_k, pages.k_row, width, low, high);
			copy<C::DIM_V, true, true>(stage + C::K_BYTES, from_v, pages.v_row, width_v,
			                           low, high);
		}
		if constexpr (C::QUANTISED)
			copy_scales(args, place, in_page);
	}

	/* Copies the next strip, if there is one, and ends a group of copies. */
	__device__ __forceinline__ void step(const struct fa_cuda_paged_attention &args)
	{
		if (!done) {
			if constexpr (C::OWN) {
				const int32_t low = (int32_t)segment.item.begin - token;
				const int32_t high = (int32_t)segment.item.n_k - token;

				copy_own<C::DIM, false>(args, stage, k,
				                        args.attention.head_dim * C::STORED, low,
				                        high);
				copy_own<C::DIM_V, true>(args, stage + C::K_BYTES, v, width_v, low,
				                         high);
			} else {
				copy_strip(args);
			}
			stage += C::STRIP_BYTES;
			if (stage == ring + C::STAGES * C::STRIP_BYTES)
				stage = ring;
			token += C::WARPS * FA_CUDA_PAGED_STRIP;
			skip(args);
			if (token < segment.end) {
				look_up(args);
			} else {
				done = !segment.next(args);
				if (!done)
					enter(args);
			}
		}
		fa_cp_async_commit();
	}
};
