/*
 * Registrations: memory that the daemon knows under one id. Buffers are windows of registrations.
 *
 * A registration of memory made here or by the daemon belongs to one buffer. One of the program's
 * CUDA memory covers whole allocations, is shared by the buffers in it, and is kept for a while
 * when there are none (cuda_cache.h).
 */
#pragma once

#include "client/faclient.h"
#include "common/error.h"
#include "common/list.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct fa_cuda_mapping;
struct fa_cuda_memory;

struct fa_registration {
	struct fa_list link; /* fa_client.registrations, .cuda_used or .cuda_unused */
	uint32_t id;
	enum fa_wire_buffer_kind kind; /* as it is registered after a reconnect */
	uint32_t wire_flags;
	uint64_t offset, bytes;
	int fd;               /* HOST_FD, and CUDA_FD of an arena; else -1 */
	uint64_t piece_bytes; /* CUDA_FD: of the allocation that fd is */
	uint64_t uuid[2];     /* CUDA_*: of its GPU */

	struct fa_cuda_memory *cuda;          /* the program's CUDA memory, owned; else NULL */
	uint8_t handle[FA_WIRE_HANDLE_BYTES]; /* CUDA_IPC */
	unsigned int n_users;                 /* buffers in cuda */
	bool freed;                           /* cuda was found to be freed */

	/* 0, or why the daemon that was connected to last does not have it. */
	int missing;
	struct fa_error why;
};

struct fa_buffer {
	struct fa_list link; /* fa_client.buffers; changed with the client's mutex */
	/* The rest does not change. */
	struct fa_client *client;
	struct fa_registration *registration; /* owned unless it is of CUDA memory */
	uint64_t offset, bytes;               /* in the registration */
	void *data;                           /* mapping in this process; or NULL */
	uint64_t device_data;                 /* GPU address in this process; or 0 */
	struct fa_cuda_mapping *mapping;      /* owned; of device_data, if it is an arena */
};

struct fa_registration *fa_registration_new(enum fa_wire_buffer_kind kind, uint32_t wire_flags,
                                            uint64_t offset, uint64_t bytes);
/* Removes it from its list, closes and frees; the daemon is not told. Takes NULL. */
void fa_registration_free(struct fa_registration *registration);
/* With the mutex. Gives it an id that no other registration of the client has. */
void fa_registration_assign_id(struct fa_client *client, struct fa_registration *registration);
/* Makes the BufferRegister of a registration that one message can register. */
void fa_registration_message(const struct fa_registration *registration,
                             struct fa_wire_message *ret_message);
