#include "client/cancel.h"
#include "client/client.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/receive.h"

#include <sys/eventfd.h>

int fa_fd(struct fa_client *handle)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	/* What was read before the first fa_fd() is reported. */
	if (!client->fd_watched) {
		client->fd_watched = true;
		fa_client_ring_arm(&client->connection.ring);
		fa_client_notify(client);
	}
	fa_client_leave(client);
	return client->epoll_fd;
}

int fa_dispatch(struct fa_client *handle)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	eventfd_t count;
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	/* Consumes wake-ups and asks for new ones before the last look, so that none is missed. A
	 * leader, which may sleep until one comes, consumes them itself. */
	if (client->connection.ring.memory && client->state == FA_CLIENT_CONNECTED) {
		if (!client->leader)
			fa_client_ring_drain(&client->connection.ring);
		fa_client_ring_arm(&client->connection.ring);
	}
	fa_client_receive(client, true);
	if (client->fd_readable)
		(void)eventfd_read(client->event_fd, &count);
	client->fd_readable = false;
	r = client->state == FA_CLIENT_LOST ? fa_client_lost_error(client) : 0;
	fa_client_leave(client);
	return r;
}
