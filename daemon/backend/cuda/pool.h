/* Memory of the KV pool. Loop thread. */
#pragma once

#include "daemon/backend/cuda/device.h"

int fa_cuda_pool_open(struct fa_device *device, uint64_t chunk_bytes, uint32_t max_chunks,
                      struct fa_error *error, void **ret_base);
void fa_cuda_pool_close(struct fa_device *device);
int fa_cuda_pool_chunk_add(struct fa_device *device, uint32_t chunk, struct fa_error *error,
                           bool *ret_zeroed, int *ret_fd);
int fa_cuda_pool_chunk_adopt(struct fa_device *device, uint32_t chunk, int fd,
                             struct fa_error *error);
void fa_cuda_pool_chunk_remove(struct fa_device *device, uint32_t chunk);
