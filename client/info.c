#include "client/cancel.h"
#include "client/client.h"
#include "client/last_error.h"
#include "client/struct_size.h"

#include <string.h>

const char *fa_version(void)
{
	return FAD_VERSION;
}

const char *fa_socket_path(struct fa_client *handle)
{
	const struct fa_client *client = fa_client_of(handle);

	return client ? client->path : NULL;
}

int fa_info(struct fa_client *handle, struct fa_info *ret_info)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	const struct fa_connection *connection;
	struct fa_info info = {};
	int r;

	r = fa_struct_out_check("fa_info", ret_info);
	if (r < 0)
		return r;
	r = fa_client_enter(client);
	if (r < 0)
		return r;
	connection = &client->connection;
	info.protocol = connection->version;
	memcpy(info.daemon_version, connection->daemon_version, sizeof(info.daemon_version));
	memcpy(info.backend, connection->backend, sizeof(info.backend));
	memcpy(info.device_name, connection->device_name, sizeof(info.device_name));
	memcpy(info.device_uuid, connection->device_uuid, sizeof(info.device_uuid));
	info.generation = connection->generation;
	info.session = connection->session;
	info.reconnects = client->reconnects;
	info.resumed = client->resumed;
	info.max_buffers = connection->limits.buffers;
	info.max_buffer_bytes = connection->limits.buffer_bytes;
	info.max_streams = connection->limits.streams < FA_COMPLETION_SLOTS
	                           ? connection->limits.streams
	                           : FA_COMPLETION_SLOTS;
	info.max_requests = client->max_requests;
	info.ring_bytes = connection->ring.memory ? connection->ring.end.bytes : 0;
	info.origin = client->origin;
	info.pid = connection->pid;
	memcpy(info.spawn_reason, client->spawn_reason, sizeof(info.spawn_reason));
	fa_client_leave(client);
	fa_struct_out(ret_info, &info, sizeof(info));
	return 0;
}
