/* For event loops: one descriptor for all of a client. */
#include "client/client.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/receive.h"

#include <sys/eventfd.h>

int fa_fd(struct fa_client *client)
{
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	/* Of what was read before, nobody was told. */
	if (!client->watched) {
		client->watched = true;
		fa_client_ring_arm(&client->connection.ring);
		fa_client_notify(client);
	}
	fa_client_leave(client);
	return client->epoll_fd;
}

int fa_dispatch(struct fa_client *client)
{
	eventfd_t count;
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	/* Wake-ups are let go of first, and asked for again; then comes the last look. But a
	 * thread that sleeps for them would sleep on: it lets go of them itself. */
	if (client->connection.ring.memory && client->state == FA_CLIENT_CONNECTED) {
		if (!client->leader)
			fa_client_ring_drain(&client->connection.ring);
		fa_client_ring_arm(&client->connection.ring);
	}
	fa_client_receive(client, true);
	if (client->rung)
		(void)eventfd_read(client->event_fd, &count);
	client->rung = false;
	r = client->state == FA_CLIENT_LOST ? fa_client_lost_error(client) : 0;
	fa_client_leave(client);
	return r;
}
