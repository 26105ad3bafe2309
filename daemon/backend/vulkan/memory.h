/* Memory that the device addresses: imports of host memory, and arenas. The loop's workers. */
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

/* Of all buffers. */
#define FA_VK_BUFFER_USAGE                                                                         \
	(VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |          \
	 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)

/* What memory shall be made of. */
struct fa_vk_memory_want {
	enum fa_vk_memory_kind kind;
	uint64_t bytes;
	void *host; /* mapped and page-aligned memory to import; NULL: none */
	uint32_t host_types;
	bool exported; /* it will be exported as a descriptor */
	int fd;        /* memory to import, which the driver owns on success; -1: none */
};

/* Makes a buffer, its memory and its address. *ret_buffer and *ret_memory may be half-made. Any thread. */
VkResult fa_vk_memory_make(struct fa_device *device, const struct fa_vk_memory_want *want,
                           VkBuffer *ret_buffer, VkDeviceMemory *ret_memory, uint64_t *ret_at);
