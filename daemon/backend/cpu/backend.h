/*
 * What the files of the CPU backend share (device_cpu*.c); nobody else includes it.
 */
#pragma once

#include "daemon/backend/device.h"

#include <stddef.h>
#include <stdint.h>

/* ---- the pool's memory: a memfd a chunk, side by side in one range of addresses. The
 * loop thread's. */

struct fa_cpu_pool {
	char *base; /* NULL: not open */
	uint64_t chunk_bytes;
	uint32_t max_chunks;
};

int fa_cpu_pool_open(struct fa_cpu_pool *pool, uint64_t chunk_bytes, uint32_t max_chunks,
                     struct fa_error *error, void **ret_base);
void fa_cpu_pool_close(struct fa_cpu_pool *pool);
int fa_cpu_pool_chunk_add(struct fa_cpu_pool *pool, uint32_t chunk, struct fa_error *error,
                          int *ret_fd);
int fa_cpu_pool_chunk_adopt(struct fa_cpu_pool *pool, uint32_t chunk, int fd,
                            struct fa_error *error);
void fa_cpu_pool_chunk_remove(struct fa_cpu_pool *pool, uint32_t chunk);

/* ---- the room of a work of paged requests: their workspace, as one of them runs at a
 * time, and behind it q as it was rotated. Works of one queue may have the same, as one of
 * them runs at a time: it is written only from their activation on. */

int fa_cpu_room_new(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                    struct fa_error *error);
/* The same of an attention over tensors: its workspace, if it needs one; nobody else's. */
int fa_cpu_room_new_attention(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                              struct fa_error *error);
void fa_cpu_room_free(struct fa_device_work *work);
