/*
 * The modules of kernels over pages, as in images.h.
 */
#pragma once

#include "kernels/cuda/images.h"
#include "kernels/cuda/paged-plan.h"

extern const struct fa_cuda_image_data fa_cuda_paged_images[FA_CUDA_PAGED_IMAGES];
