/* Builds without nvcc have no module of gpu-kernels.cu. */
#include "bench/lib/gpu.h"

const struct fa_cuda_image_data fa_bench_image;
