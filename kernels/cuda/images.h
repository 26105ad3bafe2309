/*
 * The modules of device code, as in enum fa_cuda_image. images.S defines them; without nvcc
 * images-none.c does, empty.
 */
#pragma once

#include "kernels/cuda/plan.h"

#include <stddef.h>

/* For cuModuleLoadData(); bytes is 0 if this build has none. */
struct fa_cuda_image_data {
	const void *data;
	size_t bytes;
};

extern const struct fa_cuda_image_data fa_cuda_images[FA_CUDA_IMAGES];
