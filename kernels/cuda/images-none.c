/* Instead of the modules of device code, where there was no nvcc to make them. */
#include "kernels/cuda/images.h"

const struct fa_cuda_image_data fa_cuda_images[FA_CUDA_IMAGES] = { { NULL, 0 } };
