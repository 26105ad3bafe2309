#include "client/buffer_handle.h"

#include "client/call.h"
#include "client/cuda_memory.h"
#include "client/last_error.h"
#include "common/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

int fa_buffer_alloc(struct fa_client *client, uint64_t bytes, struct fa_buffer **ret_buffer)
{
	struct fa_buffer *buffer;
	int r;

	if (!client)
		return fa_error_set(-EINVAL, "the client is NULL, or was freed by "
		                             "fa_disconnect()");
	if (!bytes || bytes > PTRDIFF_MAX)
		return fa_error_set(-EINVAL, "a buffer of %llu bytes is not possible",
		                    (unsigned long long)bytes);
	buffer = fa_new(struct fa_buffer);
	if (!buffer)
		return fa_error_set(-ENOMEM, "no memory for a buffer");
	*buffer = (struct fa_buffer){ .client = client, .bytes = bytes };
	fa_list_init(&buffer->link);
	r = fa_handle_new(FA_HANDLE_BUFFER, buffer, &buffer->handle);
	if (r < 0) {
		free(buffer);
		return r;
	}
	*ret_buffer = buffer;
	return 0;
}

/* In a child of fork() the driver does not work, and nothing is mapped. */
static void mapping_free(const struct fa_client *client, struct fa_cuda_mapping *mapping)
{
	const struct fa_cudriver *driver;
	struct fa_error error;

	if (mapping && !fa_client_forked(client) && fa_cuda_open(&error, &driver) == 0)
		fa_cuda_unmap(driver, mapping);
	free(mapping);
}

void fa_buffer_release(struct fa_buffer *buffer)
{
	(void)fa_handle_take(FA_HANDLE_BUFFER, buffer->handle);
	if (buffer->data)
		(void)munmap(buffer->data, buffer->bytes);
	mapping_free(buffer->client, buffer->mapping);
	/* Buffers share registrations of CUDA memory; any other is freed with its only buffer. */
	if (buffer->registration && !buffer->registration->cuda)
		fa_registration_free(buffer->registration);
	free(buffer);
}

void fa_registration_unregister(struct fa_client *client,
                                const struct fa_client_registration *registration)
{
	struct fa_wire_message message = { .type = FA_WIRE_BUFFER_FREE,
		                           .buffer_free.buffer = registration->id };

	if (client->state == FA_CLIENT_CONNECTED && !registration->missing)
		(void)fa_call_detached(client, &message, NULL, 0);
}

void *fa_buffer_data(struct fa_buffer *handle)
{
	const struct fa_buffer *buffer = fa_buffer_of(handle);

	return buffer ? buffer->data : NULL;
}

uint64_t fa_buffer_device_data(struct fa_buffer *handle)
{
	const struct fa_buffer *buffer = fa_buffer_of(handle);

	return buffer ? buffer->device_data : 0;
}

uint64_t fa_buffer_bytes(struct fa_buffer *handle)
{
	const struct fa_buffer *buffer = fa_buffer_of(handle);

	return buffer ? buffer->bytes : 0;
}
