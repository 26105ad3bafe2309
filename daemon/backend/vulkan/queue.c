/*
 * A queue has at most one active work. The thread takes a ready work from the fair queue, and gives
 * the device as many of its workgroups as should take PART_NS; then other groups have their turn. It
 * waits for the end of each part, so the device runs one part at a time, and a cancelled work ends
 * with its part, whose kernels look at the work's word, too.
 *
 * Functions are called with device.mutex held, unless a comment says otherwise.
 */
#include "daemon/backend/vulkan/queue.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/completion.h"
#include "common/cpu.h"
#include "daemon/backend/vulkan/blob.h"
#include "daemon/backend/vulkan/memory.h"
#include "daemon/backend/vulkan/pipelines.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

/* How long a part should take: the bound of what a group waits for another. */
#define PART_NS (4 * FA_NS_PER_MS)
#define SLACK_NS (10 * FA_NS_PER_MS)
/* A part that takes so long is stopped, and a device that does not stop then is lost. Compiling counts, on a
 * device that does it late. */
#define HANG_NS (60 * FA_NS_PER_SEC)
/* How long the thread spins before it sleeps. */
#define SPIN_NS (100 * FA_NS_PER_US)
#define GROUPS_MAX 65535u /* of a dispatch, on any device */
/* Assumed speeds: at first, and at least. */
#define FLOPS_PER_NS_FIRST 1.0
#define FLOPS_PER_NS_MIN 0.01
/* What a workgroup costs at least. */
#define FLOPS_MIN 1000.0

_Static_assert(sizeof(struct fa_vk_work) <= sizeof(((struct fa_device_work *)0)->backend),
               "the backend's part of a work");

struct fa_device_group {
	struct fa_fair_queue_group fair; /* fa_vk_work.ready_link */
};

struct fa_device_queue {
	struct fa_device_group *group;
	enum fa_fair_queue_class class;
	struct fa_list works; /* works in order, by fa_device_work.link; the first one is active */
};

static struct fa_vk_work *vk_work(struct fa_device_work *work)
{
	return (struct fa_vk_work *)work->backend;
}

static bool is_cancelled(struct fa_device_work *work)
{
	return atomic_load_explicit(&work->cancelled, memory_order_relaxed);
}

static bool is_over(struct fa_device_work *work)
{
	const struct fa_vk_prepared *prepared = work->prepared;

	if (work->op == FA_DEVICE_COPY)
		return vk_work(work)->dispatch >= work->n_copies;
	return !prepared || vk_work(work)->dispatch >= prepared->n_dispatches;
}

/* Tells the work's kernels to leave, if it has any. */
static void stop_kernels(struct fa_device_work *work)
{
	const struct fa_vk_prepared *prepared = work->prepared;

	if (prepared)
		__atomic_store_n((uint32_t *)prepared->blob->host, 1, __ATOMIC_RELAXED);
}

/* ---- the life of a work */

static void work_finish(struct fa_device *device, struct fa_device_work *work, int status)
{
	struct fa_vk_work *vk = vk_work(work);

	if (vk->state == FA_VK_WORK_READY)
		fa_fair_queue_remove(&device->fair, &work->queue->group->fair, &vk->ready_link);
	fa_list_remove(&work->link);
	vk->state = FA_VK_WORK_FINISHED;
	work->finished_ns = fa_now_ns();
	work->status = status;
	if (status == -ECANCELED)
		(void)fa_fail(&work->error, status, "the work was cancelled");
	/* Notify before appending: no notification may follow the last reap(), which waits for the mutex. */
	atomic_store_explicit(&device->has_done, true, memory_order_release);
	if (fa_list_empty(&device->done))
		device->config.notify(device->config.userdata);
	fa_list_append(&device->done, &work->link);
	/* Write these words before the work can be reaped. Release, so that readers see the
	 * results. */
	for (int i = 0; i < FA_COMPLETION_DEVICE_WORDS && work->completion_words && !status; i++)
		__atomic_store_n(&work->completion_words[i], work->completion_value,
		                 __ATOMIC_RELEASE);
}

static void fail_lost(struct fa_device *device, struct fa_device_work *work)
{
	work->error = device->lost_error;
	work_finish(device, work, -ENODEV);
}

/* Makes the queue's first work ready, and finishes those that have nothing to compute. */
static void queue_activate(struct fa_device *device, struct fa_device_queue *queue)
{
	while (!fa_list_empty(&queue->works)) {
		struct fa_device_work *work = fa_container_of(queue->works.next,
		                                              struct fa_device_work, link);
		struct fa_vk_work *vk = vk_work(work);

		if (vk->state != FA_VK_WORK_QUEUED)
			return;
		if (device->lost) {
			fail_lost(device, work);
		} else if (is_cancelled(work) || is_over(work)) {
			work_finish(device, work, is_over(work) ? 0 : -ECANCELED);
		} else {
			vk->state = FA_VK_WORK_READY;
			fa_fair_queue_add(&device->fair, &queue->group->fair, queue->class,
			                  &vk->ready_link);
			atomic_fetch_add(&device->n_came, 1);
			pthread_cond_signal(&device->work_available);
			return;
		}
	}
}

/* ---- the thread */

/* What a part has: the last dispatch may be cut. */
struct part {
	struct fa_device_work *work;
	uint32_t dispatch; /* or copy: where it ends */
	uint64_t group;
	double flops;
	struct fa_error error;
};

/* What runs before is seen by what follows: kernels and copies, also those of the next part, or the host. */
static void barrier(struct fa_device *device, VkPipelineStageFlags to, VkAccessFlags access)
{
	const VkMemoryBarrier memory = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
		.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
		.dstAccessMask = access,
	};

	device->driver.CmdPipelineBarrier(device->command,
	                                  VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT |
	                                          VK_PIPELINE_STAGE_TRANSFER_BIT,
	                                  to, 0, 1, &memory, 0, NULL, 0, NULL);
}

static void barrier_for_device(struct fa_device *device)
{
	barrier(device, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
	        VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
	                VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
}

/* Records copies from the work's place on. */
static void record_copies(struct fa_device *device, struct part *part)
{
	const struct fa_device_work *work = part->work;
	const struct fa_vk_pool *pool = &device->pool;
	const double most = device->flops_per_ns * (double)PART_NS;

	part->dispatch = vk_work(part->work)->dispatch;
	for (; part->dispatch < work->n_copies && part->flops < most; part->dispatch++) {
		const struct fa_device_copy *copy = &work->copies[part->dispatch];
		const struct fa_vk_import *data = copy->memory->backend;
		const uint64_t at = (uint64_t)(copy->pool - pool->base);
		const struct fa_vk_import *chunk = pool->imports[at / pool->chunk_bytes];
		const uint64_t of_data = (uint64_t)(uintptr_t)copy->data - data->at;
		const VkBufferCopy region = {
			.srcOffset = work->to_pool ? of_data : at % pool->chunk_bytes,
			.dstOffset = work->to_pool ? at % pool->chunk_bytes : of_data,
			.size = copy->bytes,
		};

		device->driver.CmdCopyBuffer(
			device->command, work->to_pool ? data->buffer : chunk->buffer,
			work->to_pool ? chunk->buffer : data->buffer, 1, &region);
		part->flops += (double)copy->bytes;
	}
}

/* Records workgroups from the work's place on: as many as PART_NS allows, but no fewer than the device runs
 * at once, as these take no longer than one. Without the mutex. */
static int record(struct fa_device *device, struct part *part)
{
	const struct fa_vk_prepared *prepared = part->work->prepared;
	const double most = device->flops_per_ns * (double)PART_NS;
	struct fa_vk_work *vk = vk_work(part->work);
	VkPipeline pipeline;
	int r;

	part->dispatch = vk->dispatch;
	part->group = vk->group;
	while (part->dispatch < prepared->n_dispatches && part->flops < most) {
		const struct fa_vulkan_dispatch *dispatch = &prepared->dispatches[part->dispatch];
		const double flops = dispatch->flops > FLOPS_MIN ? dispatch->flops : FLOPS_MIN;
		const double room = (most - part->flops) / flops;
		const uint64_t left = dispatch->groups - part->group;
		const double least = (double)device->groups_at_once;
		uint64_t n = room < least        ? device->groups_at_once
		             : room < GROUPS_MAX ? (uint64_t)room
		                                 : GROUPS_MAX;
		uint64_t constants[2] = { dispatch->arguments, part->group };

		n = n < left ? n : left;
		r = fa_vk_pipeline_find(device, dispatch, &part->error, &pipeline);
		if (r < 0)
			return r;
		if (part->flops > 0)
			barrier_for_device(device);
		device->driver.CmdBindPipeline(device->command, VK_PIPELINE_BIND_POINT_COMPUTE,
		                               pipeline);
		device->driver.CmdPushConstants(device->command, device->layout,
		                                VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(constants),
		                                constants);
		device->driver.CmdDispatch(device->command, (uint32_t)n, 1, 1);
		part->flops += (double)n * flops;
		part->group += n;
		if (part->group == dispatch->groups) {
			part->group = 0;
			part->dispatch++;
		}
	}
	return 0;
}

static VkResult wait_for_value(struct fa_device *device, uint64_t value, uint64_t ns)
{
	const VkSemaphoreWaitInfo wait = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
		.semaphoreCount = 1,
		.pSemaphores = &device->timeline,
		.pValues = &value,
	};

	return device->driver.WaitSemaphores(device->device, &wait, ns);
}

/* Waits until the slot's part has ended for the driver, too. To ask costs less than to wait. */
static VkResult wait_for_slot(struct fa_device *device, const struct fa_vk_slot *slot)
{
	VkResult result = VK_SUCCESS;

	if (device->is_gpu && slot->value > device->signalled)
		result = device->driver.GetSemaphoreCounterValue(device->device, device->timeline,
		                                                 &device->signalled);
	if (result == VK_SUCCESS && slot->value > device->signalled)
		result = wait_for_value(device, slot->value, HANG_NS);
	if (result == VK_SUCCESS && slot->value > device->signalled)
		device->signalled = slot->value;
	return result;
}

/*
 * Drivers take long to tell of a semaphore (NVIDIA's 40 us), so beside a GPU the last command of a part writes a
 * word, behind a barrier that makes results visible to the host. It is in coherent memory.
 */
static void record_end(struct fa_device *device)
{
	const uint32_t value = (uint32_t)(device->timeline_value + 1);

	barrier(device,
	        VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT |
	                VK_PIPELINE_STAGE_TRANSFER_BIT,
	        VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT | VK_ACCESS_SHADER_READ_BIT |
	                VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
	                VK_ACCESS_TRANSFER_WRITE_BIT);
	if (!device->end)
		return;
	device->driver.CmdUpdateBuffer(device->command, device->end->buffer, device->end->offset,
	                               sizeof(value), &value);
	barrier(device, VK_PIPELINE_STAGE_HOST_BIT,
	        VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT);
}

/* Waits for the end of the last submission, at most @ns. */
static VkResult wait_for_end(struct fa_device *device, uint64_t ns)
{
	const uint32_t value = (uint32_t)device->timeline_value;
	const uint64_t until_ns = fa_now_ns() + SPIN_NS;
	VkResult result = VK_TIMEOUT;

	while (device->end && result != VK_SUCCESS && fa_now_ns() < until_ns) {
		if (__atomic_load_n((uint32_t *)device->end->host, __ATOMIC_ACQUIRE) == value)
			result = VK_SUCCESS;
		else
			fa_cpu_relax();
	}
	if (result != VK_SUCCESS)
		result = wait_for_value(device, device->timeline_value, ns);
	if (result == VK_SUCCESS)
		atomic_store(&device->seen, device->timeline_value);
	return result;
}

static VkResult submit(struct fa_device *device)
{
	const VkTimelineSemaphoreSubmitInfo values = {
		.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
		.signalSemaphoreValueCount = 1,
		.pSignalSemaphoreValues = &device->timeline_value,
	};
	const VkSubmitInfo info = {
		.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
		.pNext = &values,
		.commandBufferCount = 1,
		.pCommandBuffers = &device->command,
		.signalSemaphoreCount = 1,
		.pSignalSemaphores = &device->timeline,
	};

	device->timeline_value++;
	return device->driver.QueueSubmit(device->queue, 1, &info, VK_NULL_HANDLE);
}

/* Records the part's commands in the slot, whose part before has ended. Without the mutex. */
static int record_part(struct fa_device *device, struct fa_vk_slot *slot, struct part *part)
{
	const VkCommandBufferBeginInfo begin = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
		.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
	};
	VkResult result;
	int r = 0;

	result = device->driver.ResetCommandPool(device->device, slot->commands, 0);
	if (result == VK_SUCCESS)
		result = device->driver.BeginCommandBuffer(slot->command, &begin);
	if (result != VK_SUCCESS)
		return fa_vk_fail(device, &part->error, result, "commands cannot be recorded");
	if (part->work->op == FA_DEVICE_COPY)
		record_copies(device, part);
	else
		r = record(device, part);
	if (r < 0)
		return r;
	record_end(device);
	result = device->driver.EndCommandBuffer(slot->command);
	if (result != VK_SUCCESS)
		return fa_vk_fail(device, &part->error, result, "commands cannot be recorded");
	return 0;
}

/* Runs a part to its end. Without the mutex. -ENODEV: the device is lost. */
static int run_part(struct fa_device *device, struct part *part, uint64_t *ret_ns)
{
	struct fa_vk_slot *slot = &device->slots[device->timeline_value % 2];
	uint64_t begin_ns;
	VkResult result;
	bool stopped;
	int r;

	result = wait_for_slot(device, slot);
	if (result != VK_SUCCESS)
		return fa_vk_fail(device, &part->error, result, "commands cannot be recorded");
	device->command = slot->command;
	r = record_part(device, slot, part);
	if (r < 0)
		return r;
	begin_ns = fa_now_ns();
	result = submit(device);
	slot->value = result == VK_SUCCESS ? device->timeline_value : slot->value;
	if (result == VK_SUCCESS)
		result = wait_for_end(device, device->hang_ns);
	stopped = result == VK_TIMEOUT && part->work->prepared;
	if (stopped) {
		/* A sequence may be too long for a workgroup; kernels that still run then leave. */
		stop_kernels(part->work);
		result = wait_for_end(device, HANG_NS);
	}
	*ret_ns = fa_now_ns() - begin_ns;
	if (stopped && result == VK_SUCCESS)
		return fa_fail(&part->error, -ETIME,
		               "a part of the request took more than %d s, as its sequences are "
		               "too long for this device",
		               (int)(device->hang_ns / FA_NS_PER_SEC));
	if (result == VK_TIMEOUT)
		return fa_fail(&part->error, -ENODEV,
		               "the Vulkan device has not finished a part of a request in %d s",
		               (int)(device->hang_ns / FA_NS_PER_SEC));
	return result == VK_SUCCESS
	               ? 0
	               : fa_vk_fail(device, &part->error, result, "the Vulkan device failed");
}

static void lose(struct fa_device *device, const struct fa_error *why)
{
	device->lost = true;
	device->lost_error = *why;
	device->config.notify(device->config.userdata);
}

/* Learns the device's speed, slowly. A small part that was fast says nothing. */
static void learn(struct fa_device *device, double flops, uint64_t ns)
{
	const double speed = device->flops_per_ns;
	double seen = flops / (double)(ns + 1);

	if (flops < speed * (double)PART_NS / 2 && ns < PART_NS)
		return;
	seen = seen > 2 * speed ? 2 * speed : seen;
	device->flops_per_ns = speed * 0.75 + seen * 0.25;
	if (device->flops_per_ns < FLOPS_PER_NS_MIN)
		device->flops_per_ns = FLOPS_PER_NS_MIN;
}

/* Runs a part of the next work. */
static void serve(struct fa_device *device)
{
	struct fa_vk_work *vk = fa_container_of(fa_fair_queue_next(&device->fair),
	                                        struct fa_vk_work, ready_link);
	struct fa_device_work *work = fa_container_of(vk, struct fa_device_work, backend);
	struct fa_device_queue *queue = work->queue;
	struct part part = { .work = work };
	uint64_t ns = 0;
	int r;

	fa_fair_queue_remove(&device->fair, &queue->group->fair, &vk->ready_link);
	vk->state = FA_VK_WORK_RUNNING;
	if (!work->started_ns)
		work->started_ns = fa_now_ns();
	pthread_mutex_unlock(&device->mutex);
	r = run_part(device, &part, &ns);
	if (r == 0)
		learn(device, part.flops, ns);
	pthread_mutex_lock(&device->mutex);

	fa_fair_queue_charge(&device->fair, &queue->group->fair, (int64_t)ns);
	if (r == -ENODEV)
		lose(device, &part.error);
	if (r < 0) {
		work->error = part.error;
		work_finish(device, work, r);
	} else if (is_cancelled(work)) {
		/* Its kernels may have left early. */
		work_finish(device, work, -ECANCELED);
	} else {
		vk->dispatch = part.dispatch;
		vk->group = part.group;
		if (is_over(work)) {
			work_finish(device, work, 0);
		} else {
			vk->state = FA_VK_WORK_READY;
			fa_fair_queue_add(&device->fair, &queue->group->fair, queue->class,
			                  &vk->ready_link);
		}
	}
	queue_activate(device, queue);
}

/* Waits for works. Waking up takes longer than a small request, so the thread spins first, beside a GPU. */
static void wait_for_works(struct fa_device *device)
{
	const unsigned int came = atomic_load(&device->n_came);
	uint64_t until_ns;

	if (device->is_gpu) {
		pthread_mutex_unlock(&device->mutex);
		until_ns = fa_now_ns() + SPIN_NS;
		while (atomic_load_explicit(&device->n_came, memory_order_relaxed) == came &&
		       fa_now_ns() < until_ns)
			fa_cpu_relax();
		pthread_mutex_lock(&device->mutex);
	}
	if (fa_fair_queue_empty(&device->fair) && !device->stop)
		pthread_cond_wait(&device->work_available, &device->mutex);
}

static void *run(void *userdata)
{
	struct fa_device *device = userdata;

	pthread_mutex_lock(&device->mutex);
	while (!device->stop) {
		if (fa_fair_queue_empty(&device->fair)) {
			wait_for_works(device);
		} else if (device->lost) {
			struct fa_vk_work *vk = fa_container_of(fa_fair_queue_next(&device->fair),
			                                        struct fa_vk_work, ready_link);
			struct fa_device_work *work = fa_container_of(vk, struct fa_device_work,
			                                              backend);
			struct fa_device_queue *queue = work->queue;

			fail_lost(device, work);
			queue_activate(device, queue);
		} else {
			serve(device);
		}
	}
	pthread_mutex_unlock(&device->mutex);
	return NULL;
}

static int start_thread(struct fa_device *device)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&device->thread, NULL, run, device);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		(void)pthread_setname_np(device->thread, "fad-vulkan");
	device->has_thread = r == 0;
	return r;
}

int fa_vk_queue_open(struct fa_device *device, struct fa_error *error)
{
	const VkSemaphoreTypeCreateInfo timeline = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
		.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
	};
	const VkSemaphoreCreateInfo semaphore = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
		.pNext = &timeline,
	};
	const VkCommandPoolCreateInfo pool = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
		.flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
		.queueFamilyIndex = device->family,
	};
	VkCommandBufferAllocateInfo command = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
		.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
		.commandBufferCount = 1,
	};
	VkResult result;
	int r;

	device->flops_per_ns = FLOPS_PER_NS_FIRST;
	device->hang_ns = HANG_NS;
	device->fair.slack = SLACK_NS;
	result = device->driver.CreateSemaphore(device->device, &semaphore, NULL,
	                                        &device->timeline);
	for (int i = 0; i < 2 && result == VK_SUCCESS; i++) {
		result = device->driver.CreateCommandPool(device->device, &pool, NULL,
		                                          &device->slots[i].commands);
		command.commandPool = device->slots[i].commands;
		if (result == VK_SUCCESS)
			result = device->driver.AllocateCommandBuffers(device->device, &command,
			                                               &device->slots[i].command);
	}
	if (result != VK_SUCCESS)
		return fa_vk_fail(device, error, result, "a Vulkan queue cannot be used");
	if (device->is_gpu) {
		r = fa_vk_blob_new(device, FA_VK_MEMORY_HOST, sizeof(uint32_t), error,
		                   &device->end);
		if (r < 0)
			return r;
		memset(device->end->host, 0, sizeof(uint32_t));
	}
	r = start_thread(device);
	return r < 0 ? fa_fail(error, r, "a thread cannot be started: %s", strerrordesc_np(-r)) : 0;
}

/* Without the mutex. A lost device may still run, so what it uses stays until the process ends. */
void fa_vk_queue_close(struct fa_device *device)
{
	if (device->has_thread) {
		pthread_mutex_lock(&device->mutex);
		device->stop = true;
		pthread_cond_signal(&device->work_available);
		pthread_mutex_unlock(&device->mutex);
		pthread_join(device->thread, NULL);
	}
	if (device->lost)
		return;
	fa_vk_memory_settle(device);
	atomic_store(&device->seen, 0);
	device->end = fa_vk_blob_free(device, device->end);
	for (int i = 0; i < 2; i++)
		device->driver.DestroyCommandPool(device->device, device->slots[i].commands, NULL);
	device->driver.DestroySemaphore(device->device, device->timeline, NULL);
}

/* ---- the engine's interface: without the mutex */

int fa_vk_group_new(struct fa_device *device, struct fa_error *error,
                    struct fa_device_group **ret_group)
{
	struct fa_device_group *group;

	group = fa_new(struct fa_device_group);
	if (!group)
		return fa_fail(error, -ENOMEM, "no memory for a group of queues");
	fa_fair_queue_group_init(&group->fair);
	*ret_group = group;
	return 0;
}

struct fa_device_group *fa_vk_group_free(struct fa_device *device, struct fa_device_group *group)
{
	free(group);
	return NULL;
}

int fa_vk_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
                    struct fa_error *error, struct fa_device_queue **ret_queue)
{
	struct fa_device_queue *queue;

	queue = fa_new(struct fa_device_queue);
	if (!queue)
		return fa_fail(error, -ENOMEM, "no memory for a queue");
	queue->group = group;
	queue->class = fa_fair_queue_class(priority);
	fa_list_init(&queue->works);
	*ret_queue = queue;
	return 0;
}

struct fa_device_queue *fa_vk_queue_free(struct fa_device *device, struct fa_device_queue *queue)
{
	free(queue);
	return NULL;
}

int fa_vk_launch(struct fa_device *device, struct fa_device_queue *queue,
                 struct fa_device_work *work)
{
	struct fa_vk_work *vk = vk_work(work);

	work->queue = queue;
	work->status = 0;
	work->started_ns = work->finished_ns = 0;
	atomic_store_explicit(&work->cancelled, false, memory_order_relaxed);
	*vk = (struct fa_vk_work){ .state = FA_VK_WORK_QUEUED };
	fa_list_init(&vk->ready_link);

	pthread_mutex_lock(&device->mutex);
	fa_list_append(&queue->works, &work->link);
	queue_activate(device, queue);
	pthread_mutex_unlock(&device->mutex);
	return 0;
}

void fa_vk_cancel(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_device_queue *queue = work->queue;
	struct fa_vk_work *vk = vk_work(work);

	pthread_mutex_lock(&device->mutex);
	if (vk->state != FA_VK_WORK_FINISHED) {
		atomic_store_explicit(&work->cancelled, true, memory_order_relaxed);
		stop_kernels(work);
		/* The thread finishes what the device runs. */
		if (vk->state != FA_VK_WORK_RUNNING)
			work_finish(device, work, -ECANCELED);
		queue_activate(device, queue);
	}
	pthread_mutex_unlock(&device->mutex);
}

void fa_vk_reap(struct fa_device *device, struct fa_list *done)
{
	/* The engine polls, and must not keep the thread from the mutex. */
	if (!atomic_load_explicit(&device->has_done, memory_order_acquire))
		return;
	pthread_mutex_lock(&device->mutex);
	fa_list_splice(done, &device->done);
	atomic_store_explicit(&device->has_done, false, memory_order_relaxed);
	pthread_mutex_unlock(&device->mutex);
}

int fa_vk_health(struct fa_device *device, struct fa_error *error)
{
	int r;

	/* The engine polls, and must not keep the thread from the mutex. */
	if (!device->lost)
		return 0;
	pthread_mutex_lock(&device->mutex);
	r = fa_fail(error, -ENODEV, "%s", device->lost_error.text);
	pthread_mutex_unlock(&device->mutex);
	return r;
}

bool fa_vk_is_lost(struct fa_device *device)
{
	return device->lost;
}
