/*
 * No modules of kernels over pages: built without nvcc.
 */
#include "kernels/cuda/paged-images.h"

const struct fa_cuda_image_data fa_cuda_paged_images[FA_CUDA_PAGED_IMAGES] = { { NULL, 0 } };
