/*
 * Queues of the Vulkan backend, the life of a work, and the thread that gives works to the device
 * ("fad-vulkan"). The engine thread calls these functions, unless a comment says otherwise.
 */
#pragma once

#include "daemon/backend/vulkan/device.h"

/* What a prepared work needs on the device. */
struct fa_vk_prepared {
	struct fa_vk_blob *blob;  /* begins with the word that stops the work's kernels */
	struct fa_vk_blob *q;     /* rotated q that no client sees; NULL: none */
	struct fa_vk_blob *parts; /* results over parts of keys; NULL: none */
	unsigned int n_dispatches;
	struct fa_vulkan_dispatch dispatches[];
};

enum fa_vk_work_state {
	FA_VK_WORK_QUEUED,   /* waits behind other works of the queue */
	FA_VK_WORK_READY,    /* in the fair queue */
	FA_VK_WORK_RUNNING,  /* the device computes a part of it */
	FA_VK_WORK_FINISHED, /* in device.done, or reaped */
};

/* Stored in fa_device_work.backend. */
struct fa_vk_work {
	struct fa_list ready_link;
	uint64_t group;    /* of the dispatch: the next workgroup to run */
	uint32_t dispatch; /* index of the next, or of the next copy */
	uint32_t state;
};

/* Start and stop the thread; loop thread. */
int fa_vk_queue_open(struct fa_device *device, struct fa_error *error);
void fa_vk_queue_close(struct fa_device *device);

int fa_vk_group_new(struct fa_device *device, struct fa_error *error,
                    struct fa_device_group **ret_group);
struct fa_device_group *fa_vk_group_free(struct fa_device *device, struct fa_device_group *group);
int fa_vk_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
                    struct fa_error *error, struct fa_device_queue **ret_queue);
struct fa_device_queue *fa_vk_queue_free(struct fa_device *device, struct fa_device_queue *queue);
int fa_vk_launch(struct fa_device *device, struct fa_device_queue *queue,
                 struct fa_device_work *work);
void fa_vk_cancel(struct fa_device *device, struct fa_device_work *work);
void fa_vk_reap(struct fa_device *device, struct fa_list *done);
int fa_vk_health(struct fa_device *device, struct fa_error *error);
/* Any thread. */
bool fa_vk_is_lost(struct fa_device *device);
