/* The SPIR-V that the build compiled, as data. */
#include "kernels/vulkan/matrices.h"

#include "attend.spv.h"
#include "combine.spv.h"
#include "decode.spv.h"
#include "merge.spv.h"
#include "pages.spv.h"
#include "tokens.spv.h"

#define CODE(words)                                                                                \
	{                                                                                          \
		(words), sizeof(words)                                                             \
	}

struct fa_vulkan_code fa_vulkan_code(enum fa_vulkan_kernel kernel)
{
	static const struct fa_vulkan_code codes[_FA_VULKAN_KERNEL_N] = {
		[FA_VULKAN_ATTEND] = CODE(attend_spv), [FA_VULKAN_TOKENS] = CODE(tokens_spv),
		[FA_VULKAN_PAGES] = CODE(pages_spv),   [FA_VULKAN_MERGE] = CODE(merge_spv),
		[FA_VULKAN_DECODE] = CODE(decode_spv), [FA_VULKAN_COMBINE] = CODE(combine_spv),
	};

	return codes[kernel].bytes ? codes[kernel] : fa_vulkan_matrix_code(kernel);
}
