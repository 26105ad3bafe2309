/*
 * The modules of device code that this build has, in the order of enum
 * fa_cuda_image. One of two objects defines them: images.S, the modules that nvcc
 * made, or images-none.c where there was no nvcc; then all are empty.
 */
#pragma once

#include "kernels/cuda/plan.h"

#include <stddef.h>

/* What cuModuleLoadData() takes; bytes is 0 if this build has none. */
struct fa_cuda_image_data {
	const void *data;
	size_t bytes;
};

extern const struct fa_cuda_image_data fa_cuda_images[FA_CUDA_IMAGES];
