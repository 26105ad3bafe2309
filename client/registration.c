#include "client/registration.h"

#include "client/client.h"
#include "common/cleanup.h"

#include <string.h>
#include <unistd.h>

struct fa_client_registration *fa_registration_new(enum fa_wire_buffer_kind kind,
                                                   uint32_t wire_flags, uint64_t offset,
                                                   uint64_t bytes)
{
	struct fa_client_registration *registration;

	registration = fa_new(struct fa_client_registration);
	if (!registration)
		return NULL;
	*registration = (struct fa_client_registration){
		.kind = kind,
		.wire_flags = wire_flags,
		.offset = offset,
		.bytes = bytes,
		.fd = -1,
	};
	fa_list_init(&registration->link);
	return registration;
}

void fa_registration_free(struct fa_client_registration *registration)
{
	if (!registration)
		return;
	fa_list_remove(&registration->link);
	fa_close_fdp(&registration->fd);
	free(registration->cuda);
	free(registration);
}

static bool has_id(const struct fa_list *registrations, uint32_t id)
{
	struct fa_list *pos;

	fa_list_for_each(pos, registrations)
		if (fa_container_of(pos, struct fa_client_registration, link)->id == id)
			return true;
	return false;
}

static bool id_is_used(const struct fa_client *client, uint32_t id)
{
	return has_id(&client->registrations, id) || has_id(&client->cuda_used, id) ||
	       has_id(&client->cuda_unused, id);
}

void fa_registration_assign_id(struct fa_client *client,
                               struct fa_client_registration *registration)
{
	static const uint32_t wrapped = UINT32_MAX / 2;
	uint32_t id = client->last_registration;

	/* Ids wrap around; from then on used ones are skipped. */
	do
		++id;
	while (!id || (id > wrapped && id_is_used(client, id)));
	client->last_registration = id == UINT32_MAX ? wrapped : id;
	registration->id = id;
}

void fa_registration_message(const struct fa_client_registration *registration,
                             struct fa_wire_message *ret_message)
{
	*ret_message = (struct fa_wire_message){
		.fds = registration->fd >= 0,
		.type = FA_WIRE_BUFFER_REGISTER,
		.buffer_register = { .buffer = registration->id,
		                     .kind = (uint8_t)registration->kind,
		                     .flags = registration->wire_flags,
		                     .offset = registration->offset,
		                     .bytes = registration->bytes },
	};
	if (registration->kind == FA_WIRE_BUFFER_CUDA_IPC) {
		memcpy(ret_message->buffer_register.handle, registration->handle,
		       sizeof(registration->handle));
		ret_message->buffer_register.pid = (uint32_t)getpid();
	}
	if (registration->kind == FA_WIRE_BUFFER_CUDA_FD && !registration->cuda) {
		ret_message->buffer_register.n_pieces = 1;
		ret_message->buffer_register.piece_bytes[0] = registration->piece_bytes;
		ret_message->buffer_register.n_piece_bytes = 1;
	}
}
