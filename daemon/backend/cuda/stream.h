/* CUDA streams. The engine thread calls these functions. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Launches of at most this many blocks signal their own end (kernels/cuda/common/done.h). More
 * fences would cost more than a word that the driver writes. */
#define FA_CUDA_SELF_SIGNAL_BLOCKS 1024

int fa_cuda_streams_open(struct fa_device *device, struct fa_error *error);
void fa_cuda_streams_close(struct fa_device *device);

/*
 * Makes the newest work's last launch signal its end, by the argument @done. @parts: as in struct
 * fa_cuda_done. Once launched, call fa_cuda_self_signal_launched(); otherwise the driver writes the
 * word. No effect with too many blocks.
 */
void fa_cuda_self_signal_args(const struct fa_cuda_stream *stream,
                              const struct fa_device_work *work, uint64_t blocks, uint32_t parts,
                              struct fa_cuda_done *done);
void fa_cuda_self_signal_launched(struct fa_cuda_stream *stream, uint64_t blocks, uint32_t parts);
