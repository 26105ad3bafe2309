/*
 * Buffers: memory that a client handed over or asked for, as the device sees it.
 * Every field is the loop thread's, but for what a worker is given from the start of
 * its job to the end (memory/importer.h). A buffer lives while somebody holds a reference: its
 * session's table, each request that uses it, the registration or the job that makes
 * it. Its charges go when its memory and its descriptors have.
 */
#pragma once

#include "common/error.h"
#include "common/list.h"
#include "daemon/account/fd_reaper.h"
#include "daemon/account/tenant.h"
#include "daemon/backend/device.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_importer;

struct fa_registered_buffer {
	unsigned int n_refs;
	struct fa_importer *importer;
	struct fa_device_memory memory; /* address NULL: none (yet) */
	struct fa_charge charge_count, charge_pieces, charge_bytes;

	/* What is to be made; set before fa_importer_start(). */
	uint32_t id;
	uint64_t message_id;
	uint64_t deadline_ns;
	enum fa_wire_buffer_kind kind;
	bool read_only;
	uint64_t offset, bytes;
	int fd;               /* HOST_FD: the client's; ARENA: made with the memory */
	uint64_t piece_bytes; /* ARENA: of the driver's allocation that fd is; 0: fd is a memfd */
	uint8_t handle[FA_WIRE_HANDLE_BYTES]; /* CUDA_IPC */
	uint32_t pid;                         /* CUDA_IPC: as the client sees its own; 0: unknown */
	struct fa_device_piece *pieces;       /* CUDA_FD: [n_pieces_wanted], the client's fds */
	size_t n_pieces, n_pieces_wanted;
	uint64_t pieces_bytes; /* of those that have come */
	struct fa_charge charge_fds;
	void *owner; /* opaque */
	void *mapped; /* not NULL: nothing of a client's, but @bytes that the daemon has mapped here */
	/* What is called instead of importer.done; NULL: that. */
	void (*imported)(struct fa_registered_buffer *buffer);

	/* What came of it. */
	int status;
	struct fa_error error;

	uv_work_t work;
	struct fa_list link; /* in the importer */
};

/* One reference, no memory. -ENOMEM; -EDQUOT if the daemon has as many as it can. */
int fa_registered_buffer_new(struct fa_importer *importer, struct fa_error *error,
                             struct fa_registered_buffer **ret_buffer);
struct fa_registered_buffer *fa_registered_buffer_ref(struct fa_registered_buffer *buffer);
struct fa_registered_buffer *fa_registered_buffer_unref(struct fa_registered_buffer *buffer);

/* Gives the client's descriptors, and what is charged for them, to the reaper. */
void fa_registered_buffer_close_fds(struct fa_registered_buffer *buffer);

/* The end of one that has no memory and no references; the importer's. */
void fa_registered_buffer_destroy(struct fa_registered_buffer *buffer);
