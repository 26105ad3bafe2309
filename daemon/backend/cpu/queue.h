/*
 * Queues of works. With device.mutex, unless a comment says otherwise.
 */
#pragma once

#include "daemon/backend/cpu/device.h"

enum fa_cpu_work_state {
	FA_CPU_WORK_QUEUED,   /* behind other works */
	FA_CPU_WORK_ACTIVE,   /* the queue's first work */
	FA_CPU_WORK_FINISHED, /* in device.done, or reaped */
};

/* Stored in fa_device_work.backend. */
struct fa_cpu_work {
	_Atomic int64_t next; /* grows past n_tiles */
	int64_t n_tiles;
	struct fa_list ready_link;
	size_t scratch_bytes;
	uint32_t n_workers; /* on the work's tiles now */
	uint32_t state;
	int32_t failure;     /* why a worker stopped, or 0 */
	uint32_t phase;      /* index of the paged request that runs */
	atomic_bool stopped; /* a tile was given up */
};

static inline struct fa_cpu_work *fa_cpu_work(struct fa_device_work *work)
{
	return (struct fa_cpu_work *)work->backend;
}

/* Workers call these, with the mutex held. */

/* A ready work, whose group is charged a quantum; NULL: none. */
struct fa_device_work *fa_cpu_queue_pick(struct fa_device *device);
/* Returns how many sleepers to wake. */
uint32_t fa_cpu_queue_serve_begin(struct fa_device *device, struct fa_device_work *work);
/* May release the mutex. @used_ns: of the quantum. @failure: why the worker ran no tiles, or 0. */
void fa_cpu_queue_serve_end(struct fa_device *device, struct fa_device_work *work, uint64_t used_ns,
                            int failure);

int fa_cpu_group_new(struct fa_device *device, struct fa_error *error,
                     struct fa_device_group **ret_group);
struct fa_device_group *fa_cpu_group_free(struct fa_device *device, struct fa_device_group *group);
int fa_cpu_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
                     struct fa_error *error, struct fa_device_queue **ret_queue);
struct fa_device_queue *fa_cpu_queue_free(struct fa_device *device, struct fa_device_queue *queue);
int fa_cpu_launch(struct fa_device *device, struct fa_device_queue *queue,
                  struct fa_device_work *work);
void fa_cpu_cancel(struct fa_device *device, struct fa_device_work *work);
void fa_cpu_reap(struct fa_device *device, struct fa_list *done);
