/* What plans over the pool share. Pure functions, any thread. */
#pragma once

#include "kernels/vulkan/arguments.h"
#include "kernels/vulkan/plan.h"

static inline uint32_t fa_vulkan_v_row(const struct fa_paged_cache *cache)
{
	return (uint32_t)(cache->v_offset ? cache->head_dim_v : cache->head_dim);
}

static inline bool fa_vulkan_token_scales(const struct fa_paged_cache *cache)
{
	return cache->store != FA_PAGED_PLAIN && !cache->k_scales;
}

/* Copies the entries that the step's sequences follow, and sets all of @sequences[] but tiles and
 * trees, unless it is NULL. Returns the table's address. */
uint64_t fa_vulkan_put_table(struct fa_vulkan_writer *writer, const struct fa_paged_cache *cache,
                             const struct fa_paged_step *step,
                             struct fa_vulkan_sequence *sequences);

/* Plans operations other than attention. */
void fa_vulkan_plan_tokens(const struct fa_vulkan_pool *pool,
                           const struct fa_paged_request *request, struct fa_vulkan_writer *writer);
