/* Memory of the CPU backend: imported memfds and arenas. For the loop's workers (device.h). */
#pragma once

#include "daemon/backend/device.h"

int fa_cpu_memory_import_host(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                              bool read_only, struct fa_error *error,
                              struct fa_device_memory *ret_memory);
int fa_cpu_memory_new_arena(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                            struct fa_device_memory *ret_memory, int *ret_fd,
                            uint64_t *ret_piece_bytes);
void fa_cpu_memory_release(struct fa_device *device, struct fa_device_memory *const *memories,
                           size_t n);
const void *fa_cpu_memory_host(struct fa_device *device, const struct fa_device_memory *memory);
