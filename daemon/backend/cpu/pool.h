/* The KV pool's memory: a memfd per chunk, side by side in one range of addresses. Loop thread. */
#pragma once

#include "common/error.h"

#include <stdint.h>

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
