/*
 * The GPU as a benchmark uses it in its own process: the driver, its first device's
 * primary context, and every kernel that this build has. What the daemon is measured
 * against. One thread; failures of the driver after opening are told by errno.
 */
#pragma once

#include "common/cudriver.h"
#include "kernels/cuda/plan.h"

struct fa_gpu {
	struct fa_cudriver driver;
	struct fa_cuda_chip chip;
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUmodule modules[FA_CUDA_IMAGES];
	CUfunction *kernels; /* [fa_cuda_kernels_count], NULL where the device has none */
	char name[128];
};

/*
 * -ENODEV with a sentence: no GPU, no driver, or no kernels in this build; others are
 * failures of the driver. The context is current in this thread afterwards.
 */
int fa_gpu_open(struct fa_error *error, struct fa_gpu **ret_gpu);
struct fa_gpu *fa_gpu_close(struct fa_gpu *gpu);

/* Enqueues what fa_cuda_attention_plan() chooses for @params. */
int fa_gpu_launch(struct fa_gpu *gpu, const struct fa_attention_params *params,
                  struct fa_error *error);
