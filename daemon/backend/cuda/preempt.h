/* Stops long launches for works of high priority and waiting workers (quiesce.h), and resumes them.
 * Engine thread, but open and close. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Launches of at least this time are preemptible even if no queue has high priority yet. */
#define FA_CUDA_PREEMPT_ALWAYS_NS (5 * FA_NS_PER_MS)

struct fa_cuda_preempt_kernel {
	CUfunction function;
	uint32_t grid;
	int32_t threads, shared_bytes;
};

int fa_cuda_preempt_open(struct fa_device *device, struct fa_error *error);
void fa_cuda_preempt_close(struct fa_device *device);

bool fa_cuda_preempt_covers(const struct fa_device *device, const struct fa_device_work *work);
/* True: launch a kernel of @work_ns preemptibly. Allocates memory for its blocks' states. */
bool fa_cuda_preempt_prepare(struct fa_device *device, struct fa_cuda_stream *stream,
                             int32_t state_bytes, uint64_t work_ns);
/* Takes the last kernel of @work, the stream's newest. @args: of an attention. */
CUresult fa_cuda_preempt_launch(struct fa_device *device, struct fa_cuda_stream *stream,
                                struct fa_device_work *work,
                                const struct fa_cuda_preempt_kernel *kernel, const void *args,
                                size_t args_bytes, const struct fa_cuda_maps *maps);
/* Requests stops if @stream, about to get a work, has high priority. */
void fa_cuda_preempt_request(struct fa_device *device, const struct fa_cuda_stream *stream);
/* Call it when the works ahead of @work have ended. */
void fa_cuda_preempt_reached_head(struct fa_cuda_stream *stream, const struct fa_device_work *work,
                                  uint64_t now_ns);
/* Call it when the stream's preemptible launch was cancelled. */
void fa_cuda_preempt_cancel(struct fa_device *device, struct fa_cuda_stream *stream);
bool fa_cuda_preempt_stopped(struct fa_device *device, struct fa_cuda_stream *stream);
void fa_cuda_preempt_end(struct fa_device *device, struct fa_cuda_stream *stream);
/* Launches the rest of a stopped work, when it is time. */
CUresult fa_cuda_preempt_resume(struct fa_device *device, struct fa_cuda_stream *stream);
/* Called in each reap(), for stops that were not possible before. */
void fa_cuda_preempt_poll(struct fa_device *device);
