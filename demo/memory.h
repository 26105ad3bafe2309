/*
 * A tensor's memory, of every kind that fad supports. The client accesses `host`; push and pull
 * copy to and from the GPU.
 */
#pragma once

#include "client/faclient.h"

#include <stddef.h>

enum demo_memory_kind {
	DEMO_MEMFD,    /* host memory of this process */
	DEMO_ARENA,    /* made by the daemon; on a GPU device memory */
	DEMO_CUDA_IPC, /* this process's, on the device, by IPC handle */
	DEMO_CUDA_FD,  /* the same, as several fds */
};

struct demo_memory;

const char *demo_memory_name(enum demo_memory_kind kind);

/* Allocates @bytes (host: zeroed) and registers them. Returns 0 or a negative errno and its
 * @text. */
int demo_memory_new(struct fa_client *client, enum demo_memory_kind kind, size_t bytes, char *text,
                    size_t text_bytes, struct demo_memory **ret_memory);
void demo_memory_free(struct demo_memory *memory);

struct fa_buffer *demo_memory_buffer(struct demo_memory *memory);
void *demo_memory_host(struct demo_memory *memory);

int demo_memory_push(struct demo_memory *memory);
int demo_memory_pull(struct demo_memory *memory);
