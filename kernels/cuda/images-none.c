/*
 * No modules of device code: built without nvcc.
 */
#include "kernels/cuda/images.h"

const struct fa_cuda_image_data fa_cuda_images[FA_CUDA_IMAGES] = { { NULL, 0 } };
