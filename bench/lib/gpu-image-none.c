/* Builds without nvcc have no gpu-kernels.cu. */
#include "bench/lib/inproc-gpu.h"

const struct fa_cuda_image_data fa_bench_image;
