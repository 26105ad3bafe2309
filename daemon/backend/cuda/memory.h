/* Clients' memory as the GPU addresses it. On workers, but fa_cuda_memory_host(). */
#pragma once

#include "daemon/backend/cuda/device.h"

enum fa_cuda_memory_kind {
	FA_CUDA_MEMORY_HOST,   /* a memfd, pinned */
	FA_CUDA_MEMORY_IPC,    /* an opened CUDA IPC handle */
	FA_CUDA_MEMORY_MAPPED, /* allocations mapped side by side */
};

/* The target of fa_device_memory.backend. */
struct fa_cuda_memory {
	enum fa_cuda_memory_kind kind;
	CUdeviceptr at;
	uint64_t bytes;
	/* Memory is pinned in parts, whose borders copies must not cross. */
	char *host;
	uint64_t pinned_bytes, part_bytes;
	size_t n_mapped;
	uint64_t piece_bytes[];
};

/* A worker's pause after the driver's calls for a piece. */
#define FA_CUDA_PIECE_PAUSE_NS 20000

int fa_cuda_memory_fail(struct fa_device *device, struct fa_error *error, CUresult result,
                        const char *doing);
int fa_cuda_memory_enter(struct fa_device *device, struct fa_error *error);

struct fa_cuda_memory *fa_cuda_memory_new(enum fa_cuda_memory_kind kind, size_t n_pieces);
/* After a failed import: frees @memory, or leaves that to fa_cuda_memory_release() if it would wait
 * for the GPU. */
void fa_cuda_memory_drop(struct fa_device *device, struct fa_cuda_memory *memory,
                         struct fa_device_memory *ret_memory);

bool fa_cuda_memory_fits(uint64_t offset, uint64_t bytes, uint64_t whole_bytes);

int fa_cuda_memory_import_ipc(struct fa_device *device, const uint8_t handle[64], uint64_t offset,
                              uint64_t bytes, bool read_only, struct fa_error *error,
                              struct fa_device_memory *ret_memory);
void fa_cuda_memory_release(struct fa_device *device, struct fa_device_memory *const *memories,
                            size_t n);
const void *fa_cuda_memory_host(struct fa_device *device, const struct fa_device_memory *memory);
