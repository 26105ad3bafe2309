/* Gates that the GPU waits for (gate.c). Engine thread, but fa_cuda_gates_open(). */
#pragma once

#include "daemon/backend/cuda/device.h"

void fa_cuda_gates_open(struct fa_device *device);
/* @work is the stream's newest. Fills in the gate's part of @done. */
struct fa_cuda_gate fa_cuda_gate_of(const struct fa_cuda_stream *stream,
                                    const struct fa_device_work *work, struct fa_cuda_done *done);
/* Call it after the launch. Works behind gates are of one queue. */
void fa_cuda_gates_add(struct fa_cuda_stream *stream, const struct fa_device_queue *queue);
void fa_cuda_gates_stop(struct fa_cuda_stream *stream);
/* True: a gate has given up since the last call, and all from *ret_turn on are shut. */
bool fa_cuda_gates_are_shut(struct fa_cuda_stream *stream, uint64_t *ret_turn);
/* Later gates are not affected by those that are shut. */
void fa_cuda_gates_begin(struct fa_cuda_stream *stream);
