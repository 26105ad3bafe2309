/*
 * A buffer keeps the descriptor of its memory, to register it with a new daemon.
 */
#include "client/buffer_handle.h"
#include "client/call.h"
#include "client/cancel.h"
#include "client/cuda_cache.h"
#include "client/cuda_memory.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/reconnect.h"
#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define FLAGS_NEW (FA_BUFFER_DEVICE | FA_BUFFER_READ_ONLY)

static void releasep(struct fa_buffer **buffer)
{
	if (*buffer)
		fa_buffer_release(*buffer);
}

static int buffer_new(struct fa_client *client, uint64_t offset, uint64_t bytes, uint32_t flags,
                      struct fa_buffer **ret_buffer)
{
	_fa_cleanup_(releasep) struct fa_buffer *buffer = NULL;
	uint32_t wire_flags = flags & FA_BUFFER_READ_ONLY ? FA_WIRE_BUFFER_READ_ONLY : 0;
	int r;

	r = fa_buffer_alloc(client, bytes, &buffer);
	if (r < 0)
		return r;
	buffer->registration = fa_registration_new(
		flags & FA_BUFFER_DEVICE ? FA_WIRE_BUFFER_ARENA : FA_WIRE_BUFFER_HOST_FD,
		wire_flags, offset, bytes);
	if (!buffer->registration)
		return fa_error_set(-ENOMEM, "no memory for a buffer");
	*ret_buffer = fa_steal_ptr(buffer);
	return 0;
}

/* ---- mapping */

static int map_host(struct fa_buffer *buffer, int protection)
{
	const struct fa_client_registration *registration = buffer->registration;
	void *data = mmap(NULL, buffer->bytes, protection, MAP_SHARED, registration->fd,
	                  (off_t)registration->offset);

	if (data == MAP_FAILED)
		return fa_error_set(-errno, "cannot map a buffer of %llu bytes: %m",
		                    (unsigned long long)buffer->bytes);
	buffer->data = data;
	return 0;
}

static int map_device(struct fa_buffer *buffer, uint64_t piece_bytes, const uint64_t uuid[2])
{
	struct fa_client_registration *registration = buffer->registration;
	_fa_cleanup_(fa_freep) struct fa_cuda_mapping *mapping = NULL;
	const struct fa_cudriver *driver;
	struct fa_error error;
	int r;

	if (piece_bytes < buffer->bytes)
		return fa_error_set(-EPROTO, "the daemon's memory has %llu bytes; expected %llu",
		                    (unsigned long long)piece_bytes,
		                    (unsigned long long)buffer->bytes);
	r = fa_cuda_open(&error, &driver);
	if (r < 0)
		return fa_error_copy(r, &error);
	mapping = fa_new(struct fa_cuda_mapping);
	if (!mapping)
		return fa_error_set(-ENOMEM, "no memory for a buffer");
	r = fa_cuda_map(driver, registration->fd, piece_bytes, uuid, &error, mapping);
	if (r < 0)
		return fa_error_copy(r, &error);
	registration->piece_bytes = piece_bytes;
	memcpy(registration->uuid, uuid, sizeof(registration->uuid));
	buffer->device_data = mapping->at;
	buffer->mapping = fa_steal_ptr(mapping);
	return 0;
}

static int take_daemon_memory(struct fa_buffer *buffer, struct fa_client_call *call,
                              const uint64_t uuid[2])
{
	struct fa_client_registration *registration = buffer->registration;
	struct fa_error why;
	uint64_t size;
	int r, seals;

	registration->fd = fa_steal_fd(&call->fd);
	if (call->piece_bytes) {
		registration->kind = FA_WIRE_BUFFER_CUDA_FD;
		return map_device(buffer, call->piece_bytes, uuid);
	}
	registration->kind = FA_WIRE_BUFFER_HOST_FD;
	r = fa_memfd_check(registration->fd, 0, buffer->bytes, &why, &size, &seals);
	if (r < 0)
		return fa_error_set(-EPROTO, "the daemon's memory is unusable: %.180s", why.text);
	return map_host(buffer, PROT_READ | PROT_WRITE);
}

/* ---- registering */

static int buffer_register(struct fa_client *client, struct fa_buffer *buffer)
{
	struct fa_client_registration *registration = buffer->registration;
	bool arena = registration->kind == FA_WIRE_BUFFER_ARENA;
	struct fa_client_call call = { .expect = FA_WIRE_BUFFER_REPLY, .expect_fds = arena };
	struct fa_wire_message message;
	uint64_t uuid[2];
	int r;

	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	fa_registration_assign_id(client, registration);
	fa_registration_message(registration, &message);
	r = fa_call_run(client, &message, &registration->fd, arena ? 0 : 1, true, &call);
	if (r >= 0 && arena) {
		memcpy(uuid, client->connection.device_uuid, sizeof(uuid));
		fa_client_leave(client);
		r = take_daemon_memory(buffer, &call, uuid);
		pthread_mutex_lock(&client->lock);
		if (r < 0 && call.epoch == client->epoch)
			fa_registration_unregister(client, registration);
	}
	fa_close_fdp(&call.fd);
	/* Only a connecting thread may change the lists, and its daemon lacks this buffer. */
	fa_client_await_connecting(client);
	if (r >= 0 && call.epoch != client->epoch)
		r = fa_client_lost_error(client);
	if (r >= 0) {
		fa_list_append(&client->registrations, &registration->link);
		fa_list_append(&client->buffers, &buffer->link);
	}
	fa_client_leave(client);
	return r;
}

int fa_buffer_new(struct fa_client *handle, uint64_t bytes, uint32_t flags,
                  struct fa_buffer **ret_buffer)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	_fa_cleanup_(releasep) struct fa_buffer *buffer = NULL;
	char why[FA_MEMFD_EXPLAIN_BYTES];
	int r;

	if (!ret_buffer)
		return fa_error_set(-EINVAL, "ret_buffer is NULL");
	if (flags & ~FLAGS_NEW)
		return fa_error_set(-EINVAL, "fa_buffer_new: flags has unknown bits: 0x%x", flags);
	r = buffer_new(client, 0, bytes, flags, &buffer);
	if (r < 0)
		return r;
	if (!(flags & FA_BUFFER_DEVICE)) {
		r = fa_memfd_new("fad-buffer", bytes, 1, &buffer->registration->fd);
		if (r < 0)
			return fa_error_set(r, "cannot make a memfd of %llu bytes: %s",
			                    (unsigned long long)bytes,
			                    fa_memfd_explain(r, why, sizeof(why)));
		r = map_host(buffer, PROT_READ | PROT_WRITE);
		if (r < 0)
			return r;
	}
	r = buffer_register(client, buffer);
	if (r < 0)
		return r;
	*ret_buffer = fa_steal_ptr(buffer)->handle;
	return 0;
}

int fa_buffer_import_fd(struct fa_client *handle, int fd, uint64_t offset, uint64_t bytes,
                        uint32_t flags, struct fa_buffer **ret_buffer)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	_fa_cleanup_(releasep) struct fa_buffer *buffer = NULL;
	struct fa_error error;
	bool writable;
	uint64_t size;
	struct stat info;
	int r, seals;

	if (!ret_buffer)
		return fa_error_set(-EINVAL, "ret_buffer is NULL");
	if (flags & ~FA_BUFFER_READ_ONLY)
		return fa_error_set(-EINVAL, "fa_buffer_import_fd: flags has unknown bits: 0x%x",
		                    flags);
	r = fa_memfd_check(fd, offset, bytes, &error, &size, &seals);
	if (r < 0)
		return fa_error_copy(r, &error);
	writable = !(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) &&
	           (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
	if (!writable && !(flags & FA_BUFFER_READ_ONLY))
		return fa_error_set(-EINVAL, "the memfd cannot be written; FA_BUFFER_READ_ONLY is "
		                             "needed for it");
	r = buffer_new(client, offset, bytes, flags, &buffer);
	if (r < 0)
		return r;
	buffer->registration->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (buffer->registration->fd < 0)
		return fa_error_set(-errno, "cannot duplicate the descriptor: %m");
	if (fstat(buffer->registration->fd, &info) == 0) {
		buffer->registration->file_system = info.st_dev;
		buffer->registration->inode = info.st_ino;
	}
	r = map_host(buffer, PROT_READ | (writable ? PROT_WRITE : 0));
	if (r < 0)
		return r;
	r = buffer_register(client, buffer);
	if (r < 0)
		return r;
	*ret_buffer = fa_steal_ptr(buffer)->handle;
	return 0;
}

/* ---- freeing */

struct fa_buffer *fa_buffer_free(struct fa_buffer *handle)
{
	fa_uncancelled();
	struct fa_buffer *buffer = fa_handle_take(FA_HANDLE_BUFFER, handle);
	struct fa_client *client;

	if (!buffer)
		return NULL;
	client = buffer->client;
	/* In a child of fork() the lists may be inconsistent: fa_disconnect() must not find this
	 * buffer there. */
	if (fa_client_forked(client)) {
		if (!pthread_mutex_trylock(&client->lock)) {
			fa_list_remove(&buffer->link);
			if (!buffer->registration->cuda)
				fa_list_remove(&buffer->registration->link);
			pthread_mutex_unlock(&client->lock);
			fa_buffer_release(buffer);
		}
		return NULL;
	}

	if (buffer->registration->cuda) {
		fa_cuda_cache_put(client, buffer);
	} else {
		(void)fa_client_enter(client);
		fa_client_await_connecting(client);
		fa_list_remove(&buffer->link);
		fa_list_remove(&buffer->registration->link);
		fa_registration_unregister(client, buffer->registration);
		fa_client_leave(client);
	}
	fa_buffer_release(buffer);
	return NULL;
}
