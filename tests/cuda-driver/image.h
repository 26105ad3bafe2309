/* The contents of a module of device code for the tests' driver: only its identity. */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdint.h>

#define FA_FAKE_IMAGE_MAGIC "fad test image"

struct fa_fake_image {
	char magic[16];
	/* enum fa_cuda_image, then enum fa_cuda_paged_image; or FA_FAKE_IMAGE_PLAIN: the module has
	 * kernels of any name, which compute nothing. */
	uint32_t image;
};

#define FA_FAKE_IMAGE_PLAIN (FA_CUDA_IMAGES + FA_CUDA_PAGED_IMAGES)
#define FA_FAKE_IMAGE_TEXT (FA_FAKE_IMAGE_PLAIN + 1) /* of PTX, which has no such struct */
