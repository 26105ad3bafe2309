/* A module of device code here: its identity. */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdint.h>

#define FA_FAKE_IMAGE_MAGIC "fad test image"

struct fa_fake_image {
	char magic[16];
	/* enum fa_cuda_image, then enum fa_cuda_paged_image; or FA_FAKE_IMAGE_PLAIN: kernels of any
	 * name that compute nothing. */
	uint32_t image;
};

#define FA_FAKE_IMAGE_PLAIN (FA_CUDA_IMAGES + FA_CUDA_PAGED_IMAGES)
