/*
 * Turns a request into dispatches of the Vulkan kernels: which kernel, with which constants, how many
 * workgroups, and what they read. Pure C, any thread.
 */
#pragma once

#include "kernels/vulkan/writer.h"

#define FA_VULKAN_HEAD_DIM_MAX 576   /* q and k */
#define FA_VULKAN_HEAD_DIM_V_MAX 512 /* v and out */

/* Returns how many keys the attention kernel reads at least in @rounds rounds of all its loops. */
int64_t fa_vulkan_keys_of(int64_t rounds, int32_t head_dim, int32_t head_dim_v);

/* Return 0, or -ENOTSUP with a sentence in @text. fa_attention_check() has accepted @params. */
int fa_vulkan_check_attention(const struct fa_attention_params *params, char *text,
                              size_t text_bytes);

/* Plans a checked request whose tensors have the device's addresses; all other arrays are in host
 * memory. */
void fa_vulkan_plan_attention(const struct fa_attention_params *params,
                              struct fa_vulkan_writer *writer);

/* The pool as kernels see it. Its pages do not cross the ends of chunks. */
struct fa_vulkan_pool {
	uint64_t chunks;      /* address for the device of the chunks' addresses */
	uint32_t chunk_shift; /* log2 of a chunk's bytes */
};

/* The same for requests over pages; fa_paged_check() has accepted @request or @cache. */
int fa_vulkan_check_paged(const struct fa_paged_request *request, char *text, size_t text_bytes);
int fa_vulkan_check_cache(const struct fa_paged_cache *cache, char *text, size_t text_bytes);
void fa_vulkan_plan_paged(const struct fa_vulkan_pool *pool, const struct fa_paged_request *request,
                          struct fa_vulkan_writer *writer);
