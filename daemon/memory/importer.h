/*
 * Maps and releases buffers' memory on libuv's workers, few at a time, as mapping contends with
 * kernels. Called by the loop thread; a worker owns the buffer while its job runs.
 */
#pragma once

#include "daemon/memory/buffer.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_importer {
	uv_loop_t *loop;
	const struct fa_device_ops *ops;
	struct fa_device *device;
	struct fa_fd_reaper *reaper;
	/* Called after a job. Returns the reference of fa_importer_start(). */
	void (*done)(struct fa_registered_buffer *buffer);
	void (*released)(struct fa_importer *importer);
	uint64_t buffers_max; /* by vm.max_map_count */
	uint64_t n_buffers;

	/* in order; a session has two jobs at most */
	struct fa_list waiting;
	unsigned int n_running;
	struct fa_list unreferenced; /* to release */
	struct fa_list releasing;    /* while release_running: a worker's */
	bool release_running;
	uv_work_t release;
};

void fa_importer_init(struct fa_importer *importer, uv_loop_t *loop,
                      const struct fa_device_ops *ops, struct fa_device *device,
                      struct fa_fd_reaper *reaper,
                      void (*done)(struct fa_registered_buffer *buffer),
                      void (*released)(struct fa_importer *importer));

bool fa_importer_is_idle(const struct fa_importer *importer);

/* Keeps a reference until buffer.imported(), or importer.done() if that is NULL. */
void fa_importer_start(struct fa_importer *importer, struct fa_registered_buffer *buffer);

/* Cancels a job that has not begun, without a callback. If true, the reference is the caller's
 * again. */
bool fa_importer_withdraw(struct fa_registered_buffer *buffer);

/* The buffer must be unreferenced. Frees it, too. */
void fa_importer_release(struct fa_importer *importer, struct fa_registered_buffer *buffer);
