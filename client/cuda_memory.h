/*
 * Finds allocations of the program's pointers, exports and maps memory. The driver is opened at
 * first need, never closed. Any thread. Calls use the thread's context, else the memory's, else the
 * device's primary one, and restore the thread's own.
 */
#pragma once

#include "common/cudriver.h"
#include "common/error.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Addresses are reused, buffer ids are not. */
struct fa_cuda_piece {
	uint64_t at, bytes;
	uint64_t buffer_id;
};

/* Adjacent allocations that cover a range: one of cuMemAlloc(), or several of cuMemCreate(). The
 * program may free them at any time. */
struct fa_cuda_allocations {
	bool by_ipc_handle; /* exported by IPC handle, else by descriptors */
	bool has_ids;       /* with buffer ids it can be found again */
	int device;         /* in this process */
	uint64_t at, bytes;
	size_t n_pieces; /* 1 if by_ipc_handle */
	struct fa_cuda_piece pieces[];
};

/* The daemon's memory, mapped here. */
struct fa_cuda_mapping {
	uint64_t at, bytes;
	bool retained; /* for it, the primary context was retained */
	CUdevice device;
};

/* Opens the driver once. -ENODEV, -ENOSYS and others, with a sentence. */
int fa_cuda_open(struct fa_error *error, const struct fa_cudriver **ret_driver);

/* Finds the allocations of [at, at + bytes) on the GPU with @uuid; the caller calls free().
 * -EINVAL: no such memory, or a shorter allocation; -ENOTSUP: memory that cannot be handed over. */
int fa_cuda_find(const struct fa_cudriver *driver, uint64_t at, uint64_t bytes,
                 const uint64_t uuid[2], struct fa_error *error,
                 struct fa_cuda_allocations **ret_memory);

bool fa_cuda_is_alive(const struct fa_cudriver *driver, const struct fa_cuda_allocations *memory);

int fa_cuda_handle(const struct fa_cudriver *driver, const struct fa_cuda_allocations *memory,
                   struct fa_error *error, uint8_t ret_handle[FA_WIRE_HANDLE_BYTES]);

int fa_cuda_export(const struct fa_cudriver *driver, const struct fa_cuda_allocations *memory,
                   size_t first, size_t n, struct fa_error *error, int *ret_fds);

/* @fd stays the caller's. */
int fa_cuda_map(const struct fa_cudriver *driver, int fd, uint64_t bytes, const uint64_t uuid[2],
                struct fa_error *error, struct fa_cuda_mapping *ret_mapping);
void fa_cuda_unmap(const struct fa_cudriver *driver, const struct fa_cuda_mapping *mapping);
