/*
 * A GPU in this process, as the daemon's peer: the driver, device 0's primary context, all kernels
 * of this build. One thread. Once open, driver failures are negative errnos.
 */
#pragma once

#include "common/cudriver.h"
#include "kernels/cuda/images.h"
#include "kernels/cuda/plan.h"

/* gpu-kernels.cu; empty without nvcc. */
extern const struct fa_cuda_image_data fa_bench_image;

struct fa_inproc_gpu {
	struct fa_cudriver driver;
	struct fa_cuda_chip chip;
	CUdeviceptr workspace; /* the workspace of packed rows; freed with the context */
	size_t workspace_bytes;
	uint64_t epoch;
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUmodule modules[FA_CUDA_IMAGES];
	CUfunction *kernels; /* [fa_cuda_kernels_count]; NULL: the device cannot run it */
	CUmodule bench;      /* the module of gpu-kernels.cu */
	CUfunction spin, read;
	CUdeviceptr flush; /* memory that is read to flush L2; allocated on first use */
	CUevent start, stop;
	int sms;
	char name[128];
};

/* Opens the GPU and makes its context current. -ENODEV: no GPU, driver or kernels; others: the
 * driver failed. */
int fa_inproc_gpu_open(struct fa_error *error, struct fa_inproc_gpu **ret_gpu);
struct fa_inproc_gpu *fa_inproc_gpu_close(struct fa_inproc_gpu *gpu);

/* More bytes than any L2 has. */
#define FA_INPROC_GPU_FLUSH_BYTES ((size_t)512 << 20)

/* Keeps the stream busy for @ns. Returns 0 or -EIO. */
int fa_inproc_gpu_spin(struct fa_inproc_gpu *gpu, uint64_t ns);
/* Reads FA_INPROC_GPU_FLUSH_BYTES: L2 then has neither the benchmark's data nor dirty lines. */
int fa_inproc_gpu_read(struct fa_inproc_gpu *gpu);

/* Measure the time between both calls in the stream; the second call waits. */
int fa_inproc_gpu_time_start(struct fa_inproc_gpu *gpu);
int fa_inproc_gpu_time_stop(struct fa_inproc_gpu *gpu, double *ret_ns);

/* Enqueues the kernel that fa_cuda_attention_plan() chooses. */
int fa_inproc_gpu_launch(struct fa_inproc_gpu *gpu, const struct fa_attention_params *params,
                         struct fa_error *error);
