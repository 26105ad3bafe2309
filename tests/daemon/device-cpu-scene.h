/* The CPU backend over kernels that a test controls: works, and waiting for them. */
#pragma once

#include "daemon/backend/device.h"
#include "tests/daemon/fake-kernels.h"
#include "tests/lib/device-memory.h"

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

#define PATIENCE_SEC 30
#define GROUPS 6

struct item {
	struct fa_device_work work;
	struct fa_attention_params params;
	struct fake_job job;
	bool reaped;
};

struct fixture {
	struct fa_device *device;
	struct fa_device_group *group, *others[GROUPS];
	sem_t notified;
};

extern const struct fa_device_ops *const ops; /* the CPU's */

/* The device's notify; @userdata is the fixture. */
void on_notify(void *userdata);
/* Opens the device, with a group of its own and GROUPS others. */
void fixture_init(struct fixture *f, unsigned int threads);
void fixture_deinit(struct fixture *f);
/* Return a queue of a group. The second is in the fixture's own group. */
struct fa_device_queue *queue_new_in(struct fixture *f, struct fa_device_group *group,
                                     int priority);
struct fa_device_queue *queue_new(struct fixture *f, int priority);
void launch(struct fixture *f, struct fa_device_queue *queue, struct item *item);
/* Reaps works that have ended. */
void reap(struct fixture *f);
/* Waits for an item's end, and checks that all of it or, with an error, not all was computed. */
void finish(struct fixture *f, struct item *item);
/* Wait until @n tiles, or the first one, have run. */
void wait_ran(struct item *item, int64_t n);
void wait_started(struct item *item);
