/* Imports host memory. Called by workers. */
#pragma once

#include "daemon/backend/cuda/device.h"

int fa_cuda_memory_import_host(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                               bool read_only, struct fa_error *error,
                               struct fa_device_memory *ret_memory);
int fa_cuda_memory_import_mapped(struct fa_device *device, void *host, uint64_t bytes,
                                 struct fa_error *error, struct fa_device_memory *ret_memory);
