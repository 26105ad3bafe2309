/* Codes become bf16 (struct fa_cuda_paged_widen). A thread has 16 elements of a row at once. */
#pragma once

#include "kernels/cuda/sm80/paged_append_quantised.h"

#include <stdint.h>

__device__ __forceinline__ void fa_paged_widen(const struct fa_cuda_paged_widen &args)
{
	const struct fa_cuda_paged_quantised &codes = args.quantised;
	const struct fa_cuda_paged_item &item = args.items[args.block_items[blockIdx.x]];
	const uint32_t head = blockIdx.y / 2, first_row = blockIdx.x * FA_CUDA_WIDEN_TOKENS;
	const bool is_v = blockIdx.y % 2;
	const uint32_t head_tokens = args.pages.page_strips * FA_CUDA_PAGED_STRIP;
	const uint32_t row_bytes = is_v ? args.pages.v_row : args.pages.k_row;
	const uint32_t chunks = (uint32_t)(is_v ? args.head_dim_v : args.head_dim) / 16;
	const char *const pages = is_v ? args.pages.v : args.pages.k;
	const uint32_t scales_at = is_v ? codes.v_scales_at : codes.k_scales_at;
	char *const to = (is_v ? args.v : args.k) + (uint64_t)head * args.rows * chunks * 32;

#pragma unroll 2
	for (uint32_t i = threadIdx.x; i < FA_CUDA_WIDEN_TOKENS * chunks;
	     i += FA_CUDA_TOKENS_THREADS) {
		const uint32_t row = i / chunks, chunk = i - row * chunks;
		const uint32_t token = item.begin + (first_row - item.tile) + row;
		const uint32_t strip = token / FA_CUDA_PAGED_STRIP;
		const uint32_t page = (uint32_t)(strip * args.pages.page_magic >> 32);
		const uint32_t in_head = head * head_tokens + (token - page * head_tokens);
		float scale = is_v ? codes.v_scales[head] : codes.k_scales[head];

		uint4 *const at = (uint4 *)(to +
		                            ((uint64_t)(first_row + row) * chunks + chunk) * 32);

		if (token >= item.n_k)
			continue;
		if (token < item.first) {
			at[0] = at[1] = make_uint4(0, 0, 0, 0);
			continue;
		}

		const char *const from = pages +
		                         (uint64_t)args.pages.table[item.table_start + page] * 256;
		const uint4 words = *(const uint4 *)(from + (uint64_t)in_head * row_bytes +
		                                     chunk * 16);
		const uint32_t four[4] = { words.x, words.y, words.z, words.w };
		uint32_t pairs[8];

		if (codes.token_scales)
			scale = ((const float *)(from + scales_at))[in_head];
#pragma unroll
		for (int j = 0; j < 8; j++) {
			const uint32_t two = four[j / 2] >> j % 2 * 16;

			pairs[j] = fa_pack<fa_bf16>(
				__fmul_rn(fa_code_value(codes.store, (uint8_t)two), scale),
				__fmul_rn(fa_code_value(codes.store, (uint8_t)(two >> 8)), scale));
		}

		at[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
		at[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
	}
}
