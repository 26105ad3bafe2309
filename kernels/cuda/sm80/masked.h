/*
 * Forward attention with lists or patterns of blocks, or bits. As forward.h, but tiles that no row
 * of the block sees are neither loaded nor computed.
 *
 * First a warp per row block reads its list and marks its key blocks, a bit each, in shared memory;
 * one barrier (all threads) ends that. Tiles divide key blocks, and warps' rows row blocks, so a
 * list shows a warp all keys of a tile or none. Patterns and bits become a word of bits for each
 * row and 32 keys.
 */
#pragma once

#include "kernels/cuda/common/mask-list.h"
#include "kernels/cuda/sm80/forward.h"

struct fa_sm80_masked {
	using LOGITS = struct fa_logits_rich;
	static constexpr bool BAND = true;
};

struct fa_sm80_masked_tensors : fa_sm80_tensors {
	using ARGS = struct fa_cuda_masked_attention;

	static __device__ __forceinline__ const struct fa_cuda_attention &
	attention(const ARGS &args)
	{
		return args.attention;
	}

	static __device__ __forceinline__ WORK work(const ARGS &args, int32_t rows)
	{
		return fa_work_get(args.attention, rows);
	}

	template <class C>
	static __device__ __forceinline__ auto k(const ARGS &args, const WORK &work, int32_t key)
	{
		return fa_sm80_tensors::k<C>(args.attention, work, key);
	}

	template <class C, class K>
	static __device__ __forceinline__ auto v(const ARGS &args, const WORK &work, int32_t key,
	                                         const K &k)
	{
		return fa_sm80_tensors::v<C>(args.attention, work, key, k);
	}

	template <class C>
	static __device__ __forceinline__ auto k_rows(const ARGS &args, const WORK &work,
	                                              int32_t key)
	{
		return fa_sm80_tensors::k_rows<C>(args.attention, work, key);
	}

	template <class C>
	static __device__ __forceinline__ auto v_rows(const ARGS &args, const WORK &work,
	                                              int32_t key)
	{
		return fa_sm80_tensors::v_rows<C>(args.attention, work, key);
	}
};

/* What a block of rows sees of tiles. Kept small: what is needed once a tile is read or computed
 * again. */
template <class C> struct fa_masked_tiles {
	const struct fa_cuda_mask &mask;
	uint32_t *lists; /* [FA_CUDA_MASK_LISTS][FA_CUDA_MASK_WORDS], and two numbers */
	int32_t n_lists;

	__device__ __forceinline__ fa_masked_tiles(const struct fa_cuda_masked_attention &given,
	                                           uint32_t *memory)
	    : mask(given.mask), lists(memory), n_lists(0)
	{
	}

	/* Of the pattern: the first row's block, and what is added to key blocks' numbers. */
	__device__ __forceinline__ int32_t &first_row(void) const
	{
		return ((int32_t *)lists)[FA_CUDA_MASK_LISTS * FA_CUDA_MASK_WORDS];
	}

	__device__ __forceinline__ int32_t &shift(void) const
	{
		return ((int32_t *)lists)[FA_CUDA_MASK_LISTS * FA_CUDA_MASK_WORDS + 1];
	}

	/* Fills the shared memory. All threads, with one or two barriers. */
	__device__ __forceinline__ void read(const struct fa_cuda_attention &args,
	                                     const struct fa_work &work)
	{
		const int32_t warp = threadIdx.x / 32;

		if (mask.pattern_tokens && threadIdx.x == 0) {
			const int64_t number = (int64_t)mask.pattern_first + work.head,
				      step = mask.pattern_step;
			const int64_t product = step < 0 ? number / args.group * -step
			                                 : number * step;

			shift() = (int32_t)((product + 1) % mask.pattern_stride);
			first_row() = row_block(work.row + work.diagonal);
		}
		if (mask.block_rows) {
			n_lists = (min(work.row + C::ROWS, work.n_q) - 1) / mask.block_rows -
			          work.row / mask.block_rows + 1;
			for (int32_t i = threadIdx.x; i < n_lists * FA_CUDA_MASK_WORDS;
			     i += C::THREADS)
				lists[i] = 0;
			__syncthreads();
			if (warp < n_lists)
				fa_masked_read_list(mask, work, work.row / mask.block_rows + warp,
				                    lists + warp * FA_CUDA_MASK_WORDS);
		}
		__syncthreads();
	}

	__device__ __forceinline__ int32_t row_block(int32_t position) const
	{
		const int32_t block = position / mask.pattern_tokens;

		return block - (position - block * mask.pattern_tokens < 0);
	}

	/* Returns the pattern's bits of 32 keys from @key on, of a row of block @row. */
	__device__ __forceinline__ uint32_t pattern_word(int32_t row, int32_t key) const
	{
		uint32_t word = 0;

#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int32_t block = (key + half * 16) / mask.pattern_tokens;

			if (row - block < mask.pattern_local ||
			    ((uint32_t)block + (uint32_t)shift()) % (uint32_t)mask.pattern_stride ==
			            0)
				word |= 0xffffu << half * 16;
		}
		return word;
	}

	/* Returns the last tile up to @tile that some row may see, or @first - 1. */
	__device__ __forceinline__ int32_t seen(int32_t tile, int32_t first) const
	{
#pragma unroll 1
		for (; tile >= first; tile--) {
			const int32_t key = tile * C::KEYS;

			if (n_lists) {
				const int32_t block = key / mask.block_keys;
				uint32_t listed = 0;

				for (int32_t i = 0; i < n_lists; i++)
					listed |= lists[i * FA_CUDA_MASK_WORDS + block / 32];
				if (!(listed >> block % 32 & 1)) {
					/* To the block's first tile. */
					tile = block * mask.block_keys / C::KEYS;
					continue;
				}
			}
			if (!mask.pattern_tokens)
				return tile;
			/* The first row's local blocks reach furthest back. */
			uint32_t any = 0;

#pragma unroll
			for (int w = 0; w < C::KEYS; w += 32)
				any |= pattern_word(first_row(), key + w);
			if (any)
				return tile;
		}
		return first - 1;
	}

	/* Returns the list of row @row, for listed(). */
	__device__ __forceinline__ const uint32_t *list(const struct fa_work &work,
	                                                int32_t row) const
	{
		if (!n_lists)
			return NULL;
		return lists +
		       min(row / mask.block_rows - work.row / mask.block_rows, n_lists - 1) *
		               FA_CUDA_MASK_WORDS;
	}

	__device__ __forceinline__ bool listed(const uint32_t *list, int32_t key) const
	{
		const int32_t block = list ? key / mask.block_keys : 0;

		return !list || (list[block / 32] >> block % 32 & 1);
	}

	/* True if rows differ within a tile. */
	__device__ __forceinline__ bool by_rows(void) const
	{
		return mask.pattern_tokens || mask.bits;
	}

	/* The bits of 32 keys from @key on, a multiple of 32, for row @row. */
	__device__ __forceinline__ uint32_t word(const struct fa_work &work, int32_t row,
	                                         int32_t key) const
	{
		uint32_t word = ~0u;

		row = min(row, work.n_q - 1);
		if (mask.pattern_tokens)
			word = pattern_word(row_block(row + work.diagonal), key);
		if (mask.bits)
			word &= key / 32 < mask.row_words
			                ? mask.bits[work.sequence * mask.bits_batch +
			                            work.head * mask.bits_head +
			                            row * mask.bits_row + key / 32]
			                : 0;
		return word;
	}
};

/* As fa_warp_visibility, with a thread's words. Bit i of a word is the key @i behind sight.key. */
template <class C, int WORDS> struct fa_masked_sight {
	struct fa_warp_visibility<C> sight;
	uint32_t words[2 * C::ATOMS][WORDS];

	__device__ __forceinline__ bool sees(int r, int offset) const
	{
		return sight.sees(r, offset) && (words[r][offset / 32] >> offset % 32 & 1);
	}
};

/* Fills the words of a tile from @key on for a thread whose first row is the block's @row-th, and whose
 * first key is @lane_key behind @key. */
template <class C, int WORDS>
__device__ __forceinline__ void fa_masked_words(struct fa_masked_sight<C, WORDS> &sight,
                                                const struct fa_masked_tiles<C> &tiles,
                                                const struct fa_cuda_masked_attention &given,
                                                int32_t row, int32_t key, int32_t lane_key)
{
	if (!tiles.by_rows()) {
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
			for (int w = 0; w < WORDS; w++)
				sight.words[r][w] = ~0u;
		return;
	}

	const struct fa_work work = C::SOURCE::work(given, C::ROWS);

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
		for (int w = 0; w < WORDS; w++)
			sight.words[r][w] = tiles.word(work, work.row + row + r * 8,
			                               key / 32 * 32 + w * 32) >>
			                    (key % 32 + lane_key);
}

template <class C, int TILES, class SIGHT>
__device__ __forceinline__ void fa_masked_mask(float (&dots)[C::ATOMS][TILES][4],
                                               const SIGHT &sight)
{
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
		for (int j = 0; j < TILES; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				if (!sight.sees(r, j * 8 + e))
					dots[r / 2][j][r % 2 * 2 + e] = -INFINITY;
}

/* ---- the passes over the keys */

/* O is not yet divided by the sums. */
template <class C>
__device__ __forceinline__ void
fa_masked_mainloop(struct fa_warp_rows<C> &rows, const struct fa_cuda_masked_attention &given,
                   const struct fa_work &work, const struct fa_masked_tiles<C> &tiles,
                   uint32_t q_tile)
{
	static_assert(C::SPLIT == 1, "warps skip tiles alone");
	const struct fa_cuda_attention &args = given.attention;
	const uint32_t kv_tiles = q_tile + C::Q_BYTES;
	constexpr uint32_t stage_bytes = C::K_BYTES + C::V_BYTES;
	const uint32_t lane = threadIdx.x % 32;
	const int32_t warp_row = threadIdx.x / 32 * C::WARP_ROWS;
	const struct fa_warp_pair<C> pair(kv_tiles + C::STAGES * stage_bytes, threadIdx.x / 32);
	const int32_t last_row = min(work.row + C::ROWS, work.n_q) - 1;
	const int32_t begin = max(0, work.row + work.diagonal - args.window_left);
	const int32_t end = min(work.n_k, last_row + work.diagonal + args.window_right + 1);
	const int32_t first_tile = begin / C::KEYS;
	int32_t tile = tiles.seen(end > begin ? (end - 1) / C::KEYS : first_tile - 1, first_tile);

	const struct fa_loader<C::ROWS, C::DIM, C::THREADS, C::NEAR> q_loader(
		fa_work_base(args.q, work.sequence, work.first_q, work.head), args.q.stride_token,
		work.row, args.head_dim);
	auto k_loader = C::SOURCE::template k<C>(given, work, tile * C::KEYS);
	auto v_loader = C::SOURCE::template v<C>(given, work, tile * C::KEYS, k_loader);

	const auto load = [&](uint32_t kv, int32_t keys) {
		if (!args.aligned) {
			k_loader.load_elements(kv, keys);
			v_loader.load_elements(kv + C::K_BYTES, keys);
		} else {
			k_loader.load_part(kv, keys);
			v_loader.load_part(kv + C::K_BYTES, keys);
		}
		fa_cp_async_commit();
	};

	fa_warp_clear<C>(rows);
	if (tile < first_tile)
		return;
	if (!args.aligned)
		q_loader.load_elements(q_tile, work.n_q - work.row);
	else
		q_loader.load_part(q_tile, work.n_q - work.row);
	load(kv_tiles, min(C::KEYS, work.n_k - tile * C::KEYS));

	const uint32_t q_lane = q_tile +
	                        fa_swizzle<C::DIM>::offset(warp_row + lane % 16, lane / 16);
	const uint32_t k_lane = fa_swizzle<C::DIM>::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
	const uint32_t v_lane = C::K_BYTES + fa_swizzle<C::DIM_V>::offset(lane % 16, lane / 16);
	const typename C::LOGITS logits(args, work.head);
	const float factor = logits.factor();
	const int32_t origin = work.row + warp_row + work.diagonal;
	const int32_t lane_key = lane % 4 * 2, lane_row = (int32_t)(lane / 4);
	const uint32_t *const list = tiles.list(work, work.row + warp_row);
	uint32_t stage = 0;

#pragma unroll 1
	for (int32_t next; tile >= first_tile; tile = next, stage ^= 1) {
		const uint32_t kv = kv_tiles + stage * stage_bytes;
		const int32_t first_key = tile * C::KEYS, key = first_key - origin;

		next = tiles.seen(tile - 1, first_tile);
		fa_cp_async_wait<0>();
		/* All threads: the tile is written, and the other stage is free. */
		__syncthreads();
		if (next >= first_tile) {
			k_loader.source -= (int64_t)(tile - next) * C::KEYS * k_loader.stride;
			v_loader.source -= (int64_t)(tile - next) * C::KEYS * v_loader.stride;
			load(kv_tiles + (stage ^ 1) * stage_bytes, C::KEYS);
		}
		if (key >= C::WARP_ROWS + args.window_right || key + C::KEYS <= -args.window_left ||
		    !tiles.listed(list, first_key))
			continue;

		struct fa_masked_sight<C, (C::KEYS + 31) / 32> sight;
		float dots[C::ATOMS][C::WARP_KEYS / 8][4];

		sight.sight = { .key = key + lane_key - lane_row,
			        .start = 0,
			        .rest = work.n_k - first_key - lane_key,
			        .left = args.window_left,
			        .right = args.window_right };
		fa_masked_words(sight, tiles, given, warp_row + lane_row, first_key, lane_key);
		fa_warp_dots<C, C::DIM / 16>(dots, q_lane, kv + k_lane);
		logits.apply(dots, sight.sight.key);
		if (tiles.by_rows() || work.n_k - first_key < C::KEYS ||
		    key + C::KEYS - 1 > args.window_right ||
		    key < C::WARP_ROWS - 1 - args.window_left)
			fa_masked_mask<C>(dots, sight);
		fa_warp_raise_max<C>(rows, dots, factor, pair);
		fa_warp_accumulate<C, false>(rows, dots, factor, kv + v_lane, pair, sight);
	}
}

/* As fa_sm80_recompute(). Shared memory but the lists must be free. */
template <class C>
__device__ __forceinline__ void
fa_masked_recompute(struct fa_warp_rows<C> &rows, const struct fa_cuda_masked_attention &given,
                    const struct fa_masked_tiles<C> &tiles, uint32_t q_tile)
{
	const struct fa_cuda_attention &args = given.attention;
	const uint32_t kv = q_tile + C::Q_BYTES;
	const uint32_t thread = fa_thread_index(), warp = thread / 32, lane = thread % 32;
	const int32_t warp_row = warp * C::WARP_ROWS;
	int32_t begin, tile;

	fa_warp_clear<C>(rows);
	{
		const struct fa_work work = C::SOURCE::work(given, C::ROWS);
		const int32_t last_row = min(work.row + C::ROWS, work.n_q) - 1;
		const int32_t end = min(work.n_k, last_row + work.diagonal + args.window_right + 1);
		const struct fa_sm80_tensor_rows q = { fa_work_base(args.q, work.sequence,
			                                            work.first_q, work.head) +
			                                       work.row * args.q.stride_token,
			                               args.q.stride_token, work.n_q - work.row };

		begin = max(0, work.row + work.diagonal - args.window_left) / C::KEYS;
		tile = end > begin * C::KEYS ? (end - 1) / C::KEYS : -1;
		fa_sm80_copy<C::ROWS, C::DIM, C::THREADS>(q_tile, q, args.head_dim);
	}

#pragma unroll 1
	for (tile = tiles.seen(tile, begin); tile >= begin; tile = tiles.seen(tile - 1, begin)) {
		__syncthreads(); /* all threads: the previous tile is free */
		fa_sm80_copy_kv<C>(given, kv, tile * C::KEYS);
		__syncthreads(); /* all threads: this tile is written */
#pragma unroll 1
		for (int32_t first = 0; first < C::KEYS; first += 16) {
			const struct fa_work work = C::SOURCE::work(given, C::ROWS);
			const struct fa_warp_pair<C> pair(kv, warp);
			const typename C::LOGITS logits(args, work.head);
			const int32_t row = work.row + warp_row + (int32_t)(lane / 4);
			const int32_t lane_key = lane % 4 * 2,
				      key = tile * C::KEYS + first + lane_key;
			struct fa_masked_sight<C, 1> sight;
			float dots[C::ATOMS][2][4];

			if (!tiles.listed(tiles.list(work, work.row + warp_row), tile * C::KEYS))
				break;
			sight.sight = { .key = key - row - work.diagonal,
				        .start = 0,
				        .rest = work.n_k - key,
				        .left = args.window_left,
				        .right = args.window_right };
			fa_masked_words(sight, tiles, given, row - work.row, tile * C::KEYS + first,
			                lane_key);
			fa_warp_dots<C, 1>(
				dots,
				q_tile +
					fa_swizzle<C::DIM>::offset(warp_row + lane % 16, lane / 16),
				kv + fa_swizzle<C::DIM>::offset(first + lane % 8 + lane / 16 * 8,
			                                        lane / 8 % 2));
			logits.apply(dots, sight.sight.key);
			fa_masked_mask<C>(dots, sight);
			fa_warp_raise_max<C>(rows, dots, logits.factor(), pair);
			fa_warp_accumulate<C, true>(
				rows, dots, logits.factor(),
				kv + C::K_BYTES +
					fa_swizzle<C::DIM_V>::offset(first + lane % 16, lane / 16),
				pair, sight);
		}
	}
	__syncthreads(); /* all threads: also if there was no key */
}

template <class C>
__device__ __forceinline__ void fa_masked_forward(const struct fa_cuda_masked_attention &given)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const uint32_t shared = fa_shared_address(shared_memory);
	uint32_t *const lists = (uint32_t *)(shared_memory + C::SHARED_BYTES);
	const struct fa_work work = C::SOURCE::work(given, C::ROWS);
	struct fa_masked_tiles<C> tiles(given, lists);
	bool broken;

	static_assert(C::WARP_ROWS <= 64 && C::ROWS <= 64 * FA_CUDA_MASK_LISTS && C::KEYS <= 64,
	              "row and key blocks have at least 64 tokens");
	if (work.row >= work.n_q)
		return;
	tiles.read(given.attention, work);
	{
		struct fa_warp_rows<C> rows;

		fa_masked_mainloop<C>(rows, given, work, tiles, shared);
		broken = fa_sm80_finish<C>(rows, given, shared, threadIdx.x);
	}
	/* All threads: shared memory is no longer read. */
	if (__syncthreads_or(broken)) {
		struct fa_warp_rows<C> rows;

		fa_masked_recompute<C>(rows, given, tiles, shared);
		fa_sm80_finish<C>(rows, given, shared, fa_thread_index());
	}
}
