/*
 * The GPU as a benchmark uses it in its own process: the driver, its first device's
 * primary context, and every kernel that this build has. What the daemon is measured
 * against. One thread; failures of the driver after opening are told by errno.
 */
#pragma once

#include "common/cudriver.h"
#include "kernels/cuda/images.h"
#include "kernels/cuda/plan.h"

/* The module of gpu-kernels.cu; no bytes if this build has none. */
extern const struct fa_cuda_image_data fa_bench_image;

struct fa_gpu {
	struct fa_cudriver driver;
	struct fa_cuda_chip chip;
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUmodule modules[FA_CUDA_IMAGES];
	CUfunction *kernels; /* [fa_cuda_kernels_count], NULL where the device has none */
	CUmodule bench;      /* gpu-kernels.cu */
	CUfunction spin, read;
	CUdeviceptr flush; /* FA_GPU_FLUSH_BYTES, made by the first flush or read */
	CUevent start, stop;
	int sms;
	char name[128];
};

/*
 * -ENODEV with a sentence: no GPU, no driver, or no kernels in this build; others are
 * failures of the driver. The context is current in this thread afterwards.
 */
int fa_gpu_open(struct fa_error *error, struct fa_gpu **ret_gpu);
struct fa_gpu *fa_gpu_close(struct fa_gpu *gpu);

/* More than any L2 holds. */
#define FA_GPU_FLUSH_BYTES ((size_t)512 << 20)

/* Keeps the stream busy for @ns; reads FA_GPU_FLUSH_BYTES, so that L2 holds nothing of what
 * is measured next and no dirty lines. -EIO. */
int fa_gpu_spin(struct fa_gpu *gpu, uint64_t ns);
int fa_gpu_read(struct fa_gpu *gpu);

/* Around what is enqueued in between; the second waits for it. */
int fa_gpu_time_start(struct fa_gpu *gpu);
int fa_gpu_time_stop(struct fa_gpu *gpu, double *ret_ns);

/* Enqueues what fa_cuda_attention_plan() chooses for @params. */
int fa_gpu_launch(struct fa_gpu *gpu, const struct fa_attention_params *params,
                  struct fa_error *error);
