/* What all attention has in common: scores and masks. Pure functions, any thread. */
#pragma once

#include "kernels/vulkan/arguments.h"
#include "kernels/vulkan/writer.h"

static inline int64_t fa_vulkan_element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static inline uint64_t fa_vulkan_address(const void *data)
{
	return (uint64_t)(uintptr_t)data;
}

/* What all attention has in common, before the arguments are stored. */
struct fa_vulkan_scores {
	float scale, softcap;
	bool causal;
	int64_t window_left, window_right, chunk_tokens;
	const float *alibi_slopes, *sinks; /* [heads] in host memory */
	struct fa_attention_pattern pattern;
	int32_t heads;
};

void fa_vulkan_put_scores(struct fa_vulkan_writer *writer, const struct fa_vulkan_scores *scores,
                          struct fa_vulkan_attend *arguments);
