/*
 * Where a client of the demo keeps a tensor: each way that fad can be handed memory.
 * Numbers are looked at and made in `host`; push and pull bring them to and from
 * where fad sees them, which for memory of the CPU's is the same place.
 */
#pragma once

#include "client/faclient.h"

#include <stddef.h>

enum demo_memory_kind {
	DEMO_MEMFD,    /* this process', shared by its descriptor */
	DEMO_ARENA,    /* the daemon's: on a GPU, memory of the GPU's */
	DEMO_CUDA_IPC, /* this process' on the GPU, by an IPC handle */
	DEMO_CUDA_FD,  /* the same, made of pieces that travel as descriptors */
};

struct demo_memory;

/* "memfd", "arena", "CUDA IPC", "CUDA fd" */
const char *demo_memory_name(enum demo_memory_kind kind);

/*
 * Zeroed (@host) memory of @bytes, handed over to the daemon of @client. Returns 0 or a
 * negative errno with a sentence in @text. demo_memory_free() takes NULL.
 */
int demo_memory_new(struct fa_client *client, enum demo_memory_kind kind, size_t bytes, char *text,
                    size_t text_bytes, struct demo_memory **ret_memory);
void demo_memory_free(struct demo_memory *memory);

struct fa_buffer *demo_memory_buffer(struct demo_memory *memory);
void *demo_memory_host(struct demo_memory *memory);

/* Copies all of host to where fad sees it, and back. 0 or a negative errno. */
int demo_memory_push(struct demo_memory *memory);
int demo_memory_pull(struct demo_memory *memory);
