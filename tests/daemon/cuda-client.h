/*
 * A raw client with memory on the tests' GPU. It runs in a child with a context
 * (tests/cuda-driver/child.h).
 */
#pragma once

#include "tests/cuda-driver/child.h"
#include "tests/lib/attention.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"

#define CUDA_CHUNK ((uint64_t)2 << 20)
#define CUDA_PIECES_MAX 64

struct cuda_buffer {
	uint32_t id;
	enum fa_wire_buffer_kind kind;
	CUdeviceptr at; /* in this process */
	uint64_t bytes; /* of the allocation, or of all pieces together */
	CUipcMemHandle handle;
	int device;
	size_t n_pieces;
	CUmemGenericAllocationHandle pieces[CUDA_PIECES_MAX];
	int fds[CUDA_PIECES_MAX];
};

/* These allocate without registering. */
void cuda_buffer_ipc(struct cuda_buffer *buffer, uint32_t id, uint64_t bytes);
void cuda_buffer_vmm(struct cuda_buffer *buffer, uint32_t id, size_t n_pieces, int device);
void cuda_buffer_end(struct cuda_buffer *buffer);

/* The message that registers [offset, offset + bytes), with as many pieces as fit. */
struct fa_wire_message cuda_register_message(const struct cuda_buffer *buffer, uint64_t offset,
                                             uint64_t bytes, uint32_t flags);

/* The reply must have @status, and @part in its text unless @status is 0. */
void cuda_register(struct fa_raw *raw, const struct cuda_buffer *buffer, uint64_t offset,
                   uint64_t bytes, uint32_t flags, int status, const char *part);

/* Requests an arena, and maps it. */
void cuda_arena(struct fa_raw *raw, struct cuda_buffer *buffer, uint32_t id, uint64_t bytes);

void cuda_unregister(struct fa_raw *raw, uint32_t id);

/* Puts the tensors of @attention at @at; cuda_case_error() compares the result there. */
void cuda_case_fill(const struct fa_case *attention, CUdeviceptr at);
double cuda_case_error(const struct fa_case *attention, CUdeviceptr at);

/* Submits @attention in buffer @id, mapped at @at; checks the result. */
void cuda_attention(struct fa_raw *raw, struct fa_case *attention, uint32_t id, CUdeviceptr at,
                    uint64_t value);
