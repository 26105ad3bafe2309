/* The KV pool's memory: a memfd per chunk, which is imported, and which the next process adopts. The
 * chunks' addresses need not follow one another. Kernels find chunks by a table of addresses. The loop
 * thread calls these functions. */
#pragma once

#include "daemon/backend/vulkan/device.h"

int fa_vk_pool_open(struct fa_device *device, uint64_t chunk_bytes, uint32_t max_chunks,
                    struct fa_error *error, void **ret_base);
void fa_vk_pool_close(struct fa_device *device);
int fa_vk_pool_chunk_add(struct fa_device *device, uint32_t chunk, struct fa_error *error,
                         bool *ret_zeroed, int *ret_fd);
int fa_vk_pool_chunk_adopt(struct fa_device *device, uint32_t chunk, int fd,
                           struct fa_error *error);
void fa_vk_pool_chunk_remove(struct fa_device *device, uint32_t chunk);
