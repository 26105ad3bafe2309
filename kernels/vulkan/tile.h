/*
 * Which kernel computes a request's attention, and how many packed rows a workgroup has: the one for few rows,
 * which splits keys, or those with matrices where the device has them, as far as they cover the request, else the
 * scalar one. Pure functions, any thread.
 */
#pragma once

#include "kernels/vulkan/arguments.h"
#include "kernels/vulkan/writer.h"

/* What the choice depends on. */
struct fa_vulkan_request {
	uint32_t source; /* FA_VULKAN_DENSE, _POOL or _OWN */
	enum fa_attention_dtype dtype;
	enum fa_paged_store store;
	int32_t head_dim, head_dim_v;
	uint64_t
		most_rows; /* packed rows of the longest sequence; UINT64_MAX: not to depend on it */
	uint64_t begins;   /* the bits of all bytes where rows of q, k and v begin */
	int64_t longest;   /* keys of the longest sequence */
	bool aligned_k;    /* rows of K begin at multiples of four elements */
	bool masks;        /* of blocks, patterns or bits */
	bool adjusts_scores;                   /* soft caps, ALiBi or trees */
	const struct fa_vulkan_splits *splits; /* of the writer */
};

struct fa_vulkan_tile {
	enum fa_vulkan_kernel kernel;
	uint32_t constants[FA_VULKAN_CONSTANTS];
	uint32_t rows;
	/* Of FA_VULKAN_DECODE. */
	uint32_t dim;
	int64_t longest;
};

/* Returns the bits of all bytes where rows of the tensor begin. */
static inline uint64_t fa_vulkan_begins(const struct fa_attention_tensor *tensor, bool batched,
                                        int64_t bytes)
{
	return (uint64_t)(uintptr_t)tensor->data | (uint64_t)(tensor->stride_token * bytes) |
	       (uint64_t)(tensor->stride_head * bytes) |
	       (batched ? (uint64_t)(tensor->stride_batch * bytes) : 0);
}

void fa_vulkan_choose_tile(const struct fa_vulkan_matrices *matrices,
                           const struct fa_vulkan_request *request,
                           struct fa_vulkan_tile *ret_tile);

/* Adds the dispatches of a tile's kernel over @tiles tiles, which take @flops each. */
void fa_vulkan_add_attention(struct fa_vulkan_writer *writer, const struct fa_vulkan_tile *tile,
                             const struct fa_vulkan_attend *arguments, uint64_t tiles,
                             double flops);
