/*
 * Registrations: memory that the daemon knows under one id. Buffers are windows of them. A
 * registration belongs to one buffer; only those of the program's CUDA memory cover whole
 * allocations and are shared (cuda_cache.h).
 */
#pragma once

#include "client/faclient.h"
#include "common/error.h"
#include "common/list.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct fa_cuda_mapping;
struct fa_cuda_allocations;

struct fa_client_registration {
	struct fa_list link; /* fa_client.registrations, .cuda_used or .cuda_unused */
	uint32_t id;
	enum fa_wire_buffer_kind kind; /* after a reconnect */
	uint32_t wire_flags;
	uint64_t offset, bytes;
	int fd;               /* HOST_FD, and CUDA_FD of an arena; else -1 */
	uint64_t piece_bytes; /* CUDA_FD: of the allocation behind fd */
	uint64_t uuid[2];     /* CUDA_*: UUID of the GPU */
	/* A file of the program's; inode 0: other memory, which no other buffer has. */
	uint64_t file_system, inode;

	struct fa_cuda_allocations *cuda;     /* the program's CUDA memory, owned; else NULL */
	uint8_t handle[FA_WIRE_HANDLE_BYTES]; /* CUDA_IPC */
	unsigned int n_buffers;               /* of cuda */
	bool freed;                           /* the program has */

	/* Why the daemon lacks this memory; 0: it has it. */
	int missing;
	struct fa_error missing_error;
};

struct fa_buffer {
	void *handle;
	struct fa_list link; /* fa_client.buffers; under the client's mutex */
	/* Constant. */
	struct fa_client *client;
	struct fa_client_registration *registration; /* owned unless it is of CUDA memory */
	uint64_t offset, bytes;                      /* in the registration */
	void *data;                                  /* mapped here; or NULL */
	uint64_t device_data;                        /* GPU address here; or 0 */
	struct fa_cuda_mapping *mapping;             /* of device_data, for an arena; owned */
};

struct fa_client_registration *fa_registration_new(enum fa_wire_buffer_kind kind,
                                                   uint32_t wire_flags, uint64_t offset,
                                                   uint64_t bytes);
/* Sends nothing to the daemon. Takes NULL. */
void fa_registration_free(struct fa_client_registration *registration);
/* Assigns an unused id. With the client's mutex held. */
void fa_registration_assign_id(struct fa_client *client,
                               struct fa_client_registration *registration);
/* One message must suffice for the registration. */
void fa_registration_message(const struct fa_client_registration *registration,
                             struct fa_wire_message *ret_message);
