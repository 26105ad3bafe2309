/* What stands for a module of device code here: enough to say which one it is. */
#pragma once

#include <stdint.h>

#define FA_FAKE_IMAGE_MAGIC "fad test image"

struct fa_fake_image {
	char magic[16];
	uint32_t image; /* enum fa_cuda_image, and behind them enum fa_cuda_paged_image */
};
