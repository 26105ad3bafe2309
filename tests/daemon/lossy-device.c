/* The CPU backend, but it can be lost like a GPU after a fault: a request with scale LOSE fails all
 * works in flight, one with scale HANG makes them never return. Linked in place of
 * daemon/backend/device.c, so that the daemon has no other backend. */
#include "lossy-device.h"

#include "common/cleanup.h"
#include "daemon/backend/device.h"

#include <errno.h>
#include <stdlib.h>

struct fa_device {
	struct fa_device *cpu;
	struct fa_device_config config;
	struct fa_list ended; /* to be reaped with -ENODEV */
	bool lost, hangs;
};

/* All but open, check and memory is the engine thread's. */

static int lossy_open(const struct fa_device_config *config, struct fa_error *error,
                      struct fa_device **ret_device)
{
	struct fa_device *device = fa_new(struct fa_device);
	int r;

	if (!device)
		return fa_fail(error, -ENOMEM, "no memory for a device");
	device->config = *config;
	fa_list_init(&device->ended);
	r = fa_device_cpu.open(config, error, &device->cpu);
	if (r < 0)
		free(device);
	else
		*ret_device = device;
	return r;
}

static struct fa_device *lossy_close(struct fa_device *device)
{
	if (device)
		fa_device_cpu.close(device->cpu);
	free(device);
	return NULL;
}

static void lossy_describe(struct fa_device *device, struct fa_device_info *ret_info)
{
	fa_device_cpu.describe(device->cpu, ret_info);
}

static int lossy_memory_import_host(struct fa_device *device, int fd, uint64_t offset,
                                    uint64_t bytes, bool read_only, struct fa_error *error,
                                    struct fa_device_memory *ret_memory)
{
	return fa_device_cpu.memory_import_host(device->cpu, fd, offset, bytes, read_only, error,
	                                        ret_memory);
}

static int lossy_memory_new_arena(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                                  struct fa_device_memory *ret_memory, int *ret_fd,
                                  uint64_t *ret_piece_bytes)
{
	return fa_device_cpu.memory_new_arena(device->cpu, bytes, error, ret_memory, ret_fd,
	                                      ret_piece_bytes);
}

static void lossy_memory_release(struct fa_device *device, struct fa_device_memory *const *memories,
                                 size_t n)
{
	fa_device_cpu.memory_release(device->cpu, memories, n);
}

static int lossy_check(struct fa_device *device, const struct fa_attention_params *params,
                       struct fa_error *error)
{
	return fa_device_cpu.check(device->cpu, params, error);
}

static int lossy_attention_prepare(struct fa_device *device, struct fa_device_work *work,
                                   struct fa_error *error)
{
	return fa_device_cpu.attention_prepare(device->cpu, work, error);
}

static void lossy_attention_release(struct fa_device *device, struct fa_device_work *work)
{
	fa_device_cpu.attention_release(device->cpu, work);
}

static int lossy_group_new(struct fa_device *device, struct fa_error *error,
                           struct fa_device_group **ret_group)
{
	return fa_device_cpu.group_new(device->cpu, error, ret_group);
}

static struct fa_device_group *lossy_group_free(struct fa_device *device,
                                                struct fa_device_group *group)
{
	return fa_device_cpu.group_free(device->cpu, group);
}

static int lossy_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
                           struct fa_error *error, struct fa_device_queue **ret_queue)
{
	return fa_device_cpu.queue_new(device->cpu, group, priority, error, ret_queue);
}

static struct fa_device_queue *lossy_queue_free(struct fa_device *device,
                                                struct fa_device_queue *queue)
{
	return fa_device_cpu.queue_free(device->cpu, queue);
}

static int lossy_launch(struct fa_device *device, struct fa_device_queue *queue,
                        struct fa_device_work *work)
{
	if (work->params->scale == FA_LOSSY_LOSE || work->params->scale == FA_LOSSY_HANG) {
		device->lost = true;
		device->hangs = work->params->scale == FA_LOSSY_HANG;
	}
	if (!device->lost)
		return fa_device_cpu.launch(device->cpu, queue, work);
	work->started_ns = work->finished_ns = 0;
	work->queue = NULL; /* unknown to the CPU backend */
	fa_list_append(&device->ended, &work->link);
	device->config.notify(device->config.userdata);
	return 0;
}

static void lossy_cancel(struct fa_device *device, struct fa_device_work *work)
{
	if (work->queue)
		fa_device_cpu.cancel(device->cpu, work);
}

static void lossy_reap(struct fa_device *device, struct fa_list *done)
{
	struct fa_list works = FA_LIST_INIT(works);
	struct fa_list *pos;

	if (device->hangs)
		return;
	fa_device_cpu.reap(device->cpu, &works);
	fa_list_splice(&works, &device->ended);
	if (device->lost)
		fa_list_for_each(pos, &works) {
			struct fa_device_work *work = fa_container_of(pos, struct fa_device_work,
			                                              link);

			work->status = fa_fail(&work->error, -ENODEV, "it was running then");
		}
	fa_list_splice(done, &works);
}

static int lossy_health(struct fa_device *device, struct fa_error *error)
{
	return device->lost ? fa_fail(error, -ENODEV, "somebody pulled the plug") : 0;
}

static const struct fa_device_ops lossy = {
	.name = "cpu",
	.open = lossy_open,
	.close = lossy_close,
	.describe = lossy_describe,
	.memory_import_host = lossy_memory_import_host,
	.memory_new_arena = lossy_memory_new_arena,
	.memory_release = lossy_memory_release,
	.check = lossy_check,
	.attention_prepare = lossy_attention_prepare,
	.attention_release = lossy_attention_release,
	.group_new = lossy_group_new,
	.group_free = lossy_group_free,
	.queue_new = lossy_queue_new,
	.queue_free = lossy_queue_free,
	.launch = lossy_launch,
	.cancel = lossy_cancel,
	.reap = lossy_reap,
	.health = lossy_health,
};

const struct fa_device_ops *const fa_device_backends[] = { &lossy, NULL };

int fa_device_open(const char *name, const struct fa_device_config *config, struct fa_error *error,
                   const struct fa_device_ops **ret_ops, struct fa_device **ret_device)
{
	error->text[0] = 0; /* no backend was passed over */
	*ret_ops = &lossy;
	return lossy.open(config, error, ret_device);
}
