/*
 * Buffers: memory that both sides map. Each keeps its descriptor for as long as
 * it lives, so that it can be handed over again when the daemon was restarted.
 */
#include "client/internal.h"

#include "common/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define FLAGS_NEW (FA_BUFFER_ARENA | FA_BUFFER_READ_ONLY)

void fa_buffer_release(struct fa_buffer *buffer)
{
	if (buffer->data)
		(void)munmap(buffer->data, buffer->bytes);
	fa_close_fdp(&buffer->fd);
	free(buffer);
}

static void releasep(struct fa_buffer **buffer)
{
	if (*buffer)
		fa_buffer_release(*buffer);
}

static int buffer_alloc(struct fa_client *client, uint64_t bytes, uint32_t flags,
                        struct fa_buffer **ret_buffer)
{
	struct fa_buffer *buffer;

	if (!bytes || bytes > PTRDIFF_MAX)
		return fa_error_set(-EINVAL, "a buffer of %llu bytes is not possible",
		                    (unsigned long long)bytes);
	buffer = fa_new(struct fa_buffer);
	if (!buffer)
		return fa_error_set(-ENOMEM, "no memory for a buffer");
	*buffer = (struct fa_buffer){ .client = client, .bytes = bytes, .fd = -1 };
	fa_list_init(&buffer->link);
	if (flags & FA_BUFFER_READ_ONLY)
		buffer->wire_flags |= FA_WIRE_BUFFER_READ_ONLY;
	*ret_buffer = buffer;
	return 0;
}

/* With the mutex. */
static bool id_is_used(const struct fa_client *client, uint32_t id)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &client->buffers)
		if (fa_container_of(pos, struct fa_buffer, link)->id == id)
			return true;
	return false;
}

static uint32_t new_id(struct fa_client *client)
{
	static const uint32_t wrapped = UINT32_MAX / 2;

	/* Ids are used once, until there are no more; searching is for then. */
	do
		++client->last_buffer;
	while (!client->last_buffer ||
	       (client->last_buffer > wrapped && id_is_used(client, client->last_buffer)));
	if (client->last_buffer == UINT32_MAX)
		client->last_buffer = wrapped;
	return client->last_buffer;
}

static int buffer_map(struct fa_buffer *buffer, int protection)
{
	void *data = mmap(NULL, buffer->bytes, protection, MAP_SHARED, buffer->fd,
	                  (off_t)buffer->offset);

	if (data == MAP_FAILED)
		return fa_error_set(-errno, "cannot map a buffer of %llu bytes: %m",
		                    (unsigned long long)buffer->bytes);
	buffer->data = data;
	return 0;
}

/* Sees that what the daemon gave for an arena can be mapped, and is what was asked for. */
static int arena_take(struct fa_buffer *buffer, int *fd)
{
	struct fa_error why;
	uint64_t size;
	int r, seals;

	r = fa_memfd_check(*fd, 0, buffer->bytes, &why, &size, &seals);
	if (r < 0)
		return fa_error_set(-EPROTO, "the daemon's memory is unusable: %.180s", why.text);
	buffer->fd = fa_steal_fd(fd);
	return buffer_map(buffer, PROT_READ | PROT_WRITE);
}

/* Registers @buffer and, when the daemon has it, puts it into the client's list. */
static int buffer_register(struct fa_client *client, struct fa_buffer *buffer, bool arena)
{
	struct fa_wire_message message = {
		.type = FA_WIRE_BUFFER_REGISTER,
		.buffer_register = { .kind = arena ? FA_WIRE_BUFFER_ARENA : FA_WIRE_BUFFER_HOST_FD,
		                     .flags = buffer->wire_flags,
		                     .offset = buffer->offset,
		                     .bytes = buffer->bytes },
	};
	struct fa_call call = { .expect = FA_WIRE_BUFFER_REPLY, .expect_fds = arena };
	int r;

	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	buffer->id = message.buffer_register.buffer = new_id(client);
	r = fa_io_call(client, &message, &buffer->fd, arena ? 0 : 1, true, &call);
	if (r >= 0 && arena)
		r = arena_take(buffer, &call.fd);
	fa_close_fdp(&call.fd);
	/* The list stands still while another thread connects again, and what it
	 * connects to knows nothing of this buffer. */
	fa_client_settle(client);
	if (r >= 0 && call.epoch != client->epoch)
		r = fa_client_lost_error(client);
	if (r >= 0)
		fa_list_append(&client->buffers, &buffer->link);
	fa_client_leave(client);
	return r;
}

int fa_buffer_new(struct fa_client *client, uint64_t bytes, uint32_t flags,
                  struct fa_buffer **ret_buffer)
{
	_fa_cleanup_(releasep) struct fa_buffer *buffer = NULL;
	bool arena = flags & FA_BUFFER_ARENA;
	int r;

	if (!ret_buffer)
		return fa_error_set(-EINVAL, "ret_buffer is NULL");
	if (flags & ~FLAGS_NEW)
		return fa_error_set(-EINVAL, "fa_buffer_new: flags has unknown bits: 0x%x", flags);
	r = buffer_alloc(client, bytes, flags, &buffer);
	if (r < 0)
		return r;
	if (!arena) {
		r = fa_memfd_new("fad-buffer", bytes, 1, &buffer->fd);
		if (r < 0)
			return fa_error_set(r, "cannot make a memfd of %llu bytes: %s",
			                    (unsigned long long)bytes, strerror(-r));
		r = buffer_map(buffer, PROT_READ | PROT_WRITE);
		if (r < 0)
			return r;
	}
	r = buffer_register(client, buffer, arena);
	if (r < 0)
		return r;
	*ret_buffer = fa_steal_ptr(buffer);
	return 0;
}

int fa_buffer_import_fd(struct fa_client *client, int fd, uint64_t offset, uint64_t bytes,
                        uint32_t flags, struct fa_buffer **ret_buffer)
{
	_fa_cleanup_(releasep) struct fa_buffer *buffer = NULL;
	struct fa_error error;
	bool writable;
	uint64_t size;
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
	r = buffer_alloc(client, bytes, flags, &buffer);
	if (r < 0)
		return r;
	buffer->offset = offset;
	buffer->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (buffer->fd < 0)
		return fa_error_set(-errno, "cannot duplicate the descriptor: %m");
	r = buffer_map(buffer, PROT_READ | (writable ? PROT_WRITE : 0));
	if (r < 0)
		return r;
	r = buffer_register(client, buffer, false);
	if (r < 0)
		return r;
	*ret_buffer = fa_steal_ptr(buffer);
	return 0;
}

void *fa_buffer_data(struct fa_buffer *buffer)
{
	return buffer ? buffer->data : NULL;
}

uint64_t fa_buffer_bytes(struct fa_buffer *buffer)
{
	return buffer ? buffer->bytes : 0;
}

struct fa_buffer *fa_buffer_free(struct fa_buffer *buffer)
{
	struct fa_wire_message message = { .type = FA_WIRE_BUFFER_FREE };
	struct fa_client *client;

	if (!buffer)
		return NULL;
	client = buffer->client;
	/* In a child of fork() the list may be in any state and is never used again,
	 * except by fa_disconnect(), which must not meet this buffer. */
	if (fa_client_forked(client)) {
		if (!pthread_mutex_trylock(&client->lock)) {
			fa_list_remove(&buffer->link);
			pthread_mutex_unlock(&client->lock);
			fa_buffer_release(buffer);
		}
		return NULL;
	}

	(void)fa_client_enter(client);
	fa_client_settle(client);
	fa_list_remove(&buffer->link);
	message.buffer_free.buffer = buffer->id;
	if (client->state == FA_CLIENT_CONNECTED)
		fa_io_tell(client, &message);
	fa_client_leave(client);
	fa_buffer_release(buffer);
	return NULL;
}
