/*
 * Buffers: memory that a client handed over or asked for, as the device sees it.
 * Importing and releasing run on workers; everything else, and every field, is the
 * loop thread's, but for what a worker is given from the start of its job to the
 * end. A buffer lives while somebody holds a reference: its session's table, each
 * request that uses it, the job that makes it. Its charges go when its memory has.
 */
#pragma once

#include "common/error.h"
#include "common/list.h"
#include "daemon/closer.h"
#include "daemon/device.h"
#include "daemon/tenant.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_importer;

struct fa_buffer {
	unsigned int n_refs;
	struct fa_importer *importer;
	struct fa_device_memory memory; /* address NULL: none (yet) */
	struct fa_charge charge_count, charge_bytes;

	/* What is to be made; set before fa_importer_start(). */
	uint32_t id;
	uint64_t message_id;
	uint64_t deadline_ns;
	bool arena;
	bool read_only;
	uint64_t offset, bytes;
	int fd;               /* the client's; ARENA: made with the memory */
	uint64_t piece_bytes; /* ARENA: of the driver's allocation that fd is; 0: fd is a memfd */
	struct fa_charge charge_fd;
	void *owner; /* opaque */

	/* What came of it. */
	int status;
	struct fa_error error;

	uv_work_t work;
	struct fa_list link; /* in the importer */
};

/* The jobs of one daemon; embedded in the server. */
struct fa_importer {
	uv_loop_t *loop;
	const struct fa_device_ops *ops;
	struct fa_device *device;
	struct fa_closer *closer;
	/* Called when a job has ended; the reference given to _start() comes back. */
	void (*done)(struct fa_buffer *buffer);
	/* Called when memory was released. */
	void (*released)(struct fa_importer *importer);
	uint64_t buffers_max; /* mappings that this process can have */
	uint64_t n_buffers;

	struct fa_list waiting; /* jobs: one of each session at most, so their order is fair */
	unsigned int n_running;
	struct fa_list unreferenced; /* buffers to release */
	struct fa_list releasing;    /* the worker's, while release_running */
	bool release_running;
	uv_work_t release;
};

void fa_importer_init(struct fa_importer *importer, uv_loop_t *loop,
                      const struct fa_device_ops *ops, struct fa_device *device,
                      struct fa_closer *closer, void (*done)(struct fa_buffer *buffer),
                      void (*released)(struct fa_importer *importer));

/* Whether there are no jobs and no memory. */
bool fa_importer_is_idle(const struct fa_importer *importer);

/* One reference, no memory. -ENOMEM; -EDQUOT if the daemon has as many as it can. */
int fa_buffer_new(struct fa_importer *importer, struct fa_error *error,
                  struct fa_buffer **ret_buffer);
struct fa_buffer *fa_buffer_ref(struct fa_buffer *buffer);
struct fa_buffer *fa_buffer_unref(struct fa_buffer *buffer);

/* Consumes the reference until importer.done(buffer), which comes in any case. */
void fa_importer_start(struct fa_importer *importer, struct fa_buffer *buffer);
