/*
 * Long launches that stop for works of high priority and for workers that wait for the GPU
 * (quiesce.h), and resume later. The engine thread's, except open and close.
 */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Launches that take so long are preemptible even if no queue has high priority: 5 us are a
 * thousandth of them, and the first such work would wait for all the rest. */
#define FA_CUDA_PREEMPT_ALWAYS_NS (5 * FA_NS_PER_MS)

/* What is launched, besides its arguments. */
struct fa_cuda_preempt_kernel {
	CUfunction function;
	uint32_t grid;
	int32_t threads, shared_bytes;
};

int fa_cuda_preempt_open(struct fa_device *device, struct fa_error *error);
void fa_cuda_preempt_close(struct fa_device *device);

/* Returns whether the kernel of @work, which is prepared, can be preempted. */
bool fa_cuda_preempt_covers(const struct fa_device *device, const struct fa_device_work *work);
/* Returns whether a launch on @stream that takes @work_ns is to be preemptible. If so, memory for
 * the saved states of its blocks is there. */
bool fa_cuda_preempt_prepare(struct fa_device *device, struct fa_cuda_stream *stream,
                             int32_t state_bytes, uint64_t work_ns);
/* Launches the last kernel of @work, the stream's newest. @args: of attention, over tensors or over
 * pages. */
CUresult fa_cuda_preempt_launch(struct fa_device *device, struct fa_cuda_stream *stream,
                                struct fa_device_work *work,
                                const struct fa_cuda_preempt_kernel *kernel, const void *args,
                                size_t args_bytes, const struct fa_cuda_maps *maps);
/* A work is about to be launched on @stream: asks launches to stop if it has high priority. */
void fa_cuda_preempt_ask(struct fa_device *device, const struct fa_cuda_stream *stream);
/* @work is now the first of the stream's works: those ahead of it have ended. */
void fa_cuda_preempt_first(struct fa_cuda_stream *stream, const struct fa_device_work *work,
                           uint64_t now_ns);
/* The stream's preemptible work was cancelled: asks it to stop for good. */
void fa_cuda_preempt_cancel(struct fa_device *device, struct fa_cuda_stream *stream);
/* Returns whether the stream has a work that stopped before its end. */
bool fa_cuda_preempt_stopped(struct fa_device *device, struct fa_cuda_stream *stream);
/* The stream's preemptible work has ended. */
void fa_cuda_preempt_end(struct fa_device *device, struct fa_cuda_stream *stream);
/* Launches the rest of the stream's stopped work, if it is time. */
CUresult fa_cuda_preempt_resume(struct fa_device *device, struct fa_cuda_stream *stream);
/* Asks launches to stop that could not be asked before. Called with each reap(). */
void fa_cuda_preempt_poll(struct fa_device *device);
