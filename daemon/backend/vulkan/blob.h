/*
 * The backend's own memory, for works and what goes with them: kept for reuse, in sizes of powers of two; small
 * ones share allocations. The loop thread.
 */
#pragma once

#include "daemon/backend/vulkan/device.h"

/* Returns memory of at least @bytes, with any contents. -ENOMEM. */
int fa_vk_blob_new(struct fa_device *device, enum fa_vk_memory_kind kind, uint64_t bytes,
                   struct fa_error *error, struct fa_vk_blob **ret_blob);
struct fa_vk_blob *fa_vk_blob_free(struct fa_device *device, struct fa_vk_blob *blob);

/* Frees what was kept for reuse. No blob is in use. */
void fa_vk_blobs_close(struct fa_device *device);
