/* The engine thread's. */
#pragma once

#include "daemon/backend/cuda/device.h"

struct fa_cuda_kernel_launch {
	CUfunction function;
	unsigned int grid_x, grid_y, threads, shared_bytes;
	bool behind; /* it awaits the launches ahead by itself */
};

/* For the newest work of @stream. @params: as in cuLaunchKernel(). @gate: precedes the kernel; may
 * be NULL. */
CUresult fa_cuda_launch_kernel(struct fa_device *device, struct fa_cuda_stream *stream,
                               const struct fa_cuda_kernel_launch *launch, void **params,
                               const struct fa_cuda_gate *gate);
/* Nothing of the stream is in flight. */
void fa_cuda_graphs_close(struct fa_device *device, struct fa_cuda_stream *stream);
