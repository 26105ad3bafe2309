/* GPU memory behind descriptors. On workers, but fa_cuda_set_access() and fa_cuda_allocation(). */
#pragma once

#include "daemon/backend/cuda/device.h"

/* @read_only: for reads only, if the driver can do that. */
int fa_cuda_set_access(struct fa_device *device, CUdeviceptr at, uint64_t bytes, bool read_only,
                       struct fa_error *error);
CUmemAllocationProp fa_cuda_allocation(const struct fa_device *device);

int fa_cuda_memory_new_arena(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                             struct fa_device_memory *ret_memory, int *ret_fd,
                             uint64_t *ret_piece_bytes);
int fa_cuda_memory_import_pieces(struct fa_device *device, const struct fa_device_piece *pieces,
                                 size_t n_pieces, uint64_t offset, uint64_t bytes, bool read_only,
                                 struct fa_error *error, struct fa_device_memory *ret_memory);
