#include "daemon/memory/importer.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUNNING_MAX 2

#define RELEASE_BATCH 64

/* Mappings left to connections, threads and libraries. */
#define MAPS_RESERVED 8192
#define MAPS_DEFAULT 65530 /* if vm.max_map_count is unreadable */

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
                      struct fa_fd_reaper *reaper,
                      void (*done)(struct fa_registered_buffer *buffer),
                      void (*released)(struct fa_importer *importer))
{
	uint64_t maps = read_maps_max();

	*importer = (struct fa_importer){
		.loop = loop,
		.ops = ops,
		.device = device,
		.reaper = reaper,
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

/* ---- releasing: one job at a time, with all buffers */

static void release_work(uv_work_t *work)
{
	struct fa_importer *importer = work->data;
	struct fa_device_memory *memories[RELEASE_BATCH];
	struct fa_list *pos;
	size_t n = 0;

	fa_list_for_each(pos, &importer->releasing) {
		memories[n++] = &fa_container_of(pos, struct fa_registered_buffer, link)->memory;
		if (n == RELEASE_BATCH || pos->next == &importer->releasing) {
			importer->ops->memory_release(importer->device, memories, n);
			n = 0;
		}
	}
}

static void release_done(uv_work_t *work, int status)
{
	struct fa_importer *importer = work->data;
	struct fa_list *pos, *tmp;

	fa_list_for_each_safe(pos, tmp, &importer->releasing) {
		fa_list_remove(pos);
		fa_registered_buffer_destroy(
			fa_container_of(pos, struct fa_registered_buffer, link));
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

void fa_importer_release(struct fa_importer *importer, struct fa_registered_buffer *buffer)
{
	fa_list_append(&importer->unreferenced, &buffer->link);
	start_release(importer);
}

/* ---- importing */

static int import_host(struct fa_importer *importer, struct fa_registered_buffer *buffer)
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

static int import_ipc(struct fa_importer *importer, struct fa_registered_buffer *buffer)
{
	struct fa_error error;
	int r;

	r = importer->ops->memory_import_ipc(importer->device, buffer->handle, buffer->offset,
	                                     buffer->bytes, buffer->read_only, &error,
	                                     &buffer->memory);
	if (r == 0)
		return 0;
	/* CUDA takes the handle for this process's own if the client has the same pid in its
	 * namespace. */
	if (buffer->pid == (uint32_t)getpid())
		return fa_fail(&buffer->error, r,
		               "client and daemon have the same process id, %d, in two PID "
		               "namespaces, which CUDA IPC cannot tell apart; expected another id, "
		               "or memory made by cuMemCreate with POSIX descriptors (%.60s)",
		               (int)getpid(), error.text);
	buffer->error = error;
	return r;
}

static int import(struct fa_importer *importer, struct fa_registered_buffer *buffer)
{
	if (buffer->mapped)
		return importer->ops->memory_import_mapped(importer->device, buffer->mapped,
		                                           buffer->bytes, &buffer->error,
		                                           &buffer->memory);
	if (fa_now_ns() > buffer->deadline_ns)
		return fa_fail(&buffer->error, -ETIMEDOUT, "the time given to the request is over");
	switch (buffer->kind) {
	case FA_WIRE_BUFFER_ARENA:
		return importer->ops->memory_new_arena(importer->device, buffer->bytes,
		                                       &buffer->error, &buffer->memory, &buffer->fd,
		                                       &buffer->piece_bytes);
	case FA_WIRE_BUFFER_CUDA_IPC:
		return import_ipc(importer, buffer);
	case FA_WIRE_BUFFER_CUDA_FD:
		return importer->ops->memory_import_pieces(
			importer->device, buffer->pieces, buffer->n_pieces, buffer->offset,
			buffer->bytes, buffer->read_only, &buffer->error, &buffer->memory);
	case FA_WIRE_BUFFER_HOST_FD:
	default:
		return import_host(importer, buffer);
	}
}

static void identify(struct fa_registered_buffer *buffer)
{
	struct stat info;

	if (buffer->mapped || buffer->fd < 0 || buffer->piece_bytes || fstat(buffer->fd, &info) < 0)
		return;
	buffer->memory.file_system = info.st_dev;
	buffer->memory.inode = info.st_ino;
	buffer->memory.file_offset = buffer->offset;
}

static void import_work(uv_work_t *work)
{
	struct fa_registered_buffer *buffer = work->data;

	buffer->status = import(buffer->importer, buffer);
	if (buffer->status < 0)
		return;
	identify(buffer);
	if (buffer->read_only)
		buffer->memory.writable = false;
	/* It was checked to be a memfd: closing does not block. */
	if (buffer->kind == FA_WIRE_BUFFER_HOST_FD && !buffer->mapped)
		fa_close_fdp(&buffer->fd);
}

static void import_done(uv_work_t *work, int status)
{
	struct fa_registered_buffer *buffer = work->data;
	struct fa_importer *importer = buffer->importer;

	/* An arena's descriptor goes into the answer. */
	if (buffer->kind != FA_WIRE_BUFFER_ARENA || buffer->fd < 0)
		fa_registered_buffer_close_fds(buffer);
	--importer->n_running;
	start_waiting(importer);
	if (buffer->imported)
		buffer->imported(buffer);
	else
		importer->done(buffer);
}

static void start_waiting(struct fa_importer *importer)
{
	while (importer->n_running < RUNNING_MAX && !fa_list_empty(&importer->waiting)) {
		struct fa_registered_buffer *buffer = fa_container_of(
			importer->waiting.next, struct fa_registered_buffer, link);

		fa_list_remove(&buffer->link);
		++importer->n_running;
		buffer->work.data = buffer;
		(void)uv_queue_work(importer->loop, &buffer->work, import_work, import_done);
	}
}

void fa_importer_start(struct fa_importer *importer, struct fa_registered_buffer *buffer)
{
	fa_list_append(&importer->waiting, &buffer->link);
	start_waiting(importer);
}

bool fa_importer_withdraw(struct fa_registered_buffer *buffer)
{
	/* A running job is in no list. */
	if (fa_list_empty(&buffer->link))
		return false;
	fa_list_remove(&buffer->link);
	return true;
}
