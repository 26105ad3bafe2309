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
