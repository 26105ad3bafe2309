/*
 * Registrations of the program's CUDA memory: whole allocations, found by address and buffer id,
 * some without a buffer. Each import and free unregisters unused allocations that the program has
 * freed: the GPU gets them back only then. client->import_lock is held throughout; the driver is
 * called without the client's mutex. Functions that change the lists hold the mutex, while no
 * thread is connecting.
 */
#include "client/cuda_cache.h"

#include "client/buffer_handle.h"
#include "client/call.h"
#include "client/cancel.h"
#include "client/cuda_memory.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/reconnect.h"
#include "client/waiter.h"
#include "common/cleanup.h"

#include "common/packet.h"

#include <errno.h>
#include <string.h>

/* Each import checks all unused allocations. */
#define UNUSED_MAX 256
#define UNUSED_PIECES_MAX 4096

/* BufferPieces messages in flight: the kernel bounds descriptors in sockets. */
#define PIECES_DEPTH 8

static struct fa_client_registration *registration_of(struct fa_list *link)
{
	return fa_container_of(link, struct fa_client_registration, link);
}

/* ---- dropping registrations */

/* Drops it here and in the daemon. */
static void drop(struct fa_client *client, struct fa_client_registration *registration)
{
	fa_list_remove(&registration->link);
	fa_registration_unregister(client, registration);
	/* The connecting thread reads the lists. */
	fa_client_await_connecting(client);
	fa_registration_free(registration);
}

static void drop_unused(struct fa_client *client)
{
	while (!fa_list_empty(&client->cuda_unused))
		drop(client, registration_of(client->cuda_unused.next));
}

static void bound_unused(struct fa_client *client)
{
	size_t n = 0, n_pieces = 0;
	struct fa_list *pos;

	fa_list_for_each(pos, &client->cuda_unused) {
		++n;
		n_pieces += registration_of(pos)->cuda->n_pieces;
	}
	while (n > UNUSED_MAX || n_pieces > UNUSED_PIECES_MAX) {
		struct fa_client_registration *oldest = registration_of(client->cuda_unused.next);

		--n;
		n_pieces -= oldest->cuda->n_pieces;
		drop(client, oldest);
	}
}

/* Called without the mutex. */
static void mark_freed(struct fa_client *client, const struct fa_cudriver *driver)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &client->cuda_unused) {
		struct fa_client_registration *registration = registration_of(pos);

		registration->freed = !fa_cuda_is_alive(driver, registration->cuda);
	}
}

/* Drops registrations of freed memory, and those that the daemon lacks. */
static void drop_freed(struct fa_client *client)
{
	struct fa_list *pos, *tmp;

	fa_list_for_each_safe(pos, tmp, &client->cuda_unused) {
		struct fa_client_registration *registration = registration_of(pos);

		if (registration->freed || registration->missing)
			drop(client, registration);
	}
}

void fa_cuda_cache_put(struct fa_client *client, struct fa_buffer *buffer)
{
	struct fa_client_registration *registration = fa_steal_ptr(buffer->registration);
	const struct fa_cudriver *driver;
	struct fa_error error;

	pthread_mutex_lock(&client->import_lock);
	if (fa_cuda_open(&error, &driver) == 0)
		mark_freed(client, driver);
	(void)fa_client_enter(client);
	fa_client_await_connecting(client);
	drop_freed(client);
	fa_list_remove(&buffer->link);
	if (!--registration->n_buffers) {
		fa_list_remove(&registration->link);
		if (registration->cuda->has_ids && !registration->missing) {
			fa_list_append(&client->cuda_unused, &registration->link);
			bound_unused(client);
		} else {
			drop(client, registration);
		}
	}
	fa_client_leave(client);
	pthread_mutex_unlock(&client->import_lock);
}

int fa_cuda_trim(struct fa_client *handle)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	int r;

	if (client && fa_client_forked(client))
		return fa_client_child_error();
	if (client)
		pthread_mutex_lock(&client->import_lock);
	r = fa_client_enter(client);
	if (r == 0) {
		fa_client_await_connecting(client);
		drop_unused(client);
		fa_client_leave(client);
	}
	if (client)
		pthread_mutex_unlock(&client->import_lock);
	return r;
}

/* ---- finding registrations */

static bool contains(const struct fa_cuda_allocations *whole,
                     const struct fa_cuda_allocations *part)
{
	for (size_t first = 0; first + part->n_pieces <= whole->n_pieces; ++first)
		if (whole->pieces[first].at == part->pieces[0].at)
			return !memcmp(&whole->pieces[first], part->pieces,
			               part->n_pieces * sizeof(part->pieces[0]));
	return false;
}

static struct fa_client_registration *find_in(struct fa_list *registrations,
                                              const struct fa_cuda_allocations *memory,
                                              uint32_t wire_flags)
{
	struct fa_list *pos;

	fa_list_for_each(pos, registrations) {
		struct fa_client_registration *registration = registration_of(pos);

		if (registration->wire_flags == wire_flags && !registration->missing &&
		    registration->cuda->has_ids && contains(registration->cuda, memory))
			return registration;
	}
	return NULL;
}

/* Makes @buffer a window of @registration. */
static void attach(struct fa_client *client, struct fa_buffer *buffer,
                   struct fa_client_registration *registration)
{
	fa_list_remove(&registration->link);
	fa_list_append(&client->cuda_used, &registration->link);
	++registration->n_buffers;
	buffer->registration = registration;
	buffer->offset = buffer->device_data - registration->cuda->at;
	fa_list_append(&client->buffers, &buffer->link);
}

static bool find(struct fa_client *client, const struct fa_cuda_allocations *memory,
                 uint32_t wire_flags, struct fa_buffer *buffer)
{
	struct fa_client_registration *registration = NULL;

	(void)fa_client_enter(client);
	fa_client_await_connecting(client);
	drop_freed(client);
	if (memory->has_ids)
		registration = find_in(&client->cuda_used, memory, wire_flags);
	if (memory->has_ids && !registration)
		registration = find_in(&client->cuda_unused, memory, wire_flags);
	if (registration)
		attach(client, buffer, registration);
	fa_client_leave(client);
	return registration;
}

/* ---- registering */

static bool depth_ready(const struct fa_client *client, struct fa_client_waiter *waiter)
{
	return client->state == FA_CLIENT_LOST || client->detached_replies < PIECES_DEPTH;
}

static size_t batch_size(const struct fa_cuda_allocations *memory, size_t sent)
{
	size_t left = memory->n_pieces - sent;

	return left < FA_WIRE_FDS_MAX ? left : FA_WIRE_FDS_MAX;
}

/* Sends the pieces that did not fit into BufferRegister. With the mutex held, and released
 * meanwhile. */
static int send_pieces(struct fa_client *client, const struct fa_cudriver *driver,
                       const struct fa_client_registration *registration,
                       const struct fa_client_call *call)
{
	const struct fa_cuda_allocations *memory = registration->cuda;
	struct fa_client_waiter waiter = { .ready = depth_ready };

	for (size_t sent = batch_size(memory, 0), n; sent < memory->n_pieces; sent += n) {
		struct fa_wire_message message = { .type = FA_WIRE_BUFFER_PIECES };
		int fds[FA_WIRE_FDS_MAX], r;
		struct fa_error error;

		n = batch_size(memory, sent);
		message.buffer_pieces.buffer = registration->id;
		message.buffer_pieces.n_piece_bytes = n;
		for (size_t i = 0; i < n; ++i)
			message.buffer_pieces.piece_bytes[i] = memory->pieces[sent + i].bytes;

		pthread_mutex_unlock(&client->lock);
		r = fa_cuda_export(driver, memory, sent, n, &error, fds);
		pthread_mutex_lock(&client->lock);
		if (r < 0)
			return fa_error_copy(r, &error);
		r = fa_client_await(client, &waiter, call->deadline_ns);
		/* fa_call_end() reports a refused or lost registration. */
		if (r == 0 && !call->done && call->epoch == client->epoch)
			r = fa_call_detached(client, &message, fds, n);
		fa_packet_close_fds(fds, n);
		if (r < 0 || call->done || call->epoch != client->epoch)
			return r == -EAGAIN ? 0 : r;
	}
	return 0;
}

/* @fds: the first pieces. With the mutex held. */
static int send_registration(struct fa_client *client, const struct fa_cudriver *driver,
                             struct fa_client_registration *registration, const int *fds,
                             size_t n_fds)
{
	const struct fa_cuda_allocations *memory = registration->cuda;
	struct fa_client_call call = { .expect = FA_WIRE_BUFFER_REPLY };
	struct fa_wire_message message;
	int r, sent;

	fa_registration_assign_id(client, registration);
	fa_registration_message(registration, &message);
	if (!memory->by_ipc_handle) {
		message.buffer_register.n_pieces = (uint32_t)memory->n_pieces;
		message.buffer_register.n_piece_bytes = n_fds;
		for (size_t i = 0; i < n_fds; ++i)
			message.buffer_register.piece_bytes[i] = memory->pieces[i].bytes;
	}
	r = fa_call_begin(client, &message, fds, n_fds, true, &call);
	if (r < 0)
		return r;
	sent = memory->by_ipc_handle ? 0 : send_pieces(client, driver, registration, &call);
	if (sent < 0) {
		struct fa_error error;

		/* The daemon waits for the missing pieces. */
		(void)fa_fail(&error, sent, "%s", fa_error());
		if (call.epoch == client->epoch)
			fa_registration_unregister(client, registration);
		r = fa_call_end(client, &call);
		if (r == -ECANCELED)
			r = fa_error_copy(sent, &error);
	} else {
		r = fa_call_end(client, &call);
	}
	/* Only a connecting thread may change the lists, and its daemon lacks this registration. */
	fa_client_await_connecting(client);
	if (r >= 0 && call.epoch != client->epoch)
		r = fa_client_lost_error(client);
	return r;
}

/* @memory is consumed on success. */
static int register_range(struct fa_client *client, const struct fa_cudriver *driver,
                          struct fa_cuda_allocations *memory, const uint64_t uuid[2],
                          uint32_t wire_flags, struct fa_buffer *buffer)
{
	size_t n_fds = memory->by_ipc_handle ? 0 : batch_size(memory, 0);
	struct fa_client_registration *registration;
	int fds[FA_WIRE_FDS_MAX], r;
	struct fa_error error;

	registration = fa_registration_new(memory->by_ipc_handle ? FA_WIRE_BUFFER_CUDA_IPC
	                                                         : FA_WIRE_BUFFER_CUDA_FD,
	                                   wire_flags, 0, memory->bytes);
	if (!registration)
		return fa_error_set(-ENOMEM, "no memory for a buffer");
	memcpy(registration->uuid, uuid, sizeof(registration->uuid));
	if (memory->by_ipc_handle)
		r = fa_cuda_handle(driver, memory, &error, registration->handle);
	else
		r = fa_cuda_export(driver, memory, 0, n_fds, &error, fds);
	if (r < 0) {
		fa_registration_free(registration);
		return fa_error_copy(r, &error);
	}
	registration->cuda = memory;
	r = fa_client_enter_connected(client);
	if (r >= 0) {
		r = send_registration(client, driver, registration, fds, n_fds);
		if (r >= 0)
			attach(client, buffer, registration);
		fa_client_leave(client);
	}
	fa_packet_close_fds(fds, n_fds);
	if (r < 0) {
		registration->cuda = NULL;
		fa_registration_free(registration);
	}
	return r;
}

static bool drop_all_unused(struct fa_client *client)
{
	bool any;

	(void)fa_client_enter(client);
	fa_client_await_connecting(client);
	any = !fa_list_empty(&client->cuda_unused);
	drop_unused(client);
	fa_client_leave(client);
	return any;
}

static int import_range(struct fa_client *client, const struct fa_cudriver *driver,
                        const uint64_t uuid[2], uint32_t wire_flags, struct fa_buffer *buffer)
{
	_fa_cleanup_(fa_freep) struct fa_cuda_allocations *memory = NULL;
	struct fa_error error;
	int r;

	r = fa_cuda_find(driver, buffer->device_data, buffer->bytes, uuid, &error, &memory);
	if (r < 0)
		return fa_error_copy(r, &error);
	mark_freed(client, driver);
	if (find(client, memory, wire_flags, buffer))
		return 0;
	r = register_range(client, driver, memory, uuid, wire_flags, buffer);
	if (r == -EDQUOT && drop_all_unused(client))
		r = register_range(client, driver, memory, uuid, wire_flags, buffer);
	if (r == 0)
		(void)fa_steal_ptr(memory); /* now the registration's */
	return r;
}

static int daemon_device(struct fa_client *client, uint64_t ret_uuid[2])
{
	int r;

	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	memcpy(ret_uuid, client->connection.device_uuid, 2 * sizeof(*ret_uuid));
	if (strcmp(client->connection.backend, "cuda") != 0)
		r = fa_error_set(-ENOTSUP,
		                 "the daemon's backend is %s, which takes no memory of a GPU; copy "
		                 "it into one of fa_buffer_new()'s, or start fad with --backend "
		                 "cuda",
		                 client->connection.backend);
	fa_client_leave(client);
	return r;
}

int fa_buffer_import_cuda(struct fa_client *handle, uint64_t ptr, uint64_t bytes, uint32_t flags,
                          struct fa_buffer **ret_buffer)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	uint32_t wire_flags = flags & FA_BUFFER_READ_ONLY ? FA_WIRE_BUFFER_READ_ONLY : 0;
	const struct fa_cudriver *driver;
	struct fa_buffer *buffer;
	struct fa_error error;
	uint64_t uuid[2];
	int r;

	if (!ret_buffer)
		return fa_error_set(-EINVAL, "ret_buffer is NULL");
	if (flags & ~FA_BUFFER_READ_ONLY)
		return fa_error_set(-EINVAL, "fa_buffer_import_cuda: flags has unknown bits: 0x%x",
		                    flags);
	r = fa_buffer_alloc(client, bytes, &buffer);
	if (r < 0)
		return r;
	buffer->device_data = ptr;
	r = daemon_device(client, uuid);
	if (r == 0) {
		r = fa_cuda_open(&error, &driver);
		if (r < 0)
			(void)fa_error_copy(r, &error);
	}
	if (r == 0) {
		pthread_mutex_lock(&client->import_lock);
		r = import_range(client, driver, uuid, wire_flags, buffer);
		pthread_mutex_unlock(&client->import_lock);
	}
	if (r < 0) {
		fa_buffer_release(buffer);
		return r;
	}
	*ret_buffer = buffer->handle;
	return 0;
}
