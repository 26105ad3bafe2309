/* Memory that the device addresses: imports of host memory, arenas, and the backend's own. Imports
 * and arenas: the loop's workers; blobs: the loop thread. */
#pragma once

#include "daemon/backend/vulkan/device.h"

int fa_vk_memory_import_host(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                             bool read_only, struct fa_error *error,
                             struct fa_device_memory *ret_memory);
int fa_vk_memory_new_arena(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                           struct fa_device_memory *ret_memory, int *ret_fd,
                           uint64_t *ret_piece_bytes);
void fa_vk_memory_release(struct fa_device *device, struct fa_device_memory *const *memories,
                          size_t n);
const void *fa_vk_memory_host(struct fa_device *device, const struct fa_device_memory *memory);

/* Waits until the device has done with parts whose end was seen, which takes no longer than their semaphore;
 * before memory is freed. Any thread. */
void fa_vk_memory_settle(struct fa_device *device);

/* Imports [host, host + bytes), which is mapped and page-aligned, and stays the caller's. */
int fa_vk_import_new(struct fa_device *device, void *host, uint64_t bytes, struct fa_error *error,
                     struct fa_vk_import **ret_import);
struct fa_vk_import *fa_vk_import_free(struct fa_device *device, struct fa_vk_import *import);

/* Returns memory of at least @bytes, with any contents. -ENOMEM. */
int fa_vk_blob_new(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                   struct fa_vk_blob **ret_blob);
struct fa_vk_blob *fa_vk_blob_free(struct fa_device *device, struct fa_vk_blob *blob);
/* Frees what was kept for reuse. */
void fa_vk_blobs_close(struct fa_device *device);
