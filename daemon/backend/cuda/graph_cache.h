/* Launches kernels, some through cached graphs. Engine thread. */
#pragma once

#include "daemon/backend/cuda/device.h"

struct fa_cuda_kernel_launch {
	CUfunction function;
	unsigned int grid_x, grid_y, threads, shared_bytes;
	bool behind; /* it waits for launches ahead by itself */
};

/* For the newest work of @stream. @params: as for cuLaunchKernel(). @gate, maybe NULL, precedes the
 * kernel. */
CUresult fa_cuda_launch_kernel(struct fa_device *device, struct fa_cuda_stream *stream,
                               const struct fa_cuda_kernel_launch *launch, void **params,
                               const struct fa_cuda_gate *gate);
/* Nothing may be in flight. */
void fa_cuda_graphs_close(struct fa_device *device, struct fa_cuda_stream *stream);
