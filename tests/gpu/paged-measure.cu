/*
 * Device code for tests and timings of paged kernels.
 */
#include <stdint.h>

/* Reads @count pieces of @bytes (a multiple of 4096): the minimal memory traffic of a decode. */
extern "C" __global__ void __launch_bounds__(256, 4)
	fa_test_bare(const uint64_t *splits, uint64_t count, uint32_t bytes, uint32_t *ret)
{
	uint32_t x = 0;

	for (uint64_t i = blockIdx.x; i < count; i += gridDim.x) {
		const uint4 *piece = (const uint4 *)splits[i];

#pragma unroll 4
		for (uint32_t at = threadIdx.x; at < bytes / 16; at += 256) {
			const uint4 value = __ldcs(&piece[at]);

			x ^= value.x ^ value.y ^ value.z ^ value.w;
		}
	}
	if (x == 0x12345678)
		*ret = x;
}

/*
 * Copies from [head][token][row] to contiguous [token][head][row]. @page_stride and @row count
 * units of 16 bytes.
 */
extern "C" __global__ void fa_test_token_major(const uint4 *from, uint64_t page_stride, uint4 *to,
                                               uint64_t pages, uint32_t heads, uint32_t tokens,
                                               uint32_t row)
{
	const uint64_t page_pieces = (uint64_t)heads * tokens * row;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < pages * page_pieces;
	     i += (uint64_t)gridDim.x * blockDim.x) {
		const uint64_t page = i / page_pieces, rows = i % page_pieces / row;
		const uint64_t token = rows / heads, head = rows % heads;

		to[i] = from[page * page_stride + (head * tokens + token) * row + i % row];
	}
}

/* bf16, roughly normal with variance 1. */
extern "C" __global__ void fa_test_normal(uint16_t *data, uint64_t count, uint32_t seed)
{
	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
	     i += (uint64_t)gridDim.x * blockDim.x) {
		uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
		float sum = 0;

		bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ull;
		bits = (bits ^ bits >> 27) * 0x94d049bb133111ebull;
		bits ^= bits >> 31;
		for (int j = 0; j < 4; j++)
			sum += (float)(bits >> 16 * j & 0xffff) / 65536 - 0.5f;
		data[i] = (uint16_t)(__float_as_uint(sum * 1.7320508f) >> 16);
	}
}
