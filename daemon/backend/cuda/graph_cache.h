/* Kernel launches, some through cached graphs. The engine thread calls these functions. */
#pragma once

#include "daemon/backend/cuda/device.h"

struct fa_cuda_kernel_launch {
	CUfunction function;
	unsigned int grid_x, grid_y, threads, shared_bytes;
	bool behind; /* the kernel waits for the launches ahead by itself */
};

/* Launches a kernel for the newest work of @stream. @params are as in cuLaunchKernel(). @gate,
 * which may be NULL, precedes the kernel. */
CUresult fa_cuda_launch_kernel(struct fa_device *device, struct fa_cuda_stream *stream,
                               const struct fa_cuda_kernel_launch *launch, void **params,
                               const struct fa_cuda_gate *gate);
/* Nothing of @stream may be in flight. */
void fa_cuda_graphs_close(struct fa_device *device, struct fa_cuda_stream *stream);
