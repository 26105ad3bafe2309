/* Queues of the CUDA backend. Engine thread. */
#pragma once

#include "daemon/backend/cuda/device.h"

#define FA_CUDA_QUEUE_DEPTH 4

int fa_cuda_group_new(struct fa_device *device, struct fa_error *error,
                      struct fa_device_group **ret_group);
struct fa_device_group *fa_cuda_group_free(struct fa_device *device, struct fa_device_group *group);
int fa_cuda_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
                      struct fa_error *error, struct fa_device_queue **ret_queue);
struct fa_device_queue *fa_cuda_queue_free(struct fa_device *device, struct fa_device_queue *queue);
bool fa_cuda_can_wait(struct fa_device *device, const struct fa_device_queue *queue,
                      const struct fa_device_work *work);
struct fa_device_lane *fa_cuda_queue_lane(struct fa_device_queue *queue);
int fa_cuda_launch(struct fa_device *device, struct fa_device_queue *queue,
                   struct fa_device_work *work);
void fa_cuda_cancel(struct fa_device *device, struct fa_device_work *work);
void fa_cuda_reap(struct fa_device *device, struct fa_list *done);
int fa_cuda_health(struct fa_device *device, struct fa_error *error);
