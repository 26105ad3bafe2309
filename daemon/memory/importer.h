/*
 * The importer: makes and releases the memory of buffers on workers, a few jobs at a
 * time, because mapping contends with what the device is doing. Everything here is
 * called by the loop thread; a buffer in a job is the worker's until the job ends.
 */
#pragma once

#include "daemon/memory/buffer.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

/* The jobs of one daemon; embedded in the server. */
struct fa_importer {
	uv_loop_t *loop;
	const struct fa_device_ops *ops;
	struct fa_device *device;
	struct fa_fd_reaper *reaper;
	/* Called when a job has ended; the reference given to _start() comes back. */
	void (*done)(struct fa_registered_buffer *buffer);
	/* Called when memory was released. */
	void (*released)(struct fa_importer *importer);
	uint64_t buffers_max; /* mappings that this process can have */
	uint64_t n_buffers;

	struct fa_list waiting; /* jobs: two of a session at most, so their order is fair */
	unsigned int n_running;
	struct fa_list unreferenced; /* buffers to release */
	struct fa_list releasing;    /* the worker's, while release_running */
	bool release_running;
	uv_work_t release;
};

void fa_importer_init(struct fa_importer *importer, uv_loop_t *loop,
                      const struct fa_device_ops *ops, struct fa_device *device,
                      struct fa_fd_reaper *reaper,
                      void (*done)(struct fa_registered_buffer *buffer),
                      void (*released)(struct fa_importer *importer));

/* Whether there are no jobs and no memory. */
bool fa_importer_is_idle(const struct fa_importer *importer);

/* Consumes the reference until importer.done(buffer), or buffer.imported(), which comes in any
 * case. */
void fa_importer_start(struct fa_importer *importer, struct fa_registered_buffer *buffer);

/* Of one that was started, and has not come back. Whether its job had not begun: then it never
 * does, and the reference is the caller's again. */
bool fa_importer_withdraw(struct fa_registered_buffer *buffer);

/* Called by a buffer whose last reference has gone: releases its memory and frees it. */
void fa_importer_release(struct fa_importer *importer, struct fa_registered_buffer *buffer);
