#include "daemon/buffer.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

/* Imports that run at once: mapping contends with the kernels' page faults. */
#define RUNNING_MAX 2

/* Mappings kept for connections, threads and libraries. */
#define MAPS_RESERVED 8192
#define MAPS_DEFAULT 65530

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static void start_waiting(struct fa_importer *importer);
static void start_release(struct fa_importer *importer);

static uint64_t read_maps_max(void)
{
	uint64_t maps = 0;
	FILE *file;

	file = fopen("/proc/sys/vm/max_map_count", "re");
	if (file) {
		if (fscanf(file, "%" SCNu64, &maps) != 1)
			maps = 0;
		fclose(file);
	}
	return maps ? maps : MAPS_DEFAULT;
}

void fa_importer_init(struct fa_importer *importer, uv_loop_t *loop,
                      const struct fa_device_ops *ops, struct fa_device *device,
                      struct fa_closer *closer, void (*done)(struct fa_buffer *buffer),
                      void (*released)(struct fa_importer *importer))
{
	uint64_t maps = read_maps_max();

	*importer = (struct fa_importer){
		.loop = loop,
		.ops = ops,
		.device = device,
		.closer = closer,
		.done = done,
		.released = released,
		.buffers_max = maps > 2 * MAPS_RESERVED ? maps - MAPS_RESERVED : maps / 2,
	};
	fa_list_init(&importer->waiting);
	fa_list_init(&importer->unreferenced);
	fa_list_init(&importer->releasing);
}

bool fa_importer_is_idle(const struct fa_importer *importer)
{
	return !importer->n_buffers && !importer->release_running;
}

int fa_buffer_new(struct fa_importer *importer, struct fa_error *error,
                  struct fa_buffer **ret_buffer)
{
	struct fa_buffer *buffer;

	if (importer->n_buffers >= importer->buffers_max)
		return fa_fail(error, -EDQUOT,
		               "the daemon has as many buffers as it can map, which is %" PRIu64,
		               importer->buffers_max);
	buffer = fa_new(struct fa_buffer);
	if (!buffer)
		return -ENOMEM;
	buffer->n_refs = 1;
	buffer->importer = importer;
	buffer->fd = -1;
	fa_list_init(&buffer->link);
	++importer->n_buffers;
	*ret_buffer = buffer;
	return 0;
}

struct fa_buffer *fa_buffer_ref(struct fa_buffer *buffer)
{
	++buffer->n_refs;
	return buffer;
}

static void destroy(struct fa_buffer *buffer)
{
	if (buffer->fd >= 0)
		fa_closer_take_charged(buffer->importer->closer, buffer->charge_fd.tenant,
		                       buffer->fd, &buffer->charge_fd);
	fa_charge_release(&buffer->charge_fd);
	fa_charge_release(&buffer->charge_bytes);
	fa_charge_release(&buffer->charge_count);
	--buffer->importer->n_buffers;
	free(buffer);
}

struct fa_buffer *fa_buffer_unref(struct fa_buffer *buffer)
{
	if (!buffer || --buffer->n_refs)
		return NULL;
	if (buffer->memory.address) {
		fa_list_append(&buffer->importer->unreferenced, &buffer->link);
		start_release(buffer->importer);
	} else {
		destroy(buffer);
	}
	return NULL;
}

/* ---- releasing: one job at a time takes all there is */

static void release_work(uv_work_t *work)
{
	struct fa_importer *importer = work->data;
	struct fa_list *pos;

	fa_list_for_each(pos, &importer->releasing) {
		struct fa_buffer *buffer = fa_container_of(pos, struct fa_buffer, link);

		importer->ops->memory_release(importer->device, &buffer->memory);
	}
}

static void release_done(uv_work_t *work, int status)
{
	struct fa_importer *importer = work->data;
	struct fa_list *pos, *tmp;

	fa_list_for_each_safe(pos, tmp, &importer->releasing) {
		fa_list_remove(pos);
		destroy(fa_container_of(pos, struct fa_buffer, link));
	}
	importer->release_running = false;
	start_release(importer);
	importer->released(importer);
}

static void start_release(struct fa_importer *importer)
{
	if (importer->release_running || fa_list_empty(&importer->unreferenced))
		return;
	fa_list_splice(&importer->releasing, &importer->unreferenced);
	importer->release_running = true;
	importer->release.data = importer;
	(void)uv_queue_work(importer->loop, &importer->release, release_work, release_done);
}

/* ---- importing */

static int import_host(struct fa_importer *importer, struct fa_buffer *buffer)
{
	uint64_t size;
	int seals, r;

	r = fa_memfd_check(buffer->fd, buffer->offset, buffer->bytes, &buffer->error, &size,
	                   &seals);
	if (r < 0)
		return r;
	if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) && !buffer->read_only)
		return fa_fail(&buffer->error, -EINVAL,
		               "the memfd is sealed against writing; expected the flag READ_ONLY");
	return importer->ops->memory_import_host(importer->device, buffer->fd, buffer->offset,
	                                         buffer->bytes, buffer->read_only, &buffer->error,
	                                         &buffer->memory);
}

static void import_work(uv_work_t *work)
{
	struct fa_buffer *buffer = work->data;
	struct fa_importer *importer = buffer->importer;

	if (fa_now_ns() > buffer->deadline_ns)
		buffer->status = fa_fail(&buffer->error, -ETIMEDOUT,
		                         "the time given to the request is over");
	else if (buffer->arena)
		buffer->status = importer->ops->memory_new_arena(importer->device, buffer->bytes,
		                                                 &buffer->error, &buffer->memory,
		                                                 &buffer->fd, &buffer->piece_bytes);
	else
		buffer->status = import_host(importer, buffer);
	if (buffer->status < 0) {
		buffer->memory = (struct fa_device_memory){};
		return;
	}
	if (buffer->read_only)
		buffer->memory.writable = false;
	/* What was mapped is a file in memory, whose end nobody has to wait for. */
	if (!buffer->arena)
		fa_close_fdp(&buffer->fd);
}

static void import_done(uv_work_t *work, int status)
{
	struct fa_buffer *buffer = work->data;
	struct fa_importer *importer = buffer->importer;

	if (buffer->fd < 0)
		fa_charge_release(&buffer->charge_fd);
	--importer->n_running;
	start_waiting(importer);
	importer->done(buffer);
}

static void start_waiting(struct fa_importer *importer)
{
	while (importer->n_running < RUNNING_MAX && !fa_list_empty(&importer->waiting)) {
		struct fa_buffer *buffer = fa_container_of(importer->waiting.next, struct fa_buffer,
		                                           link);

		fa_list_remove(&buffer->link);
		++importer->n_running;
		buffer->work.data = buffer;
		(void)uv_queue_work(importer->loop, &buffer->work, import_work, import_done);
	}
}

void fa_importer_start(struct fa_importer *importer, struct fa_buffer *buffer)
{
	fa_list_append(&importer->waiting, &buffer->link);
	start_waiting(importer);
}
