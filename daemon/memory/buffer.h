/*
 * Registered buffers: a client's memory, mapped for the device. Loop thread only, except during an
 * import job (memory/importer.h). Referenced by the session, requests and that job. Charges are
 * released after memory and descriptors.
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
	struct fa_device_memory memory; /* address NULL: not mapped */
	struct fa_charge charge_count, charge_pieces, charge_bytes;
	struct fa_tenant *ending; /* set after fa_tenant_ending() */

	/* Set before fa_importer_start(). */
	uint32_t id;
	uint64_t message_id;
	uint64_t deadline_ns;
	enum fa_wire_buffer_kind kind;
	bool read_only;
	uint64_t offset, bytes;
	int fd;               /* HOST_FD: the client's; ARENA: the job makes it */
	uint64_t piece_bytes; /* ARENA: the driver's allocation behind fd; 0: a memfd */
	uint8_t handle[FA_WIRE_HANDLE_BYTES]; /* only for CUDA_IPC */
	uint32_t pid; /* CUDA_IPC: the client's pid in its PID namespace; 0: unknown */
	struct fa_device_piece *pieces; /* CUDA_FD: [n_pieces_wanted], with the client's fds */
	size_t n_pieces, n_pieces_wanted;
	uint64_t pieces_bytes; /* received so far */
	struct fa_charge charge_fds;
	void *owner;  /* for the callback */
	void *mapped; /* NULL, or the daemon's mapping to import */
	/* Called in place of importer.done. May be NULL. */
	void (*imported)(struct fa_registered_buffer *buffer);

	int status;
	struct fa_error error;

	uv_work_t work;
	struct fa_list link; /* in a list of the importer */
};

/* The buffer has no memory yet. -ENOMEM; -EDQUOT: limit of the process. */
int fa_registered_buffer_new(struct fa_importer *importer, struct fa_error *error,
                             struct fa_registered_buffer **ret_buffer);
struct fa_registered_buffer *fa_registered_buffer_ref(struct fa_registered_buffer *buffer);
struct fa_registered_buffer *fa_registered_buffer_unref(struct fa_registered_buffer *buffer);

/* The buffer ends as soon as no request uses it. */
void fa_registered_buffer_end(struct fa_registered_buffer *buffer);

/* For the importer. */
void fa_registered_buffer_close_fds(struct fa_registered_buffer *buffer);

/* For the importer, without memory or references left. */
void fa_registered_buffer_destroy(struct fa_registered_buffer *buffer);
