/* The module of gpu-kernels.cu, for fabench over the tests' CUDA driver. */
#include "bench/lib/inproc-gpu.h"
#include "tests/cuda-driver/image.h"

static const struct fa_fake_image image = { FA_FAKE_IMAGE_MAGIC, FA_FAKE_IMAGE_PLAIN };

const struct fa_cuda_image_data fa_bench_image = { &image, sizeof(image) };
