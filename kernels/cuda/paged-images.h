/*
 * The modules of kernels over pages that this build has, as images.h: paged-images.S, or
 * paged-images-none.c where there was no nvcc.
 */
#pragma once

#include "kernels/cuda/images.h"
#include "kernels/cuda/paged-plan.h"

extern const struct fa_cuda_image_data fa_cuda_paged_images[FA_CUDA_PAGED_IMAGES];
