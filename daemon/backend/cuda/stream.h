/* CUDA streams. Engine thread. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Launches of so many blocks signal their own end (kernels/cuda/common/done.h). More fences would
 * cost too much. */
#define FA_CUDA_SELF_SIGNAL_BLOCKS 1024

int fa_cuda_streams_open(struct fa_device *device, struct fa_error *error);
void fa_cuda_streams_close(struct fa_device *device);

/*
 * Makes the newest work's last launch signal its end, by the argument @done, unless it has too many
 * blocks. @parts: as in struct fa_cuda_done. After the launch call fa_cuda_self_signal_launched();
 * else the driver writes the word.
 */
void fa_cuda_self_signal_args(const struct fa_cuda_stream *stream,
                              const struct fa_device_work *work, uint64_t blocks, uint32_t parts,
                              struct fa_cuda_done *done);
void fa_cuda_self_signal_launched(struct fa_cuda_stream *stream, uint64_t blocks, uint32_t parts);
