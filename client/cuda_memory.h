/*
 * The CUDA driver in this process: what it says about a pointer, and how memory is
 * handed over and taken. It is opened by the first call that needs it and never
 * closed; nothing else of the library touches it. No state but that; any thread.
 *
 * What needs a context uses the one that is current in the thread, else that of the
 * memory, else the primary one of the memory's device; the thread's own is current
 * again afterwards.
 */
#pragma once

#include "common/cudriver.h"
#include "common/error.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One allocation; its address may be used again after its end, its buffer id is not. */
struct fa_cuda_piece {
	uint64_t at, bytes;
	uint64_t buffer_id;
};

/*
 * Allocations of this process side by side, which hold a range that somebody asked
 * about: one of cuMemAlloc, or any number of cuMemCreate. Nothing is held: the
 * program may free them at any time.
 */
struct fa_cuda_memory {
	bool legacy;  /* handed over by a handle, else by descriptors */
	bool has_ids; /* buffer ids are known, so that it can be found again */
	int device;   /* its ordinal in this process */
	uint64_t at, bytes;
	size_t n_pieces; /* 1 if legacy */
	struct fa_cuda_piece pieces[];
};

/*
 * Memory of the daemon's that is mapped here.
 */
struct fa_cuda_mapping {
	uint64_t at, bytes;
	bool retained; /* the primary context of device, which nobody had made current */
	CUdevice device;
};

/* -ENODEV, -ENOSYS and others, with a sentence. */
int fa_cuda_open(struct fa_error *error, const struct fa_cudriver **ret_driver);

/*
 * Finds the memory that [at, at + bytes) lies in, which must be of the GPU with
 * @uuid. Freed with free(). -EINVAL: no such memory, or not so much of it; -ENOTSUP
 * with a sentence that names the way out: memory that cannot be handed over.
 */
int fa_cuda_find(const struct fa_cudriver *driver, uint64_t at, uint64_t bytes,
                 const uint64_t uuid[2], struct fa_error *error,
                 struct fa_cuda_memory **ret_memory);

/* Whether none of it was freed since it was found. */
bool fa_cuda_is_alive(const struct fa_cudriver *driver, const struct fa_cuda_memory *memory);

/* The handle of legacy memory. */
int fa_cuda_handle(const struct fa_cudriver *driver, const struct fa_cuda_memory *memory,
                   struct fa_error *error, uint8_t ret_handle[FA_WIRE_HANDLE_BYTES]);

/* Descriptors of @n pieces from @first on. */
int fa_cuda_export(const struct fa_cudriver *driver, const struct fa_cuda_memory *memory,
                   size_t first, size_t n, struct fa_error *error, int *ret_fds);

/* Maps the allocation of @bytes that @fd is, which stays the caller's, on the GPU with
 * @uuid. */
int fa_cuda_map(const struct fa_cudriver *driver, int fd, uint64_t bytes, const uint64_t uuid[2],
                struct fa_error *error, struct fa_cuda_mapping *ret_mapping);
void fa_cuda_unmap(const struct fa_cudriver *driver, const struct fa_cuda_mapping *mapping);
