/* Where there is no nvcc, there is no module of bench.cu. */
#include "tools/gpu.h"

const struct fa_cuda_image_data fa_bench_image;
