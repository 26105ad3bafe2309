#include "kernels/vulkan/scores.h"

/* Beyond this no bound on a distance of tokens makes a difference. */
#define FAR ((int64_t)1 << 40)

static int64_t bound(int64_t window)
{
	return window < 0 || window > FAR ? FAR : window;
}

void fa_vulkan_put_scores(struct fa_vulkan_writer *writer, const struct fa_vulkan_scores *scores,
                          struct fa_vulkan_attend *arguments)
{
	size_t bytes = (size_t)scores->heads * sizeof(float);

	arguments->slopes = fa_vulkan_put(writer, scores->alibi_slopes, bytes);
	arguments->sinks = fa_vulkan_put(writer, scores->sinks, bytes);
	arguments->stop = writer->stop;
	arguments->scale = scores->scale;
	arguments->softcap = scores->softcap;
	arguments->left = bound(scores->window_left);
	arguments->right_tree = bound(scores->window_right);
	arguments->chunk_tokens = scores->chunk_tokens < FAR ? scores->chunk_tokens : FAR;
	arguments->pattern_tokens = scores->pattern.block_tokens;
	arguments->pattern_local = scores->pattern.local_blocks;
	arguments->pattern_stride = scores->pattern.vert_stride;
	arguments->pattern_step = scores->pattern.head_step;
	arguments->pattern_first = scores->pattern.first_head;
	arguments->right = scores->causal ? 0 : arguments->right_tree;
}

void fa_vulkan_choose_tile(uint64_t most_rows, int32_t head_dim_v, uint32_t *ret_rows,
                           uint32_t *ret_columns)
{
	uint32_t columns = ((uint32_t)head_dim_v + FA_VULKAN_LANES - 1) / FA_VULKAN_LANES;

	/* Few kinds, as each is a kernel to compile. */
	*ret_columns = columns <= 1   ? 1
	               : columns <= 2 ? 2
	               : columns <= 4 ? 4
	               : columns <= 8 ? 8
	                              : 16;
	*ret_rows = most_rows <= 1 ? 1 : *ret_columns <= 4 ? 8 : 4;
}
